//! `waterwheel bench`: a closed-loop load generator over the ordinary client.

use std::{cell::RefCell, collections::BTreeMap, ops::RangeInclusive, time::Duration};

use clap::{Args, ValueEnum, builder::RangedU64ValueParser};
use futures_util::{StreamExt, future::try_join_all, stream::FuturesUnordered};
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    time::{Instant, sleep, timeout_at},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

use super::{
    access::{Access, ServerArgs},
    connect::{CONNECT_TIMEOUT, Connection},
    console::Console,
    failure::{Exit, Failure},
    flags::{any_duration, duration_in},
    output::name,
};
use crate::{
    model::CODE_NAMES,
    proto::{Job, JobFailure, SubmitManyRequest, SubmitRequest, submit_many_response::Outcome},
};

/// Largest payload, in bytes.
const MAX_PAYLOAD: u64 = 64 << 20;
/// Bounds of times.
const TIMES: RangeInclusive<Duration> = Duration::from_nanos(1)..=Duration::from_secs(31_557_600);
/// Time between two attempts to connect again.
const RECONNECT: Duration = Duration::from_millis(100);
/// Time after the deadline in which late answers are accepted.
const GRACE: Duration = Duration::from_secs(1);
/// Longest latency that is recorded, in nanoseconds: ten minutes.
const MAX_LATENCY: u64 = 600_000_000_000;

/// Latencies of completed calls that are reported.
const QUANTILES: [(&str, f64); 5] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];
/// A debug build's figures are not meaningful.
const BUILD: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

/// Load a server with calls, and measure their latencies.
///
/// The load is a closed loop: each connection keeps a fixed number of calls in flight, and sends the next when an
/// answer comes. The load uses one thread. If the server is faster than that, the figures are those of this command.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Example:
  waterwheel bench echo --duration 5s")]
pub(super) struct BenchArgs {
    /// Kind of the jobs.
    #[arg(default_value = "echo")]
    kind: String,
    /// Method to call.
    #[arg(long, value_enum, default_value_t = Rpc::Submit)]
    rpc: Rpc,
    /// Number of connections.
    #[arg(long, value_name = "N", default_value = "8", value_parser = RangedU64ValueParser::<usize>::new().range(1..=4096))]
    connections: usize,
    /// Calls in flight on each connection; for submit-many, jobs in flight on the one call of each connection.
    #[arg(long, value_name = "N", default_value = "32", value_parser = RangedU64ValueParser::<usize>::new().range(1..=65_536))]
    in_flight: usize,
    /// Size of each payload in bytes.
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = RangedU64ValueParser::<usize>::new().range(0..=MAX_PAYLOAD))]
    payload: usize,
    /// How long to measure.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration_in(TIMES))]
    duration: Duration,
    /// Load before the measurement.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = any_duration)]
    warm_up: Duration,
    /// Deadline of each call. A submit-many call ends this long after the load.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration_in(TIMES))]
    deadline: Duration,
    #[command(flatten)]
    server: ServerArgs,
}

/// A method that runs jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Rpc {
    /// One call per job.
    Submit,
    /// One call per connection.
    SubmitMany,
}

/// A load, and its results so far.
struct Load<'a> {
    args: &'a BenchArgs,
    access: Access,
    job: Job,
    measured_from: Instant,
    end: Instant,
    counts: RefCell<Counts>,
}

/// Results of a load.
struct Counts {
    /// Latencies of completed calls, in nanoseconds.
    latencies: Histogram<u64>,
    /// Failed calls, by the server's reason, or by the name of the code.
    errors: BTreeMap<String, u64>,
    unanswered: u64,
}

