//! Many large concurrent calls: how many are served, and how much memory the server needs.

use std::{net::SocketAddr, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tonic::transport::Endpoint;
use waterwheel::proto::{Job, SubmitRequest, worker_pool_service_client::WorkerPoolServiceClient};

use crate::Failure;

/// Deadline of a call, long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest answer, which is as large as its job.
const LARGEST: usize = 8 << 20;

pub(crate) struct Volley {
    pub(crate) served: u64,
    pub(crate) refused: u64,
    pub(crate) elapsed: Duration,
}

/// Makes `calls` concurrent calls on each connection, and waits for all answers.
pub(crate) async fn fire(
    server: SocketAddr,
    kind: &str,
    connections: usize,
    calls: usize,
    payload: usize,
) -> Result<Volley, Failure> {
    let job = Job { kind: kind.to_owned(), payload: vec![b'w'; payload].into(), ..Job::default() };
    let endpoint = Endpoint::from_shared(format!("http://{server}"))?
        .initial_stream_window_size(8 << 20)
        .initial_connection_window_size(64 << 20);
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.push(WorkerPoolServiceClient::new(endpoint.connect().await?).max_decoding_message_size(LARGEST));
    }
    let begin = Instant::now();
    let mut answers = JoinSet::new();
    for client in clients.iter().flat_map(|client| vec![client; calls]) {
        let (mut client, job) = (client.clone(), job.clone());
        answers.spawn(async move { timeout(PATIENCE, client.submit(SubmitRequest { job: Some(job) })).await });
    }
    let mut volley = Volley { served: 0, refused: 0, elapsed: Duration::ZERO };
    while let Some(answer) = answers.join_next().await {
        match answer? {
            Ok(Ok(_)) => volley.served += 1,
            Ok(Err(_)) | Err(_) => volley.refused += 1,
        }
    }
    volley.elapsed = begin.elapsed();
    Ok(volley)
}
