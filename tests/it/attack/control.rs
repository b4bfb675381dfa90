//! A bare tonic server with its stock settings, for the same attacks.

use std::{pin::Pin, process::Stdio, time::Duration};

use futures_util::Stream;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};
use waterwheel::proto::{
    StatsRequest, StatsResponse, StreamRequest, StreamResponse, SubmitManyRequest, SubmitManyResponse, SubmitRequest,
    SubmitResponse, WatchStatsRequest, WatchStatsResponse,
    worker_pool_service_server::{WorkerPoolService, WorkerPoolServiceServer},
};

use crate::{process::PATIENCE, service::Address};

/// Time that a call to the bare server takes.
pub(crate) const CALL: Duration = Duration::from_millis(20);

/// Stands before the address of a [`BareProcess`].
const LISTENING: &str = "listening ";

/// A bare server in this process.
pub(crate) struct Bare {
    pub(crate) address: Address,
    shutdown: oneshot::Sender<()>,
    served: JoinHandle<Result<(), tonic::transport::Error>>,
}

/// A bare server in a process of its own.
pub(crate) struct BareProcess {
    pub(crate) address: Address,
    child: Child,
}

impl Bare {
    pub(crate) fn start() -> Self {
        Self::with(Server::builder())
    }

    /// With all that tonic has for connections that are to end some time.
    pub(crate) fn with_age(age: Duration, grace: Duration) -> Self {
        Self::with(Server::builder().max_connection_age(age).max_connection_age_grace(grace))
    }

    fn with(mut server: Server) -> Self {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap().with_nodelay(Some(true));
        let address = Address(incoming.local_addr().unwrap());
        let (shutdown, asked) = oneshot::channel();
        let router = server.add_service(WorkerPoolServiceServer::new(Slow));
        let served = tokio::spawn(router.serve_with_incoming_shutdown(incoming, async {
            let _ = asked.await;
        }));
        Self { address, shutdown, served }
    }

    /// Tells it to end. What it returns is finished when it has.
    pub(crate) fn shut_down(self) -> JoinHandle<Result<(), tonic::transport::Error>> {
        self.shutdown.send(()).unwrap();
        self.served
    }
}

impl BareProcess {
    pub(crate) async fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", "attack::control::serves_until_its_parent_ends"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = async {
            loop {
                let line = stdout.next_line().await.unwrap().expect("an announcement");
                if let Some((_, address)) = line.split_once(LISTENING) {
                    return address.parse().unwrap();
                }
            }
        };
        Self { address: Address(timeout(PATIENCE, address).await.expect("an announcement")), child }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }
}

#[tokio::test]
#[ignore = "it is what BareProcess runs"]
async fn serves_until_its_parent_ends() {
    let bare = Bare::start();
    println!("{LISTENING}{}", bare.address.0);
    tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await.unwrap();
}

/// Answers after a while.
struct Slow;

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl WorkerPoolService for Slow {
    type StreamStream = ResponseStream<StreamResponse>;
    type SubmitManyStream = ResponseStream<SubmitManyResponse>;
    type WatchStatsStream = ResponseStream<WatchStatsResponse>;

    async fn submit(&self, _: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
        tokio::time::sleep(CALL).await;
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
    Status::unimplemented("the bare server knows Submit only")
}

// tidy: real time, because a call to the bare server takes some.
