//! Every row of the table of statuses, as a real client gets it from each of the three RPCs that submit jobs, and from
//! one of them by HTTP and JSON.
//!
//! A row has a request and the expected error. [`check`] sends the request by `Submit`, `Stream`, `SubmitMany`, and
//! `Submit` in JSON, each to a new service, and compares every part of the status.

mod fields;
mod outcomes;

use std::time::Duration;

use tonic::Code;
use waterwheel::{
    app::OwnKind,
    handler::{BlockingHandler, Context, Handler, Kind, KindOptions},
    model::{FailureCode, HandlerError, Output, Reason},
    proto::Job,
};

use crate::{
    json::caller as json,
    refusal::{Refusal, Way},
    service::{Caller, Service},
};

/// Largest size in bytes of a message and its details. gRPC's C core reports longer ones as RESOURCE_EXHAUSTED.
const MAX_STATUS_BYTES: usize = 3_400;

/// One pool with one worker. With the long reply margin, the server's answer arrives before the caller's deadline.
const ONE_WORKER: &str = r#"
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.echo = { pool = "one", builtin = "echo" }
    server.max_payload = "64KiB"
    server.json = true
    deadline.reply_margin = "400ms"
    drain = { notice = "0s", finish = "10s", kill = "1s" }
    [pool.one]
    workers = 1
    queue = { jobs = 4 }
    cancel_grace = "100ms"
"#;

/// Retry advice in the trailer `grpc-retry-pushback-ms` and in `RetryInfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pushback {
    /// Neither is sent.
    Unsaid,
    /// The trailer is −1: the client must not retry.
    Never,
    /// Both hold a delay.
    After,
}

/// The expected error.
#[derive(Debug, Clone, Copy)]
struct Expected {
    code: Code,
    reason: &'static str,
    execution: &'static str,
    pushback: Pushback,
    /// Keys of the error metadata besides `execution`.
    facts: &'static [&'static str],
    /// Field of `google.rpc.BadRequest`.
    field: Option<&'static str>,
}

/// Metadata of a refused job, which has no id.
const REFUSED: &[&str] = &["kind", "pool"];
/// Metadata of an accepted job.
const ACCEPTED: &[&str] = &["job", "kind", "pool", "queue_ms", "run_ms"];

/// A request and the expected error.
struct Row<'a> {
    config: &'a str,
    job: Option<Job>,
    /// Value of the header `grpc-timeout`. It is set as a header, so that the client itself starts no timer.
    timeout: Option<&'a str>,
    expected: Expected,
}

impl Row<'_> {
    fn of(job: Job, expected: Expected) -> Self {
        Self { config: ONE_WORKER, job: Some(job), timeout: None, expected }
    }
}

/// Sends the row by each RPC to a new service, and compares the errors. Returns them for further checks.
///
/// `before` prepares the service, and `during` runs while the call is open.
async fn check(row: Row<'_>, before: impl AsyncFn(&Caller), during: impl AsyncFn(&Service, &Caller)) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for way in Way::ALL.map(Some).into_iter().chain([None]) {
        let service = Service::start(row.config, own_kinds());
        let caller = Caller::of(service.public).await;
        before(&caller).await;
        let mut headers = vec![("x-request-id", "the-request")];
        headers.extend(row.timeout.map(|timeout| ("grpc-timeout", timeout)));
        let call = async {
            let job = row.job.clone();
            match way {
                Some(way) => way.fail(&caller.0, job, &headers).await,
                None => json::submit(service.public, job, &headers).await.expect_err("a failure"),
            }
        };
        let (refusal, ()) = tokio::join!(call, during(&service, &caller));
        row.expected.compare(way, &refusal, row.job.as_ref());
        refusals.push(refusal);
    }
    refusals
}

/// [`check`] for a row that needs no preparation.
async fn check_alone(row: Row<'_>) -> Vec<Refusal> {
    check(row, async |_| {}, async |_, _| {}).await
}

impl Expected {
    /// `way` is `None` for a call by JSON.
    fn compare(&self, way: impl Into<Option<Way>>, refusal: &Refusal, job: Option<&Job>) {
        let way = way.into();
        let Self { code, reason, execution, pushback, facts, field } = *self;
        let context = format!("{way:?}: {refusal:?}");
        assert_eq!((refusal.code(), refusal.reason().as_str()), (code, reason), "{context}");
        assert!(!refusal.status.message().is_empty(), "{context}");
        let details = refusal.details();
        assert_eq!(details.error_info().unwrap().domain, "waterwheel.dev", "{context}");
        let help = details.help().map(|help| help.links[0].description.as_str()).unwrap_or_default();
        assert_eq!(help, Reason::of(reason).unwrap().help(), "{context}");
        compare_facts(&context, refusal, execution, facts, job);
        let found = details.bad_request().and_then(|request| request.field_violations.first());
        assert_eq!(found.map(|violation| violation.field.as_str()), field, "{context}");
        compare_pushback(&context, refusal, pushback);
        assert_eq!(refusal.request_id(), Some("the-request"), "{context}");
        assert!(refusal.wire_bytes() < MAX_STATUS_BYTES, "{} bytes: {context}", refusal.wire_bytes());
        if way == Some(Way::Stream) {
            assert_eq!(refusal.before_headers, execution == "NOT_STARTED", "{context}");
        }
    }
}

