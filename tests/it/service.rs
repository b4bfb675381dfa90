//! Starts a service in this process, with handlers of a test, and a client that many tests use.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::{
    net::TcpStream,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tonic::transport::{Channel, Endpoint};
use waterwheel::proto::health::health_client::HealthClient;
use waterwheel::{
    app::{App, Control, OwnKind, Receipt, StartError},
    config::{Config, SourceFile, Sources, load_pools},
    net::{ConnectionTracker, ListenAddress},
    proto::{
        Job, JobCounts, PoolStats, Stats, StatsRequest, SubmitRequest,
        worker_pool_service_client::WorkerPoolServiceClient,
    },
};

use crate::process::PATIENCE;

pub(crate) type Client = WorkerPoolServiceClient<Channel>;

/// A port that the kernel chooses.
const ANY_PORT: &str = "127.0.0.1:0";

/// The address of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address(pub(crate) SocketAddr);

/// A service in this process.
pub(crate) struct Service {
    pub(crate) public: Address,
    pub(crate) ops: Address,
    pub(crate) control: Control,
    pub(crate) tracker: ConnectionTracker,
    run: JoinHandle<Receipt>,
}

impl Service {
    /// Serves a configuration and these handlers on free ports.
    pub(crate) fn start(config: &str, own: Vec<OwnKind>) -> Self {
        Self::start_sampling(config, own, None)
    }

    /// As [`start`](Self::start), with tracing of this ratio of the calls, and of all calls with a sampled parent.
    pub(crate) fn start_sampling(config: &str, own: Vec<OwnKind>, sample_ratio: Option<f64>) -> Self {
        let mut config = load_config(config);
        config.server.listen = vec![ANY_PORT.parse().unwrap()];
        Self::serve(config, own, sample_ratio).unwrap()
    }

    /// Serves a configuration on its own public address, and operators on a free port.
    pub(crate) fn start_with(config: Config, own: Vec<OwnKind>) -> Result<Self, StartError> {
        Self::serve(config, own, None)
    }

    fn serve(mut config: Config, own: Vec<OwnKind>, sample_ratio: Option<f64>) -> Result<Self, StartError> {
        let of_a_network = config.server.ops_listen.iter_mut().filter(|address| address.tcp().is_some());
        of_a_network.for_each(|address| *address = ANY_PORT.parse().unwrap());
        let app = App::start_with(&config, own, sample_ratio)?;
        let public = app.addresses().iter().find_map(ListenAddress::tcp).expect("it listens on a port");
        let ops = app.ops_address().tcp().expect("it listens on a port");
        let (control, tracker) = (app.control(), app.connections().clone());
        Ok(Self { public: Address(public), ops: Address(ops), control, tracker, run: tokio::spawn(app.run()) })
    }

    /// Waits for the end of the drain.
    pub(crate) async fn ended(self) -> Receipt {
        timeout(PATIENCE, self.run).await.expect("an end of the drain").unwrap()
    }
}

/// Parses a configuration for a program with handlers in Rust.
pub(crate) fn load_config(text: &str) -> Config {
    let file = SourceFile { name: "test.toml".into(), text: text.into() };
    let sources = Sources { file: Some(file), cpus: 2, ..Sources::default() };
    load_pools(&sources).unwrap_or_else(|faults| panic!("{faults}")).config
}