/// Runs the load and prints its report.
///
/// SIGTERM and SIGHUP end it, too, like SIGINT.
///
/// # Errors
/// If there is no connection. Failed calls are not an error; the report counts them.
pub(super) async fn run(args: BenchArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let (mut terminate, mut hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    tokio::select! {
        ended = measure(&args, console) => ended,
        _ = terminate.recv() => Ok(Exit::Interrupted),
        _ = hang_up.recv() => Ok(Exit::Interrupted),
    }
}

async fn measure(args: &BenchArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let access = args.server.access.load(&args.server.server)?;
    let open = || Connection::open(&access, CONNECT_TIMEOUT);
    let connections = try_join_all((0..args.connections).map(|_| open())).await?;
    let latencies = Histogram::new_with_bounds(1_000, MAX_LATENCY, 3).expect("the bounds are ordered, the digits few");
    let measured_from = Instant::now() + args.warm_up;
    let load = Load {
        args,
        job: Job { kind: args.kind.clone(), payload: vec![b'w'; args.payload].into(), ..Job::default() },
        measured_from,
        end: measured_from + args.duration,
        counts: RefCell::new(Counts { latencies, errors: BTreeMap::new(), unanswered: 0 }),
        access,
    };
    let connections: FuturesUnordered<_> = connections.into_iter().map(|connection| load.keep_up(connection)).collect();
    let give_up = load.end + args.deadline.saturating_add(GRACE);
    // Calls without an answer by then count as unanswered.
    let _ = timeout_at(give_up, connections.collect::<()>()).await;
    let counts = load.counts.into_inner();
    console.report(&json(args, &counts), || text(args, &counts)).await?;
    Ok(if counts.latencies.is_empty() { Exit::Failed } else { Exit::Done })
}

impl Load<'_> {
    /// Loads one connection until the end of the load, and reconnects if it is lost.
    async fn keep_up(&self, mut connection: Connection) {
        loop {
            match self.args.rpc {
                Rpc::Submit => {
                    let slots = (0..self.args.in_flight).map(|_| self.submit(connection.clone()));
                    slots.collect::<FuturesUnordered<_>>().collect::<()>().await;
                }
                Rpc::SubmitMany => self.submit_many(&connection).await,
            }
            if Instant::now() >= self.end {
                return;
            }
            sleep(RECONNECT).await;
            match Connection::open(&self.access, CONNECT_TIMEOUT).await {
                Ok(opened) => connection = opened,
                Err(_) => self.count(Instant::now(), Err("CONNECT_FAILED".to_owned())),
            }
        }
    }

    /// Makes one call after another until the load ends or the connection is lost.
    async fn submit(&self, connection: Connection) {
        let mut client = connection.worker_pool();
        while Instant::now() < self.end {
            let mut request = Request::new(SubmitRequest { job: Some(self.job.clone()) });
            request.set_timeout(self.args.deadline);
            let sent = self.sent();
            let ended = client.submit(request).await;
            let is_lost = ended.as_ref().is_err_and(is_lost);
            self.answered(sent, ended.map(drop).map_err(|status| reason(&status)));
            if is_lost {
                return;
            }
        }
    }

    /// Keeps one call open with a window of jobs: each answer allows another job.
    async fn submit_many(&self, connection: &Connection) {
        let window = self.args.in_flight;
        let (requests, outgoing) = mpsc::channel(window);
        let mut requests = Some(requests);
        let mut in_flight: Vec<Option<Instant>> = vec![None; window];
        let send = |requests: &Option<mpsc::Sender<_>>, place: usize| {
            let request = SubmitManyRequest { tag: place.to_string(), job: Some(Box::new(self.job.clone())) };
            // The answered job freed its place in the window.
            requests.as_ref()?.try_send(request).ok().map(|()| self.sent())
        };
        (0..window).for_each(|place| in_flight[place] = send(&requests, place));
        let mut call = Request::new(ReceiverStream::new(outgoing));
        call.set_timeout(self.end.saturating_duration_since(Instant::now()).saturating_add(self.args.deadline));
        let ended = async {
            let mut answers = connection.worker_pool().submit_many(call).await?.into_inner();
            while let Some(answer) = answers.message().await? {
                let place = answer.tag.parse::<usize>().ok();
                let sent = place.and_then(|place| Some((place, in_flight.get_mut(place)?.take()?)));
                let Some((place, sent)) = sent else {
                    return Err(Status::internal("an answer to an unknown job"));
                };
                let failure = match answer.outcome {
                    Some(Outcome::Failure(failure)) => Err(reason(&status(failure))),
                    _ => Ok(()),
                };
                self.answered(sent, failure);
                if Instant::now() >= self.end {
                    requests = None;
                }
                in_flight[place] = send(&requests, place);
            }
            Ok(())
        };
        let ended = ended.await.err().map_or_else(|| "CALL_ENDED_EARLY".to_owned(), |status| reason(&status));
        in_flight.into_iter().flatten().for_each(|sent| self.answered(sent, Err(ended.clone())));
    }

    fn sent(&self) -> Instant {
        self.counts.borrow_mut().unanswered += 1;
        Instant::now()
    }

    fn answered(&self, sent: Instant, ended: Result<(), String>) {
        self.counts.borrow_mut().unanswered -= 1;
        self.count(sent, ended);
    }

    /// Counts an answer that arrived during the measurement.
    fn count(&self, sent: Instant, ended: Result<(), String>) {
        let now = Instant::now();
        if now < self.measured_from || now >= self.end {
            return;
        }
        let mut counts = self.counts.borrow_mut();
        match ended {
            Ok(()) => {
                let nanos = u64::try_from((now - sent).as_nanos()).unwrap_or(MAX_LATENCY);
                counts.latencies.saturating_record(nanos);
            }
            Err(reason) => *counts.errors.entry(reason).or_default() += 1,
        }
    }
}

