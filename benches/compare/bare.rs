//! A bare tonic server: default settings of tonic and tokio, and each job runs in the task of its call. It has no
//! queue, no deadlines and no statistics.

use std::{io, pin::Pin};

use futures_util::{Stream, StreamExt};
use sha2::Digest;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};
use waterwheel::proto::{
    Job, JobResult, StatsRequest, StatsResponse, StreamRequest, StreamResponse, SubmitManyRequest, SubmitManyResponse,
    SubmitRequest, SubmitResponse, WatchStatsRequest, WatchStatsResponse,
    submit_many_response::Outcome,
    worker_pool_service_server::{WorkerPoolService, WorkerPoolServiceServer},
};

use crate::server::LISTENING;

/// Serves until standard input ends, which happens when the parent process ends in any way.
pub(crate) async fn serve() -> io::Result<()> {
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
    println!("{LISTENING}{}", incoming.local_addr()?);
    let server = Server::builder().add_service(WorkerPoolServiceServer::new(Bare));
    let (mut stdin, mut nowhere) = (tokio::io::stdin(), tokio::io::sink());
    tokio::select! {
        served = server.serve_with_incoming(incoming) => served.map_err(io::Error::other),
        ended = tokio::io::copy(&mut stdin, &mut nowhere) => ended.map(drop),
    }
}

#[derive(Debug, Clone, Copy)]
struct Bare;

fn run(job: Option<Job>) -> JobResult {
    let job = job.unwrap_or_default();
    let output = match job.kind.as_str() {
        "sha256" => hex(&sha2::Sha256::digest(&job.payload)).into(),
        _ => job.payload.into(),
    };
    JobResult { output, ..JobResult::default() }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl WorkerPoolService for Bare {
    type StreamStream = Responses<StreamResponse>;
    type SubmitManyStream = Responses<SubmitManyResponse>;
    type WatchStatsStream = Responses<WatchStatsResponse>;

    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
        Ok(Response::new(SubmitResponse { result: Some(run(request.into_inner().job)) }))
    }

    async fn submit_many(
        &self,
        request: Request<Streaming<SubmitManyRequest>>,
    ) -> Result<Response<Self::SubmitManyStream>, Status> {
        let answer = |request: SubmitManyRequest| {
            let result = run(request.job.map(|job| *job));
            SubmitManyResponse { tag: request.tag, outcome: Some(Outcome::Result(Box::new(result))) }
        };
        let answers = request.into_inner().map(move |request| request.map(answer));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn stream(&self, _: Request<StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn watch_stats(&self, _: Request<WatchStatsRequest>) -> Result<Response<Self::WatchStatsStream>, Status> {
        Err(Status::unimplemented(""))
    }
}
