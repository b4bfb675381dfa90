//! What a handler calls says "not now": the job waits, and with it the other jobs of its limit key or its kind.

// tidy: real time, because the fake API counts calls in windows of time.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::Instant;
use waterwheel::{
    Job, Output,
    app::OwnKind,
    handler::{Context, Handler, Kind, KindOptions},
    model::{FailureCode, HandlerError, KindLimits, Limit, Limiter},
    proto::{self, CreateJobRequest, JobState, explain_response::State},
};

use crate::{
    detached::{Jobs, work},
    jobs::explain,
    process::{Process, until},
    refusal::Refusal,
    service::{Caller, Service, job},
    support::Cluster,
};

/// Calls that the API takes in each window.
const QUOTA: usize = 150;
const WINDOW: Duration = Duration::from_millis(300);
const HOUR: Duration = Duration::from_secs(3600);

/// An API with a quota for each customer. Beyond it, it answers 429 with `Retry-After`.
#[derive(Default)]
struct Api(Mutex<BTreeMap<String, Account>>);

#[derive(Default)]
struct Account {
    served: usize,
    refused: usize,
    /// Calls of the window, and its end.
    window: Option<(usize, Instant)>,
}

impl Api {
    /// The time of `Retry-After` if the call is refused.
    fn call(&self, customer: &str) -> Result<(), Duration> {
        let (mut accounts, now) = (self.0.lock(), Instant::now());
        let account = accounts.entry(customer.to_owned()).or_default();
        if customer == "suspended" {
            account.refused += 1;
            return Err(HOUR);
        }
        let (calls, end) = account.window.filter(|(_, end)| *end > now).unwrap_or((0, now + WINDOW));
        account.window = Some((calls + 1, end));
        if calls >= QUOTA && customer == "busy" {
            account.refused += 1;
            return Err(end - now);
        }
        account.served += 1;
        Ok(())
    }

    fn counts(&self, customer: &str) -> (usize, usize) {
        self.0.lock().get(customer).map_or((0, 0), |account| (account.served, account.refused))
    }
}

struct Calls(Arc<Api>);

impl Handler for Calls {
    async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        self.0.call(&job.limit_key).map_err(|after| {
            let error = HandlerError::new(FailureCode::Unavailable, "429 Too Many Requests");
            error.retry_after(after).uncounted().holding(Limiter::KeyHold)
        })?;
        Ok(Output::default())
    }
}

