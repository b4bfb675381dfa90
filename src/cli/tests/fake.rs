//! A server with real sockets that plays a script, for the tests of the commands.

// tidy: real time, because what a slow server does to a client is what is tested, over real sockets.

use std::{
    future::pending,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use clap::{Args, Parser};
use futures_util::{Stream, StreamExt, stream};
use hyper::{rt::Executor, server::conn::http2};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, metadata::MetadataMap, service::Routes};

use super::{
    access::Address,
    console::{Console, Sink},
    failure::{Exit, Failure},
    output::Format,
};
use crate::proto::{
    AdviseRequest, AdviseResponse, CancelJobRequest, CancelJobResponse, DrainRequest, DrainResponse, ExplainRequest,
    ExplainResponse, Job, JobResult, ListJobsRequest, ListJobsResponse, ListSchedulesRequest, ListSchedulesResponse,
    PauseRequest, PauseResponse, ReloadRequest, ReloadResponse, ResizeRequest, ResizeResponse, RestartRequest,
    RestartResponse, ResumeRequest, ResumeResponse, Stats, StatsHistoryRequest, StatsHistoryResponse, StatsRequest,
    StatsResponse, StreamRequest, StreamResponse, SubmitManyRequest, SubmitManyResponse, SubmitRequest, SubmitResponse,
    WatchStatsRequest, WatchStatsResponse, Waterfall, WhoAmIRequest, WhoAmIResponse,
    admin_service_server::{AdminService, AdminServiceServer},
    health::{
        HealthCheckRequest, HealthCheckResponse,
        health_check_response::ServingStatus,
        health_server::{Health, HealthServer},
    },
    worker_pool_service_server::{WorkerPoolService, WorkerPoolServiceServer},
};

type Events<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// What the server answers. A stream without its end in the script stays open.
#[derive(Default)]
pub(crate) struct Script {
    /// Answers to `Submit`; none means that it never answers.
    pub(crate) result: Option<Result<JobResult, Status>>,
    /// Answers to `Stream`, after which the stream ends.
    pub(crate) events: Vec<Result<StreamResponse, Status>>,
    /// Answers to `Stats`, of which the last stays, and to each of `WatchStats`, which ends after it.
    pub(crate) snapshots: Vec<Stats>,
    /// Answers to `Drain`.
    pub(crate) reports: Vec<DrainResponse>,
    /// How `Drain` ends after its reports.
    pub(crate) drain_end: DrainEnd,
    /// Health by service; others are NOT_FOUND. The last of several stays.
    pub(crate) health: Vec<(&'static str, Vec<ServingStatus>)>,
    /// Time before every answer.
    pub(crate) delay: Duration,
}

/// How the script of `Drain` ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum DrainEnd {
    /// The stream ends well.
    #[default]
    Closed,
    /// The connection goes away.
    Cut,
}

/// What the server saw.
#[derive(Default)]
pub(crate) struct Received {
    /// The jobs of `Submit` and `Stream`, with their metadata.
    pub(crate) jobs: Vec<(Job, MetadataMap)>,
    /// The pools that `Stats` and `WatchStats` asked for, with the interval.
    pub(crate) stats: Vec<(String, u32)>,
}

/// The line of one command, with the format that all commands have.
#[derive(Debug, Parser)]
pub(crate) struct Line<A: Args> {
    #[command(flatten)]
    pub(crate) args: A,
    #[arg(long = "output", default_value = "text")]
    pub(crate) format: Format,
}

/// What a command wrote and how it ended.
pub(crate) struct Ran {
    pub(crate) exit: Exit,
    pub(crate) out: Vec<u8>,
    pub(crate) err: String,
    pub(crate) seen: Received,
}

impl Ran {
    /// Standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.out.clone()).expect("the output is text")
    }
}

/// Who reads the output of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadBy {
    /// A program, on both streams.
    Program,
    /// A person, on both streams.
    Person,
    /// A file takes the output, and a person reads the rest.
    FileAndPerson,
}

