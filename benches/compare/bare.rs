//! A bare tonic server of the shape of waterwheel's: a current-thread runtime for each core, sockets dealt in turn.
//!
//! It has no queue, no deadlines and no stats; what it does, it does in the call's own task.

use std::{io, net::TcpListener, pin::Pin, thread};

use futures_util::{Stream, StreamExt};
use sha2::Digest;
use tokio::{net::TcpStream, runtime::Builder, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, transport::Server};
use waterwheel::proto::{
    Job, JobResult, StatsRequest, StatsResponse, StreamRequest, StreamResponse, SubmitManyRequest, SubmitManyResponse,
    SubmitRequest, SubmitResponse, WatchStatsRequest, WatchStatsResponse,
    submit_many_response::Outcome,
    worker_pool_service_server::{WorkerPoolService, WorkerPoolServiceServer},
};

use crate::server::LISTENING;

/// Sockets that wait for their runtime.
const DEALT: usize = 1024;

/// Serves until standard input ends, which it does with the parent, however that ends.
pub(crate) fn serve() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{LISTENING}{}", listener.local_addr()?);
    let runtimes = (0..thread::available_parallelism()?.get()).map(|_| start_runtime()).collect::<Vec<_>>();
    thread::spawn(move || {
        for (socket, runtime) in listener.incoming().zip(runtimes.iter().cycle()) {
            if runtime.blocking_send(socket).is_err() {
                return;
            }
        }
    });
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}

fn start_runtime() -> mpsc::Sender<io::Result<std::net::TcpStream>> {
    let (sender, sockets) = mpsc::channel(DEALT);
    thread::spawn(move || {
        let sockets = ReceiverStream::new(sockets).map(|socket: io::Result<std::net::TcpStream>| {
            let socket = socket?;
            socket.set_nodelay(true)?;
            socket.set_nonblocking(true)?;
            TcpStream::from_std(socket)
        });
        let server = Server::builder().add_service(WorkerPoolServiceServer::new(Bare)).serve_with_incoming(sockets);
        let runtime = Builder::new_current_thread().enable_all().build();
        if let Err(error) = runtime.map(|runtime| runtime.block_on(server)) {
            eprintln!("bare: {error}");
        }
    });
    sender
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
