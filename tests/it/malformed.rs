//! What workers get wrong, as children and attached, in several languages. Each case ends its own job with a status
//! that names the fault, and costs the jobs beside it nothing unless their worker cannot go on. Detached jobs beside it
//! all succeed, and how a bad one ended can be stored.

mod attached;
mod child;

use futures_util::{StreamExt, stream};
use tonic::transport::Channel;
use waterwheel::proto::{
    CreateJobRequest, DetachedJob, Job, JobOptions, JobState, RetryPolicy, SubmitRequest, WaitJobRequest, WhenFull,
    job_service_client::JobServiceClient,
};

use crate::{
    process::PATIENCE,
    refusal::reason,
    service::{Client, Service, job},
    support::Cluster,
};

/// The folder of the cases and of the workers that are children.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/malformed");

/// How the job of a case ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ends {
    Completes,
    /// With this reason and part of the message. Its worker goes on.
    Fails(&'static str, &'static str),
    /// The worker cannot go on, for this reason and with this part of the message.
    Takes(&'static str, &'static str),
    /// Something is to follow that does not come.
    Hangs,
}

/// A malformed message.
struct Case {
    name: &'static str,
    payload: String,
    ends: Ends,
}

/// How a job ended, as the caller or the store says.
#[derive(Debug)]
struct End {
    reason: String,
    message: String,
    output: Vec<u8>,
    content_type: String,
    attempts: usize,
}

/// Jobs beside each case, of which half are detached: few, or as the variable says.
fn jobs_beside() -> usize {
    std::env::var("WATERWHEEL_MALFORMED_JOBS").map_or(6, |jobs| jobs.parse().expect("a number"))
}

/// Serves this configuration of the pool `test` with a store: PostgreSQL where it is installed.
async fn serve(config: &str) -> (Service, Option<Cluster>) {
    let cluster = Cluster::start().await;
    let store = cluster.as_ref().map_or_else(
        || "store.memory = true".to_owned(),
        |cluster| format!("store.url = {:?}", cluster.url("postgres")),
    );
    let config = format!(
        "{store}\nserver.max_payload = \"1MiB\"\ndeadline.default = \"2m\"\n\
         drain = {{ notice = \"0s\", finish = \"20s\", kill = \"1s\" }}\n{config}"
    );
    (Service::start(&config, Vec::new()), cluster)
}

/// Both ways in.
struct Ways {
    client: Client,
    jobs: JobServiceClient<Channel>,
}

impl Ways {
    async fn to(service: &Service) -> Self {
        let channel = service.public.channel().await;
        Self { client: service.public.client().await, jobs: JobServiceClient::new(channel) }
    }

    /// Runs a job that a caller waits for.
    async fn submit(&self, job: Job) -> End {
        let job = Job { when_full: WhenFull::Wait.into(), ..job };
        match self.client.clone().submit(SubmitRequest { job: Some(job) }).await {
            Ok(answer) => {
                let result = answer.into_inner().result.expect("a result");
                let (output, content_type) = (result.output, result.content_type);
                End { reason: "COMPLETED".into(), message: String::new(), output, content_type, attempts: 1 }
            }
            Err(status) => End {
                reason: reason(&status),
                message: status.message().to_owned(),
                output: Vec::new(),
                content_type: String::new(),
                attempts: 1,
            },
        }
    }

    /// Runs a detached job, which may fail once.
    async fn create(&self, job: Job) -> End {
        let retry = RetryPolicy { max_attempts: 1, initial: Some("0.01s".parse().unwrap()), ..RetryPolicy::default() };
        let options = Some(JobOptions { retry: Some(retry), ..JobOptions::default() });
        let request = CreateJobRequest { job: Some(job), options, ..CreateJobRequest::default() };
        let job_id = self.jobs.clone().create_job(request).await.expect("it is stored").into_inner().job_id;
        let ended = async {
            loop {
                let request = WaitJobRequest { job_id: job_id.clone() };
                let job = self.jobs.clone().wait_job(request).await.expect("it is stored").into_inner().job.unwrap();
                if job.state() >= JobState::Succeeded {
                    return job;
                }
            }
        };
        let job = tokio::time::timeout(2 * PATIENCE, ended).await.expect("an end");
        let DetachedJob { attempts, output, output_type: content_type, .. } = job;
        let last = attempts.last().expect("it ran");
        let (reason, message) = (last.outcome.clone(), last.message.clone());
        End { reason, message, output, content_type, attempts: attempts.len() }
    }
}

fn echo() -> Job {
    job("echo", "as it was")
}

impl Case {
    fn check(&self, end: &End) {
        let name = self.name;
        match self.ends {
            Ends::Completes => {
                assert_eq!(end.reason, "COMPLETED", "{name}: {end:?}");
                let content_type = &end.content_type;
                assert!(content_type.len() <= 128 && !content_type.contains(char::is_control), "{name}: {end:?}");
            }
            Ends::Fails(reason, says) | Ends::Takes(reason, says) => {
                assert_eq!(end.reason, reason, "{name}: {end:?}");
                let said = &end.message;
                assert!(said.contains(says) && said.len() <= 4096 && !said.contains('\0'), "{name}: {end:?}");
            }
            Ends::Hangs => {
                let is_named = end.reason == "WORKER_CRASHED" && end.message.contains("announces");
                assert!(is_named || end.reason == "RUN_TIMEOUT", "{name}: {end:?}");
            }
        }
    }
}

/// Runs all cases on one worker with `slots`, each as a call and as a detached job. Returns how many there were that
/// end the worker.
async fn check(service: &Service, cases: &[Case], slots: usize) -> usize {
    let ways = Ways::to(service).await;
    let (mut lost, mut ends) = (0, 0);
    for case in cases {
        let name = case.name;
        let before = ways.submit(echo()).await;
        assert_eq!(before.reason, "COMPLETED", "before {name}: {before:?}");
        let bad = async {
            let run_timeout = (case.ends == Ends::Hangs).then(|| "1s".parse().unwrap());
            let bad = Job { run_timeout, ..job("do", case.payload.clone()) };
            [ways.submit(bad.clone()).await, ways.create(bad).await]
        };
        let beside = stream::iter(0..jobs_beside()).map(async |number| {
            let is_detached = number % 2 == 1;
            let end = if is_detached { ways.create(echo()).await } else { ways.submit(echo()).await };
            let is_done = end.reason == "COMPLETED" && end.output == b"as it was";
            let may_fail = matches!(case.ends, Ends::Takes(reason, _) if reason == end.reason)
                || case.ends == Ends::Hangs && end.reason == "WORKER_CRASHED";
            assert!(is_done || !is_detached && may_fail, "beside {name}: {end:?}");
            usize::from(!is_done)
        });
        let beside = beside.buffer_unordered(8).fold(0, async |sum, lost| sum + lost);
        let (bad, beside) = tokio::join!(bad, beside);
        let mut ends_here = 0;
        for end in &bad {
            case.check(end);
            ends_here += end.attempts * usize::from(matches!(case.ends, Ends::Takes(..) | Ends::Hangs));
        }
        assert!(beside <= ends_here * (slots - 1), "{name}: {beside} calls beside it are lost");
        (lost, ends) = (lost + beside, ends + ends_here);
    }
    assert_eq!(ways.submit(echo()).await.reason, "COMPLETED", "at the end");
    let beside = cases.len() * jobs_beside();
    eprintln!(
        "{slots} slots: of {beside} jobs beside {lost} calls and no detached job are lost, by {ends} ends of a worker"
    );
    ends
}