fn json(args: &BenchArgs, counts: &Counts) -> Value {
    let Counts { latencies, errors, unanswered } = counts;
    let micros = QUANTILES.map(|(name, at)| (name.replace('.', "_"), latencies.value_at_quantile(at) as f64 / 1e3));
    let elapsed_s = args.duration.as_secs_f64();
    json!({
        "server": args.server.server.to_string(),
        "rpc": name(&args.rpc),
        "kind": args.kind,
        "connections": args.connections,
        "in_flight_per_connection": args.in_flight,
        "payload_bytes": args.payload,
        "deadline_s": args.deadline.as_secs_f64(),
        "elapsed_s": elapsed_s,
        "completed": latencies.len(),
        "throughput_per_s": latencies.len() as f64 / elapsed_s,
        "latency_us": BTreeMap::from(micros),
        "errors": errors,
        "unanswered": unanswered,
        "build": BUILD,
        "version": env!("CARGO_PKG_VERSION"),
    })
}

fn text(args: &BenchArgs, counts: &Counts) -> String {
    let BenchArgs { server: ServerArgs { server, .. }, kind, connections, in_flight, payload, .. } = args;
    let Counts { latencies, errors, unanswered } = counts;
    let load = format!("{connections} connections × {in_flight} in flight, {payload}-byte payload");
    let points =
        QUANTILES.map(|(name, at)| format!("{name} {:.2?}", Duration::from_nanos(latencies.value_at_quantile(at))));
    let mut lines = vec![
        format!("{} of {kind} on {server}: {load}", name(&args.rpc)),
        format!("throughput  {:.0}/s", latencies.len() as f64 / args.duration.as_secs_f64()),
        format!("latency     {}", points.join("   ")),
    ];
    lines.extend(errors.iter().map(|(reason, count)| format!("error       {reason} × {count}")));
    if *unanswered > 0 {
        lines.push(format!("unanswered  {unanswered} calls, a second past their deadline"));
    }
    lines.push(format!("client      {BUILD} build of {}", env!("CARGO_PKG_VERSION")));
    lines.join("\n")
}

/// Whether the connection failed, rather than the call.
fn is_lost(status: &Status) -> bool {
    std::error::Error::source(status).is_some()
}

fn status(failure: JobFailure) -> Status {
    use prost::Message;
    Status::with_details(Code::from(failure.code), failure.message.clone(), failure.encode_to_vec().into())
}

/// `ErrorInfo.reason` of a status, else the name of its code, such as `DEADLINE_EXCEEDED`.
fn reason(status: &Status) -> String {
    match status.get_details_error_info() {
        Some(info) if !info.reason.is_empty() => info.reason,
        _ if is_lost(status) => "CONNECTION_LOST".to_owned(),
        _ => CODE_NAMES[status.code() as usize].to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;

    #[test]
    fn a_failure_is_named_by_its_reason_else_its_code() {
        let details = ErrorDetails::with_error_info("SHED", "waterwheel.dev", [("pool".to_owned(), "io".to_owned())]);
        let shed = Status::with_error_details(Code::ResourceExhausted, "evicted", details);
        assert_eq!(reason(&shed), "SHED");
        assert_eq!(reason(&Status::deadline_exceeded("late")), "DEADLINE_EXCEEDED");
        let bare = JobFailure { code: 4, ..JobFailure::default() };
        assert_eq!(reason(&status(bare)), "DEADLINE_EXCEEDED");
    }
}
