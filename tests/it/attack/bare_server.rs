//! A bare tonic server with its default settings. The tests attack it for comparison.

// tidy: real time, because a call to the bare server must take a while.

use std::{path::Path, pin::Pin, time::Duration};

use futures_util::Stream;
use tokio::time::{sleep, timeout};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};
use waterwheel::proto::{
    StatsRequest, StatsResponse, StreamRequest, StreamResponse, SubmitManyRequest, SubmitManyResponse, SubmitRequest,
    SubmitResponse, WatchStatsRequest, WatchStatsResponse,
    worker_pool_service_server::{WorkerPoolService, WorkerPoolServiceServer},
};

use crate::{
    process::{PATIENCE, Process},
    service::Address,
};

/// If it is set, this binary is the server of [`start_process`].
const SERVES: &str = "BARE_SERVER";

/// Starts a bare server in this process.
pub(crate) fn start() -> Address {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap().with_nodelay(Some(true));
    let address = Address(incoming.local_addr().unwrap());
    let router = Server::builder().add_service(WorkerPoolServiceServer::new(Slow));
    tokio::spawn(router.serve_with_incoming(incoming));
    address
}

/// Starts a bare server in a process of its own.
pub(crate) async fn start_process() -> Process {
    Process::test("attack::bare_server::serves_if_the_variable_is_set", SERVES, Path::new("yes")).await
}

/// Does nothing in an ordinary test run. It is the server in the process that [`start_process`] starts.
#[tokio::test]
async fn serves_if_the_variable_is_set() {
    if std::env::var_os(SERVES).is_some() {
        let Address(address) = start();
        println!("grpc {address} ops {address}");
        let _ = timeout(10 * PATIENCE, std::future::pending::<()>()).await;
    }
}

/// Answers each `Submit` after 20 ms.
struct Slow;

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl WorkerPoolService for Slow {
    type StreamStream = ResponseStream<StreamResponse>;
    type SubmitManyStream = ResponseStream<SubmitManyResponse>;
    type WatchStatsStream = ResponseStream<WatchStatsResponse>;

    async fn submit(&self, _: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
        sleep(Duration::from_millis(20)).await;
        Ok(Response::new(SubmitResponse::default()))
    }

    async fn submit_many(
        &self,
        _: Request<Streaming<SubmitManyRequest>>,
    ) -> Result<Response<Self::SubmitManyStream>, Status> {
        Err(absent())
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
    Status::unimplemented("the bare server implements Submit only")
}