fn compare_facts(context: &str, refusal: &Refusal, execution: &str, facts: &[&str], job: Option<&Job>) {
    let found = refusal.facts();
    assert_eq!(found.get("execution").map(String::as_str), Some(execution), "{context}");
    for fact in facts {
        let value = found.get(*fact).unwrap_or_else(|| panic!("no {fact}: {context}"));
        match *fact {
            "kind" => assert_eq!(Some(value), job.map(|job| &job.kind), "{context}"),
            "pool" => assert_eq!(value, "one", "{context}"),
            "tenant" => assert_eq!(Some(value), job.map(|job| &job.tenant), "{context}"),
            "key" => assert_eq!(value, "pool.one.tenant_share", "{context}"),
            "limit" => assert!(["deadline", "run_timeout"].contains(&value.as_str()), "{context}"),
            "job" => assert!(value.contains('-') && value.len() > 16, "{context}"),
            _ => assert!(value.parse::<f64>().unwrap() >= 0.0, "{context}"),
        }
    }
    // A stopped job may also report how far its stop went (`rung`), which no row promises.
    let others: Vec<_> = found.keys().filter(|key| !facts.contains(&key.as_str())).collect();
    assert!(others.iter().all(|key| *key == "execution" || *key == "rung"), "{others:?}: {context}");
    if execution == "STARTED" && facts.contains(&"queue_ms") {
        assert!(found["queue_ms"].parse::<f64>().unwrap() < 20_000.0, "{context}");
    }
}

fn compare_pushback(context: &str, refusal: &Refusal, pushback: Pushback) {
    let delay = refusal.details().retry_info().and_then(|info| info.retry_delay);
    let longest = Duration::from_millis(7_500);
    assert_eq!(delay.is_some(), pushback == Pushback::After, "{context}");
    assert!(delay.is_none_or(|delay| delay > Duration::ZERO && delay <= longest), "{context}");
    if refusal.inside {
        // A job of `SubmitMany` has no trailers of its own.
        return;
    }
    let trailer = refusal.pushback();
    match pushback {
        Pushback::Unsaid => assert_eq!(trailer, None, "{context}"),
        Pushback::Never => assert_eq!(trailer, Some(-1), "{context}"),
        Pushback::After => {
            let delay_ms = i64::try_from(delay.unwrap().as_millis()).unwrap();
            assert_eq!(trailer, Some(delay_ms), "{context}");
        }
    }
}

/// A handler that fails with the code in its payload, or panics.
struct Wrong;

impl Handler for Wrong {
    async fn handle(&mut self, job: Box<waterwheel::Job>, _: Context) -> Result<Output, HandlerError> {
        let asked = String::from_utf8(job.payload.to_vec()).unwrap();
        match CODES.iter().find(|(name, _, _)| *name == asked) {
            Some((_, code, _)) => Err(HandlerError::new(*code, "it says no")),
            None => panic!("it panics over {asked:?}"),
        }
    }
}

impl BlockingHandler for Wrong {
    fn handle(&mut self, _: Box<waterwheel::Job>, _: Context) -> Result<Output, HandlerError> {
        panic!("it panics on its thread")
    }
}

/// Codes that a handler may fail with.
const CODES: [(&str, FailureCode, Code); 10] = [
    ("unknown", FailureCode::Unknown, Code::Unknown),
    ("invalid", FailureCode::InvalidArgument, Code::InvalidArgument),
    ("not found", FailureCode::NotFound, Code::NotFound),
    ("exists", FailureCode::AlreadyExists, Code::AlreadyExists),
    ("denied", FailureCode::PermissionDenied, Code::PermissionDenied),
    ("precondition", FailureCode::FailedPrecondition, Code::FailedPrecondition),
    ("range", FailureCode::OutOfRange, Code::OutOfRange),
    ("unimplemented", FailureCode::Unimplemented, Code::Unimplemented),
    ("unavailable", FailureCode::Unavailable, Code::Unavailable),
    ("lost", FailureCode::DataLoss, Code::DataLoss),
];

fn own_kinds() -> Vec<OwnKind> {
    let small = KindOptions { max_output: Some(1 << 10), ..KindOptions::default() };
    let again = KindOptions { idempotent: true, ..KindOptions::default() };
    let kinds = [
        Kind::new("wrong", || Wrong),
        Kind::blocking("wrong-blocking", || Wrong),
        Kind::try_new("gone", || Err::<Wrong, _>(HandlerError::invalid("there is none"))),
        Kind::new("small", || Echo).options(small),
        Kind::new("forever", || Forever),
        Kind::new("forever-again", || Forever).options(again),
    ];
    kinds.map(|kind| OwnKind::new("one", kind)).into()
}

struct Echo;

impl Handler for Echo {
    async fn handle(&mut self, job: Box<waterwheel::Job>, _: Context) -> Result<Output, HandlerError> {
        Ok(Output::new(job.payload))
    }
}

/// Runs until it is aborted.
struct Forever;

impl Handler for Forever {
    async fn handle(&mut self, _: Box<waterwheel::Job>, _: Context) -> Result<Output, HandlerError> {
        std::future::pending().await
    }
}