impl Address {
    pub(crate) async fn channel(self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.0)).unwrap();
        endpoint.connect_timeout(PATIENCE).connect().await.unwrap()
    }

    pub(crate) async fn client(self) -> Client {
        WorkerPoolServiceClient::new(self.channel().await).max_decoding_message_size(usize::MAX)
    }

    /// Sends a request over HTTP/1.1 on a new connection.
    pub(crate) async fn http1(self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let stream = TokioIo::new(TcpStream::connect(self.0).await.unwrap());
        let (mut sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    /// Sends a request over HTTP/2 on a new connection.
    pub(crate) async fn http2(self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let stream = TokioIo::new(TcpStream::connect(self.0).await.unwrap());
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    pub(crate) async fn health(self) -> HealthClient<Channel> {
        HealthClient::new(self.channel().await)
    }
}

/// A client of one service, with steps that bring the service into a state.
#[derive(Clone)]
pub(crate) struct Caller(pub(crate) Client);

impl Caller {
    pub(crate) async fn of(address: Address) -> Self {
        Self(address.client().await)
    }

    pub(crate) async fn stats(&self) -> Stats {
        let answer = self.0.clone().stats(StatsRequest::default()).await;
        answer.unwrap().into_inner().stats.unwrap()
    }

    /// Statistics of the only pool.
    pub(crate) async fn pool(&self) -> PoolStats {
        let mut pools = self.stats().await.pools;
        assert_eq!(pools.len(), 1, "{pools:?}");
        pools.remove(0)
    }

    /// Submits a job in a task. Aborting the task cancels the call.
    pub(crate) fn leave(
        &self,
        job: Job,
    ) -> JoinHandle<Result<tonic::Response<waterwheel::proto::SubmitResponse>, tonic::Status>> {
        let mut client = self.0.clone();
        tokio::spawn(async move { client.submit(SubmitRequest { job: Some(job) }).await })
    }

    /// Submits jobs that sleep for a minute, until this number of workers of the only pool is busy.
    pub(crate) async fn occupy(&self, workers: u32) {
        for _ in 0..workers {
            self.leave(job("sleep", "60000"));
        }
        self.until(|pool| pool.in_flight == workers).await;
    }

    /// Submits a job to the only pool, whose workers are busy, and waits until it is queued behind `ahead` others.
    pub(crate) async fn queue(&self, job: Job, ahead: u64) {
        self.leave(job);
        self.until(|pool| queued(pool) == ahead + 1).await;
    }

    /// Polls the statistics of the only pool until `reached`. Returns how long that took.
    pub(crate) async fn until(&self, reached: impl Fn(&PoolStats) -> bool) -> Duration {
        self.until_all(|pools| {
            let [pool] = pools else { panic!("more than one pool: {pools:?}") };
            reached(pool)
        })
        .await
    }

    /// Polls the statistics of all pools, sorted by name, until `reached`. Returns how long that took.
    pub(crate) async fn until_all(&self, reached: impl Fn(&[PoolStats]) -> bool) -> Duration {
        let begin = Instant::now();
        loop {
            let pools = self.stats().await.pools;
            if reached(&pools) {
                return begin.elapsed();
            }
            assert!(begin.elapsed() < PATIENCE, "not reached: {pools:?}");
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A `SubmitRequest` with gRPC's framing.
pub(crate) fn submission(kind: &str, payload: impl Into<Bytes>) -> Vec<u8> {
    framed(&SubmitRequest { job: Some(job(kind, payload)) })
}

/// A message with gRPC's framing.
pub(crate) fn framed(message: &impl Message) -> Vec<u8> {
    frame(0, &message.encode_to_vec())
}

/// The bytes of a message with gRPC's framing. The flag is 1 if they are compressed.
pub(crate) fn frame(flag: u8, message: &[u8]) -> Vec<u8> {
    [&[flag][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

// tidy: real time, because a test polls the state of a server on real sockets.

pub(crate) fn job(kind: &str, payload: impl Into<Bytes>) -> Job {
    Job { kind: kind.into(), payload: payload.into(), ..Job::default() }
}

pub(crate) fn queued(pool: &PoolStats) -> u64 {
    pool.queue.as_ref().unwrap().jobs
}

pub(crate) fn waiting(pool: &PoolStats) -> u64 {
    pool.queue.as_ref().unwrap().waiting
}

pub(crate) fn counts(pool: &PoolStats) -> &JobCounts {
    pool.jobs.as_ref().unwrap()
}
