//! The tenant that sends the worst calls that it can. Its messages are compressed once, so that it costs the machine
//! little itself.

use std::{collections::BTreeMap, io::Write as _, time::Duration};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use waterwheel::proto::{
    CreateJobRequest, CreateJobsRequest, DetachedJobFilter, Job, JobOptions, JobServiceCancelJobRequest,
    JobServiceListJobsRequest, PurgeJobsRequest, RetryJobRequest, WatchJobRequest, job_options::Start,
    job_service_client::JobServiceClient,
};

use crate::{
    Failure,
    child::Server,
    resident,
    tenant::{Calls, Tenant},
};

/// Size of a payload, and of a text.
const LARGE: usize = 4_000_000;
/// Time after which the attacker gives a call up.
const GIVE_UP: Duration = Duration::from_secs(5);
/// Calls at the same time on one connection.
const STREAMS: u64 = 8;

/// What an attack did.
#[derive(Debug, Default)]
pub(crate) struct Attack {
    /// Largest memory of the server, in MiB.
    pub(crate) most_mib: f64,
    /// Number of calls by name and code.
    pub(crate) calls: BTreeMap<String, usize>,
}

/// Creates jobs that end at once, and jobs that stay ready.
pub(crate) async fn fill(tenant: &Tenant, ended: usize, ready: usize) -> Result<(), Failure> {
    let mut client = tenant.jobs().await?;
    create(&mut client, "echo", "x", "e", ended).await?;
    // One runs, and the others wait for its worker.
    create(&mut client, "block", "3600000", "r", ready).await
}

async fn create(
    client: &mut JobServiceClient<Calls>,
    kind: &'static str,
    payload: &'static str,
    prefix: &'static str,
    count: usize,
) -> Result<(), Failure> {
    let (send, sent) = mpsc::channel(1024);
    tokio::spawn(async move {
        for number in 0..count {
            let job = Job { kind: kind.to_owned(), payload: payload.as_bytes().to_vec().into(), ..Job::default() };
            let job_id = format!("{prefix}-{number}");
            if send.send(CreateJobsRequest { job: Some(job), job_id, ..CreateJobsRequest::default() }).await.is_err() {
                break;
            }
        }
    });
    let mut answers = client.create_jobs(ReceiverStream::new(sent)).await?.into_inner();
    while answers.message().await?.is_some() {}
    Ok(())
}

/// Attacks on many connections for a time.
pub(crate) async fn attack(
    tenant: &Tenant,
    connections: usize,
    lasts: Duration,
    server: &Server,
) -> Result<Attack, Failure> {
    let (end, calls, mut tasks) = (Instant::now() + lasts, calls(), JoinSet::new());
    for seed in 0..connections {
        tasks.spawn(connection(server.address, tenant.authorization(), calls.clone(), seed as u64, end));
    }
    let mut attack = Attack::default();
    while Instant::now() < end {
        attack.most_mib = attack.most_mib.max(resident(server.pid)?);
        sleep(Duration::from_millis(50)).await;
    }
    while let Some(ended) = tasks.join_next().await {
        for (call, count) in ended? {
            *attack.calls.entry(call).or_default() += count;
        }
    }
    Ok(attack)
}

/// Calls on one connection, which is opened again when the server closes it.
async fn connection(
    server: std::net::SocketAddr,
    authorization: String,
    calls: Vec<Call>,
    seed: u64,
    end: Instant,
) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    while Instant::now() < end {
        let Ok(Ok(stream)) = timeout(GIVE_UP, TcpStream::connect(server)).await else { continue };
        let Ok((sender, connection)) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await else {
            continue;
        };
        let connection = tokio::spawn(connection);
        let mut tasks = JoinSet::new();
        for slot in 0..STREAMS {
            let random = StdRng::seed_from_u64(seed * STREAMS + slot);
            tasks.spawn(call_until(sender.clone(), authorization.clone(), calls.clone(), random, end));
        }
        while let Some(Ok(ended)) = tasks.join_next().await {
            for (call, count) in ended {
                *counts.entry(call).or_default() += count;
            }
        }
        connection.abort();
    }
    counts
}

/// Calls one after the other, until the end or until the connection is closed.
async fn call_until(
    mut sender: SendRequest<Full<Bytes>>,
    authorization: String,
    calls: Vec<Call>,
    mut random: StdRng,
    end: Instant,
) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    while Instant::now() < end && sender.ready().await.is_ok() {
        let call = &calls[random.random_range(0..calls.len())];
        let ended = timeout(GIVE_UP, call.send(&mut sender, &authorization, &mut random)).await;
        let code = ended.unwrap_or_else(|_| "given up".to_owned());
        *counts.entry(format!("{} {code}", call.name)).or_default() += 1;
    }
    counts
}