/// Serves the script, runs the command against it, and gathers what came of it.
pub(crate) async fn run<F>(script: Script, read_by: ReadBy, format: Format, command: F) -> Ran
where
    F: AsyncFnOnce(Address, &mut Console<'_>) -> Result<Exit, Failure>,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = address_of(listener.local_addr().unwrap());
    let server =
        Arc::new(Play { script, seen: Mutex::default(), checks: Mutex::default(), cut: CancellationToken::new() });
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let exit = {
        let mut console = Console {
            format,
            out: match read_by {
                ReadBy::Person => Sink::terminal(&mut out),
                ReadBy::Program | ReadBy::FileAndPerson => Sink::pipe(&mut out),
            },
            err: match read_by {
                ReadBy::Program => Sink::pipe(&mut err),
                ReadBy::Person | ReadBy::FileAndPerson => Sink::terminal(&mut err),
            },
        };
        let client = async {
            match command(address, &mut console).await {
                Ok(exit) => exit,
                Err(failure) => console.fail(&failure).await,
            }
        };
        tokio::select! {
            exit = client => exit,
            () = serve(listener, Arc::clone(&server)) => unreachable!("it serves for ever"),
        }
    };
    let seen = std::mem::take(&mut *server.seen.lock());
    Ran { exit, out, err: String::from_utf8(err).expect("what goes to standard error is text"), seen }
}

/// An address at which nothing listens.
pub(crate) async fn closed_address() -> Address {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    address_of(listener.local_addr().unwrap())
}

/// A result with this output, 0.4 ms in the queue and 1503 ms of run.
pub(crate) fn result(output: &'static [u8]) -> JobResult {
    JobResult {
        job_id: "j1".to_owned(),
        output: output.into(),
        content_type: "text/plain".to_owned(),
        waterfall: Some(waterfall()),
    }
}

/// A budget of 2 s, 0.4 ms in the queue and 1503 ms of run.
pub(crate) fn waterfall() -> Waterfall {
    Waterfall { budget_seconds: 2.0, queue_seconds: 0.0004, run_seconds: 1.503, left_seconds: 0.4966, worker: 3 }
}

struct Play {
    script: Script,
    seen: Mutex<Received>,
    checks: Mutex<usize>,
    cut: CancellationToken,
}

/// Serves without the timer of tonic's own server, which would answer in the script's place.
async fn serve(listener: TcpListener, play: Arc<Play>) {
    let executor = TokioExecutor::new();
    let routes = Routes::new(
        WorkerPoolServiceServer::from_arc(Arc::clone(&play))
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX),
    )
    .add_service(AdminServiceServer::from_arc(Arc::clone(&play)))
    .add_service(HealthServer::from_arc(Arc::clone(&play)))
    .prepare();
    loop {
        let (socket, _) = listener.accept().await.expect("the listener is open");
        let connection = http2::Builder::new(executor.clone())
            .serve_connection(TokioIo::new(socket), TowerToHyperService::new(routes.clone()));
        let cut = play.cut.clone();
        executor.execute(async move {
            tokio::select! {
                ended = connection => drop(ended),
                () = cut.cancelled() => {}
            }
        });
    }
}

fn address_of(socket: SocketAddr) -> Address {
    socket.to_string().parse().unwrap()
}

fn played<T: Send + 'static>(items: Vec<Result<T, Status>>) -> Response<Events<T>> {
    Response::new(stream::iter(items).boxed())
}

impl Play {
    async fn arrived(&self, job: Option<Job>, metadata: MetadataMap) {
        let job = job.expect("the client sends a job");
        self.seen.lock().jobs.push((job, metadata));
        tokio::time::sleep(self.script.delay).await;
    }
}

#[tonic::async_trait]
impl WorkerPoolService for Play {
    type StreamStream = Events<StreamResponse>;
    type SubmitManyStream = Events<SubmitManyResponse>;
    type WatchStatsStream = Events<WatchStatsResponse>;

