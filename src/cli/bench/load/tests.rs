use std::pin::Pin;

use futures_util::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio_stream::once;
use tonic::{
    Code, Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};
use tonic_types::{ErrorDetails, StatusExt};

use super::*;
use crate::proto::{
    JobResult, StatsRequest, StatsResponse, StreamRequest, StreamResponse, SubmitManyRequest, SubmitManyResponse,
    SubmitRequest, SubmitResponse, WatchStatsRequest, WatchStatsResponse,
    submit_many_response::Outcome,
    worker_pool_service_server::{WorkerPoolService, WorkerPoolServiceServer},
};

#[tokio::test]
async fn measures_submit_and_the_echo_of_its_process() {
    let plan = Plan { rpc: Rpc::Submit, server_pid: Some(std::process::id()), ..plan(serve(Answering::Empty)) };
    let measurement = run(&plan).await.unwrap();
    assert_eq!(measurement.totals.errors.len(), 0, "{:?}", measurement.totals.errors);
    assert_eq!(measurement.totals.unanswered, 0);
    assert!(measurement.replies > 0 && measurement.throughput() > 0.0);
    assert!(measurement.server_cpu_us().unwrap() > 0.0);
}

#[tokio::test]
async fn measures_submit_many_with_its_whole_window_in_flight() {
    let plan = Plan { rpc: Rpc::SubmitMany, in_flight: 100, ..plan(serve(Answering::Empty)) };
    let measurement = run(&plan).await.unwrap();
    assert_eq!(measurement.totals.errors.len(), 0, "{:?}", measurement.totals.errors);
    assert_eq!(measurement.totals.unanswered, 0);
    assert!(measurement.replies >= 100, "{}", measurement.replies);
    assert_eq!(measurement.server_cpu_us(), None, "nobody named the server's process");
}

#[tokio::test]
async fn counts_refusals_by_reason() {
    for rpc in [Rpc::Submit, Rpc::SubmitMany] {
        let measurement = run(&Plan { rpc, ..plan(serve(Answering::Full)) }).await.unwrap();
        let reasons: Vec<_> = measurement.totals.errors.keys().collect();
        assert_eq!(reasons, ["QUEUE_FULL"], "{rpc:?}");
        assert_eq!(measurement.throughput(), 0.0, "{rpc:?}: a refusal is no throughput");
        assert!(measurement.replies > 0, "{rpc:?}");
    }
}

#[tokio::test]
async fn a_load_without_a_server_names_its_address() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = run(&plan(nobody)).await.unwrap_err().to_string();
    assert!(error.contains(&nobody.to_string()), "{error}");
}

fn plan(server: SocketAddr) -> Plan {
    Plan {
        host: String::new(),
        access: Access::default(),
        server,
        server_pid: None,
        rpc: Rpc::Submit,
        job: Job { kind: "echo".into(), payload: vec![b'w'; 64].into(), ..Job::default() },
        connections: 3,
        in_flight: 4,
        client_threads: 2,
        deadline: Duration::from_secs(5),
        warm_up: Duration::from_millis(10),
        window: Duration::from_millis(100),
    }
}

/// Serves on a thread of its own until the process ends.
fn serve(service: Answering) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let serve = async move {
        let incoming = TcpIncoming::from(TcpListener::from_std(listener).unwrap());
        Server::builder()
            .add_service(WorkerPoolServiceServer::new(service))
            .serve_with_incoming(incoming)
            .await
            .unwrap();
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    spawn_thread("server".into(), move || runtime.block_on(serve)).unwrap();
    address
}

/// Answers every job in one way.
#[derive(Clone, Copy)]
enum Answering {
    /// With an empty result.
    Empty,
    /// With a refusal.
    Full,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl WorkerPoolService for Answering {
    type StreamStream = Responses<StreamResponse>;
    type SubmitManyStream = Responses<SubmitManyResponse>;
    type WatchStatsStream = Responses<WatchStatsResponse>;

    async fn submit(&self, _: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
        match self {
            Self::Empty => Ok(Response::new(SubmitResponse { result: Some(JobResult::default()) })),
            Self::Full => Err(full()),
        }
    }

    /// Refuses in the trailers, after the response's head, so that both places of a status are covered.
    async fn submit_many(
        &self,
        requests: Request<Streaming<SubmitManyRequest>>,
    ) -> Result<Response<Self::SubmitManyStream>, Status> {
        let empty = |request: SubmitManyRequest| SubmitManyResponse {
            tag: request.tag,
            outcome: Some(Outcome::Result(Box::default())),
        };
        Ok(Response::new(match self {
            Self::Empty => Box::pin(requests.into_inner().map(move |request| request.map(empty))),
            Self::Full => Box::pin(once(Err(full()))),
        }))
    }

    async fn stream(&self, _: Request<StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        Err(full())
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        Err(full())
    }

    async fn watch_stats(&self, _: Request<WatchStatsRequest>) -> Result<Response<Self::WatchStatsStream>, Status> {
        Err(full())
    }
}

fn full() -> Status {
    let details = ErrorDetails::with_error_info("QUEUE_FULL", "waterwheel.dev", [("pool".to_owned(), "io".to_owned())]);
    Status::with_error_details(Code::ResourceExhausted, "the queue is full", details)
}
