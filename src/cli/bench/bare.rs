//! A bare tonic echo: the server that waterwheel is compared with.

use std::{io, net::SocketAddr, pin::Pin};

use clap::Args;
use futures_util::{Stream, StreamExt};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

use crate::cli::console::say;
use crate::proto::{
    JobResult, StatsRequest, StatsResponse, StreamRequest, StreamResponse, SubmitManyRequest, SubmitManyResponse,
    SubmitRequest, SubmitResponse, WatchStatsRequest, WatchStatsResponse, submit_many_response,
    worker_pool_service_server::{WorkerPoolService, WorkerPoolServiceServer},
};

/// Begins the line that tells the bound address.
pub(super) const LISTENING: &str = "listening ";

/// Serves a bare tonic echo until standard input ends.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:
  waterwheel bare-echo --listen 127.0.0.1:7080")]
pub(in crate::cli) struct BareEchoArgs {
    /// Where to listen.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// Serves the echo until standard input ends, with tonic's and tokio's stock settings.
///
/// Prints `listening ADDR` first. Standard input is the switch that ends it with its parent, however that ends.
/// It makes a runtime of its own, so it must not be called on one.
///
/// # Errors
/// Where the address cannot be bound or the runtime not be made.
pub(in crate::cli) fn serve(args: &BareEchoArgs) -> io::Result<()> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let incoming = TcpIncoming::bind(args.listen)?.with_nodelay(Some(true));
        say(&format!("{LISTENING}{}", incoming.local_addr()?))?;
        let server = Server::builder().add_service(WorkerPoolServiceServer::new(BareEcho));
        let (mut stdin, mut nowhere) = (tokio::io::stdin(), tokio::io::sink());
        tokio::select! {
            served = server.serve_with_incoming(incoming) => served.map_err(io::Error::other),
            ended = tokio::io::copy(&mut stdin, &mut nowhere) => ended.map(drop),
        }
    })
}

/// Returns each payload, with no queue between.
#[derive(Debug, Clone, Copy)]
pub(super) struct BareEcho;

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl WorkerPoolService for BareEcho {
    type StreamStream = ResponseStream<StreamResponse>;
    type SubmitManyStream = ResponseStream<SubmitManyResponse>;
    type WatchStatsStream = ResponseStream<WatchStatsResponse>;

    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
        let output = request.into_inner().job.unwrap_or_default().payload.into();
        Ok(Response::new(SubmitResponse { result: Some(JobResult { output, ..JobResult::default() }) }))
    }

    async fn submit_many(
        &self,
        request: Request<Streaming<SubmitManyRequest>>,
    ) -> Result<Response<Self::SubmitManyStream>, Status> {
        let answer = |request: SubmitManyRequest| {
            let output = request.job.unwrap_or_default().payload.into();
            let result = JobResult { output, ..JobResult::default() };
            let outcome = Some(submit_many_response::Outcome::Result(Box::new(result)));
            SubmitManyResponse { tag: request.tag, outcome }
        };
        let answers = request.into_inner().map(move |request| request.map(answer));
        Ok(Response::new(Box::pin(answers)))
    }

    async fn stream(&self, _: Request<StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        Err(absent())
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        Err(absent())
    }

    async fn watch_stats(&self, _: Request<WatchStatsRequest>) -> Result<Response<Self::WatchStatsStream>, Status> {
        Err(absent())
    }
}

fn absent() -> Status {
    Status::unimplemented("the bare echo knows Submit and SubmitMany only")
}