    async fn submit(&self, request: Request<SubmitRequest>) -> Result<Response<SubmitResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        self.arrived(message.job, metadata).await;
        match self.script.result.clone() {
            Some(result) => {
                let result = Some(result?);
                Ok(Response::new(SubmitResponse { result }))
            }
            None => pending().await,
        }
    }

    async fn stream(&self, request: Request<StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        let (metadata, _, message) = request.into_parts();
        self.arrived(message.job, metadata).await;
        Ok(played(self.script.events.clone()))
    }

    async fn submit_many(
        &self,
        _: Request<Streaming<SubmitManyRequest>>,
    ) -> Result<Response<Self::SubmitManyStream>, Status> {
        Err(Status::unimplemented("no command submits many"))
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        let pool = request.into_inner().pool;
        let mut seen = self.seen.lock();
        let turn = seen.stats.len();
        seen.stats.push((pool, 0));
        let snapshots = &self.script.snapshots;
        let stats = snapshots.get(turn).or(snapshots.last()).cloned();
        Ok(Response::new(StatsResponse { stats }))
    }

    async fn watch_stats(
        &self,
        request: Request<WatchStatsRequest>,
    ) -> Result<Response<Self::WatchStatsStream>, Status> {
        let WatchStatsRequest { pool, interval_ms } = request.into_inner();
        self.seen.lock().stats.push((pool, interval_ms));
        let snapshot = |stats: &Stats| {
            let stats = Some(stats.clone());
            Ok(WatchStatsResponse { stats })
        };
        Ok(played(self.script.snapshots.iter().map(snapshot).collect()))
    }
}

#[tonic::async_trait]
impl AdminService for Play {
    type DrainStream = Events<DrainResponse>;

    async fn explain(&self, _: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        Err(Status::unimplemented("no script explains"))
    }

    async fn list_schedules(
        &self,
        _: Request<ListSchedulesRequest>,
    ) -> Result<Response<ListSchedulesResponse>, Status> {
        Err(Status::unimplemented("no script has schedules"))
    }

    async fn who_am_i(&self, _: Request<WhoAmIRequest>) -> Result<Response<WhoAmIResponse>, Status> {
        Err(Status::unimplemented("no script knows callers"))
    }

    async fn list_jobs(&self, _: Request<ListJobsRequest>) -> Result<Response<ListJobsResponse>, Status> {
        Err(Status::unimplemented("no script lists jobs"))
    }

    async fn stats_history(&self, _: Request<StatsHistoryRequest>) -> Result<Response<StatsHistoryResponse>, Status> {
        Err(Status::unimplemented("no script has a history"))
    }

    async fn reload(&self, _: Request<ReloadRequest>) -> Result<Response<ReloadResponse>, Status> {
        Err(Status::unimplemented("no script reloads"))
    }

    async fn advise(&self, _: Request<AdviseRequest>) -> Result<Response<AdviseResponse>, Status> {
        Err(Status::unimplemented("no script advises"))
    }

    async fn restart(&self, _: Request<RestartRequest>) -> Result<Response<RestartResponse>, Status> {
        Err(Status::unimplemented("no script restarts"))
    }

    async fn pause(&self, _: Request<PauseRequest>) -> Result<Response<PauseResponse>, Status> {
        Err(Status::unimplemented("no script pauses"))
    }

    async fn resume(&self, _: Request<ResumeRequest>) -> Result<Response<ResumeResponse>, Status> {
        Err(Status::unimplemented("no script resumes"))
    }

    async fn resize(&self, _: Request<ResizeRequest>) -> Result<Response<ResizeResponse>, Status> {
        Err(Status::unimplemented("no script resizes"))
    }

    async fn cancel_job(&self, _: Request<CancelJobRequest>) -> Result<Response<CancelJobResponse>, Status> {
        Err(Status::unimplemented("no script cancels"))
    }

    async fn drain(&self, _: Request<DrainRequest>) -> Result<Response<Self::DrainStream>, Status> {
        let reports = stream::iter(self.script.reports.clone().into_iter().map(Ok));
        let cut = self.cut.clone();
        let end: Events<DrainResponse> = match self.script.drain_end {
            DrainEnd::Closed => stream::empty().boxed(),
            DrainEnd::Cut => stream::once(async move {
                // The reports reach the client before the connection goes.
                tokio::time::sleep(Duration::from_millis(50)).await;
                cut.cancel();
                pending().await
            })
            .boxed(),
        };
        Ok(Response::new(reports.chain(end).boxed()))
    }
}

#[tonic::async_trait]
impl Health for Play {
    type WatchStream = Events<HealthCheckResponse>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        tokio::time::sleep(self.script.delay).await;
        let service = request.into_inner().service;
        let (_, states) = self
            .script
            .health
            .iter()
            .find(|(name, _)| *name == service)
            .ok_or_else(|| Status::not_found("no such service"))?;
        let mut checks = self.checks.lock();
        let state = states[(*checks).min(states.len() - 1)];
        *checks += 1;
        Ok(Response::new(HealthCheckResponse { status: state as i32 }))
    }

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("no command watches health"))
    }
}