fn of(customer: &str) -> CreateJobRequest {
    let job = proto::Job { limit_key: customer.to_owned(), ..job("call", "x") };
    CreateJobRequest { job: Some(job), ..CreateJobRequest::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_api_that_says_429_is_left_alone_and_other_keys_go_on() {
    let cluster = Cluster::start().await;
    let shared = cluster.as_ref().map(|cluster| format!("store.url = \"{}\"", cluster.url("postgres")));
    let dir = tempfile::TempDir::new().unwrap();
    let file = format!("store.path = \"{}\"", dir.path().join("jobs.db").display());
    for store in ["store.memory = true".to_owned(), file].into_iter().chain(shared) {
        let api = Arc::<Api>::default();
        let one = Limit { concurrency: Some(std::num::NonZeroU32::MIN), rate: None };
        let limits = KindLimits { per_key: one, ..KindLimits::default() };
        let handler = Arc::clone(&api);
        let kind = Kind::new("call", move || Calls(Arc::clone(&handler)));
        let kind = kind.options(KindOptions { limits, ..KindOptions::default() });
        let service = Service::start(&format!("{store}\npool.one.workers = 4"), vec![OwnKind::new("one", kind)]);
        let jobs = Jobs::at(service.public).await;

        // A customer whose calls are refused for an hour takes no room from the others, and no attempt.
        let mut suspended = Vec::new();
        for _ in 0..40 {
            suspended.push(jobs.created(of("suspended")).await);
        }
        until("a refusal", async || api.counts("suspended").1 > 0).await;
        let mut others = Vec::new();
        for number in 0..400 {
            others.push(jobs.created(of(if number % 4 == 0 { "calm" } else { "busy" })).await);
        }
        for id in &others {
            let ended = jobs.ended(id).await;
            assert_eq!((ended.state(), ended.failures), (JobState::Succeeded, 0), "{store}: {ended:?}");
        }
        assert_eq!(api.counts("calm"), (100, 0), "{store}");
        let (served, refused) = api.counts("busy");
        assert_eq!(served, 300, "{store}");
        assert!((refused.max(1) - 1) * 100 <= served, "{store}: {refused} of {served} calls were refused");
        assert_eq!(api.counts("suspended"), (0, 1), "{store}: the queue calls again");

        until("all wait", async || jobs.get(&suspended[39]).await.state() == JobState::Scheduled).await;
        for id in &suspended {
            let waits = jobs.get(id).await;
            assert_eq!((waits.state(), waits.failures), (JobState::Scheduled, 0), "{store}: {waits:?}");
        }
        let said = explain(service.ops, &suspended[39]).await;
        let Some(State::Stored(state)) = &said.state else { panic!("{said:?}") };
        assert_eq!(state.detail, "its kind or its limit key is held by its handler", "{store}");
        let left = SystemTime::try_from(state.until.unwrap()).unwrap().duration_since(SystemTime::now()).unwrap();
        assert!(HOUR / 2 < left && left <= HOUR, "{store}: {left:?}");

        // Callers that wait are told to come back, without a call.
        let caller = Caller::of(service.public).await;
        let refusal = caller.leave(of("suspended").job.unwrap()).await.unwrap().unwrap_err();
        let refusal = Refusal::of_call(refusal, true);
        assert_eq!((refusal.reason(), &*refusal.facts()["limit"]), ("LIMIT_EXCEEDED".to_owned(), "key_hold"));
        assert_eq!(refusal.pushback(), Some(60_000), "the longest retry delay");
        assert_eq!(api.counts("suspended"), (0, 1), "{store}");
    }
}

const PROGRAMS: &str = r#"
    store.memory = true
    [pool.one]
    workers = 2
    [kind.do]
    pool = "one"
    program = "worker"
    [kind.exec]
    pool = "one"
    exec = ["/bin/sh", "-c", "exit 75"]
    exit_codes = { "75" = { later = "1h", scope = "KIND" } }
    limit = { concurrency = 2 }
    [program.worker]
    command = ["/usr/bin/python3", "-u", "WORKER"]
    start_timeout = "60s"
"#;

#[tokio::test]
async fn a_program_says_later_by_a_message_or_by_its_exit_code() {
    let worker = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/programs/worker.py");
    let process = Process::serve(&PROGRAMS.replace("WORKER", worker)).await;
    let jobs = Jobs::of(&process).await;
    // More than the longest delay.
    let later = r#"failed {"code":"UNAVAILABLE","message":"later","retry_after_ms":1e12,"counts":false}"#;
    let counted = r#"failed {"code":"NOT_FOUND","retry_after_ms":3600000}"#;
    let at = SystemTime::now();
    for (kind, payload, failures) in [("do", later, 0), ("do", counted, 1), ("exec", "", 0)] {
        let id = jobs.created(work(kind, payload)).await;
        until("an attempt", async || jobs.get(&id).await.state() == JobState::Scheduled).await;
        let waits = jobs.get(&id).await;
        assert_eq!((waits.failures, waits.attempts.len()), (failures, 1), "{waits:?}");
        let due = SystemTime::try_from(waits.due_time.unwrap()).unwrap();
        let after = due.duration_since(at).unwrap();
        assert!((HOUR..HOUR + Duration::from_secs(60)).contains(&after), "{after:?}: {waits:?}");
    }
    let ended = Caller::of(process.public).await.leave(job("do", later)).await.unwrap();
    assert_eq!(Refusal::of_call(ended.unwrap_err(), true).pushback(), Some(60_000), "the longest retry delay");
    let ended = Caller::of(process.public).await.leave(job("exec", "")).await.unwrap();
    let refusal = Refusal::of_call(ended.unwrap_err(), true);
    assert_eq!(&*refusal.facts()["limit"], "hold", "{refusal:?}");
    // The store finds out by the first of these jobs, and is not asked for the second one.
    let first = jobs.created(work("exec", "")).await;
    until("a delay", async || jobs.get(&first).await.state() == JobState::Scheduled).await;
    let second = jobs.created(work("exec", "")).await;
    for (id, words) in [(first, "its kind or its limit key is held"), (second, "its kind is held")] {
        let said = process.run(&format!("explain {id}")).await.out;
        assert!(said.contains(&format!("{words} by its handler, until 20")), "{said}");
    }
}