/// A call that the attacker makes.
#[derive(Clone)]
struct Call {
    name: &'static str,
    method: &'static str,
    body: Body,
}

#[derive(Clone)]
enum Body {
    /// A compressed message.
    Same(Bytes),
    /// A message about a random job.
    About(fn(String) -> Vec<u8>),
}

impl Call {
    /// The code of the answer.
    async fn send(&self, sender: &mut SendRequest<Full<Bytes>>, authorization: &str, random: &mut StdRng) -> String {
        let body = match &self.body {
            Body::Same(body) => body.clone(),
            Body::About(message) => frame(0, &message(format!("e-{}", random.random_range(0..1_000_000)))),
        };
        let request = Request::post(format!("http://bench/waterwheel.v1.JobService/{}", self.method))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-encoding", "gzip")
            .header("authorization", authorization)
            .body(Full::new(body))
            .expect("valid headers");
        let Ok(answer) = sender.send_request(request).await else { return "connection closed".to_owned() };
        if self.method == "WatchJob" {
            // It does not read.
            sleep(Duration::from_secs(1)).await;
            return "opened".to_owned();
        }
        let (head, body) = answer.into_parts();
        let Ok(body) = body.collect().await else { return "cut off".to_owned() };
        let code = |headers: &http::HeaderMap| headers.get("grpc-status")?.to_str().ok().map(str::to_owned);
        let code = body.trailers().and_then(code).or_else(|| code(&head.headers));
        format!("code {}", code.unwrap_or_else(|| head.status.to_string()))
    }
}

fn calls() -> Vec<Call> {
    let label = |size| DetachedJobFilter {
        label_key: "k".repeat(size),
        label_value: "v".to_owned(),
        ..DetachedJobFilter::default()
    };
    let list = |size| JobServiceListJobsRequest { filter: Some(label(size)), page_size: 1000, ..Default::default() };
    let purge = |size| PurgeJobsRequest { filter: Some(label(size)), ..PurgeJobsRequest::default() };
    let job = |payload: Vec<u8>| Some(Job { kind: "block".to_owned(), payload: payload.into(), ..Job::default() });
    let late = JobOptions {
        start: Some(Start::Delay(prost_types::Duration { seconds: 86_400 * 300, nanos: 0 })),
        ..JobOptions::default()
    };
    let late = CreateJobRequest { job: job(b"1".to_vec()), options: Some(late), ..CreateJobRequest::default() };
    let large = CreateJobRequest { job: job(vec![0; LARGE]), ..CreateJobRequest::default() };
    let watch = WatchJobRequest { job_id: "r-1".to_owned(), from_sequence: 0 };
    let same = |name, method, message: Vec<u8>| Call { name, method, body: Body::Same(packed(&message)) };
    let retry = |job_id| RetryJobRequest { job_id, ..RetryJobRequest::default() }.encode_to_vec();
    let cancel =
        |job_id| JobServiceCancelJobRequest { job_id, ..JobServiceCancelJobRequest::default() }.encode_to_vec();
    vec![
        same("ListJobs with a label of 4 MB", "ListJobs", list(LARGE).encode_to_vec()),
        same("ListJobs of a label that no job has", "ListJobs", list(8).encode_to_vec()),
        same("PurgeJobs with a label of 4 MB", "PurgeJobs", purge(LARGE).encode_to_vec()),
        same("PurgeJobs of a label that no job has", "PurgeJobs", purge(8).encode_to_vec()),
        same("WatchJob that is not read", "WatchJob", watch.encode_to_vec()),
        same("CreateJob of 4 MB", "CreateJob", large.encode_to_vec()),
        same("CreateJob with a late start", "CreateJob", late.encode_to_vec()),
        Call { name: "RetryJob", method: "RetryJob", body: Body::About(retry) },
        Call { name: "CancelJob", method: "CancelJob", body: Body::About(cancel) },
    ]
}

/// A compressed message with gRPC's framing.
fn packed(message: &[u8]) -> Bytes {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(message).expect("memory can be written");
    frame(1, &packed.finish().expect("memory can be written"))
}

fn frame(flag: u8, message: &[u8]) -> Bytes {
    [&[flag][..], &(message.len() as u32).to_be_bytes(), message].concat().into()
}
