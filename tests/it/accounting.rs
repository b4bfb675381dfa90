//! 25,000 submits from 64 connections, with random cancellations, panics, deadlines and failures. Each call ends
//! once, and the counts of the services and of their callers agree.
//!
//! The first of two services drains in the middle of the test. Callers that it refuses continue with the second one, as
//! behind a load balancer, so that the load stays the same during the drain.

// tidy: real time, because callers cancel calls on real sockets after a random time.

use std::{
    collections::{BTreeMap, HashMap},
    error::Error,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{sleep, timeout},
};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;
use waterwheel::{
    app::OwnKind,
    handler::{BlockingHandler, Context, Handler, Kind},
    model::{FailureCode, HandlerError, Output, Reason},
    pool::{Counts, PoolStats, WorkerState},
    proto::{Job, SubmitRequest},
};

use crate::{
    process::PATIENCE,
    service::{Client, Service, job},
};

const CONNECTIONS: usize = 64;
const CALLS: u64 = 25_000;
/// Concurrent calls on each connection.
const CONCURRENT: usize = 2;
const SEED: u64 = 0x5eed_0f1e_d6e2;

/// The drain is short, so that it finishes some jobs and loses others.
const CONFIG: &str = r#"
    server.threads = 2
    drain = { notice = "100ms", finish = "100ms", kill = "1s" }
    [pool.mixed]
    workers = 32
    queue = { jobs = 32 }
    cancel_grace = "20ms"
    max_stuck = 100
"#;

/// A handler that does what its payload says, and counts the runs of each call.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<HashMap<String, usize>>>);

impl Scripted {
    /// The behaviour from the payload, which names the call too.
    fn begin<'a>(&self, job: &'a waterwheel::Job) -> &'a str {
        let (call, behaviour) = std::str::from_utf8(&job.payload).unwrap().split_once(' ').unwrap();
        *self.0.lock().entry(call.to_owned()).or_default() += 1;
        behaviour
    }
}

impl BlockingHandler for Scripted {
    fn handle(&mut self, job: Box<waterwheel::Job>, _: Context) -> Result<Output, HandlerError> {
        match self.begin(&job) {
            "nap" => std::thread::sleep(Duration::from_millis(2)),
            "refuse" => return Err(HandlerError::new(FailureCode::DataLoss, "refused")),
            "panic" => std::panic::resume_unwind(Box::new("scripted panic")),
            _ => {}
        }
        Ok(Output::new(job.payload))
    }
}

impl Handler for Scripted {
    async fn handle(&mut self, job: Box<waterwheel::Job>, cx: Context) -> Result<Output, HandlerError> {
        match self.begin(&job) {
            "yield" => tokio::task::yield_now().await,
            "nap" => sleep(Duration::from_millis(2)).await,
            // It lasts longer than the first phases of the drain.
            "doze" => tokio::select! {
                () = sleep(Duration::from_millis(250)) => {}
                _ = cx.cancelled() => return Err(HandlerError::Stopped),
            },
            "hang" => std::future::pending().await,
            "refuse" => return Err(HandlerError::new(FailureCode::DataLoss, "refused")),
            "panic" => std::panic::resume_unwind(Box::new("scripted panic")),
            _ => {}
        }
        Ok(Output::new(job.payload))
    }
}

/// Number of calls by how they ended, as their callers see it.
type Ends = BTreeMap<String, u64>;

/// State that all callers share.
struct Run {
    /// Number of calls that are still to be made.
    left: AtomicU64,
    /// Notified when half of the calls were made.
    half: Notify,
}

impl Run {
    /// Takes one of the calls that are left, and returns its number.
    fn take(&self) -> Option<u64> {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if taken == Ok(CALLS / 2) {
            self.half.notify_one();
        }
        taken.ok()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_ends_once_and_the_counts_of_services_and_callers_agree() {
    let handler = Scripted::default();
    let [first, second] = [(); 2].map(|()| {
        let (on_task, on_thread) = (handler.clone(), handler.clone());
        let kinds = [Kind::new("task", move || on_task.clone()), Kind::blocking("thread", move || on_thread.clone())];
        Service::start(CONFIG, kinds.map(|kind| OwnKind::new("mixed", kind)).into())
    });
    let pools = [&first, &second].map(|service| service.control.pools().clone());
    let run = Arc::new(Run { left: AtomicU64::new(CALLS), half: Notify::new() });
    let mut callers = JoinSet::new();
    for connection in 0..CONNECTIONS {
        let clients = [first.public.client().await, second.public.client().await];
        for number in 0..CONCURRENT {
            let seed = SEED + (connection * CONCURRENT + number) as u64;
            callers.spawn(call_again(clients.clone(), run.clone(), StdRng::seed_from_u64(seed)));
        }
    }
    run.half.notified().await;
    first.control.drain();
    let all = timeout(PATIENCE * 60, callers.join_all()).await.unwrap_or_else(|_| panic!("{:?} calls left", run.left));
    let mut ends = Ends::new();
    all.into_iter().flatten().for_each(|(end, count)| *ends.entry(end).or_default() += count);
    second.control.drain();
    let lost = [first.ended().await.lost.len(), second.ended().await.lost.len()];
    let stats = pools.map(|pools| pools.all()[0].stats());
    println!("{ends:?}\n{lost:?} lost\n{:?}", stats.each_ref().map(|stats| stats.counts));

    assert_eq!(ends.values().sum::<u64>(), CALLS);
    assert!(handler.0.lock().values().all(|runs| *runs == 1), "a call ran twice");
    let told = ["DRAINED", "DRAIN_KILLED"].iter().filter_map(|name| ends.get(*name)).sum::<u64>();
    assert!(lost[0] as u64 >= told && lost[1] == 0, "{lost:?} in the receipts, {told} callers were told");
    stats.iter().for_each(balance);
    agree(&ends, &stats.map(|stats| stats.counts));
}

/// One caller, which makes one call after another until none is left. It uses the second service once the first drains.
async fn call_again([first, second]: [Client; 2], run: Arc<Run>, mut random: StdRng) -> Ends {
    let mut ends = Ends::new();
    let mut client = first;
    while let Some(number) = run.take() {
        let end = call(&mut client, number, &mut random).await;
        if ["closed", "cut", "DRAINING", "DRAINED", "DRAIN_KILLED"].contains(&end.as_str()) {
            client = second.clone();
        }
        *ends.entry(end).or_default() += 1;
    }
    ends
}

/// Makes one random call, and returns how it ended.
async fn call(client: &mut Client, number: u64, random: &mut StdRng) -> String {
    let behaviour = match random.random_range(0..100_u32) {
        0..58 => "answer",
        58..60 => "doze",
        60..80 => "yield",
        80..88 => "nap",
        88 => "hang",
        89..94 => "refuse",
        _ => "panic",
    };
    // A job that hangs ends only by a cancellation or a deadline.
    let is_endless = behaviour == "hang";
    let kind = if is_endless || random.random_bool(0.8) { "task" } else { "thread" };
    let job = Job {
        criticality: random.random_range(0..4),
        when_full: random.random_range(0..4),
        ordering_key: if random.random_bool(0.05) { "key".into() } else { String::new() },
        ..job(kind, format!("{number} {behaviour}"))
    };
    let mut request = Request::new(SubmitRequest { job: Some(job) });
    let is_cancelled = random.random_bool(0.05) || is_endless && random.random();
    if !is_cancelled && (is_endless || random.random_bool(0.1)) {
        let millis = random.random_range(20..150_u32);
        request.metadata_mut().insert("grpc-timeout", format!("{millis}m").parse().unwrap());
    }
    let patience = Duration::from_micros(random.random_range(0..50_000));
    let call = client.submit(request);
    let ended = if is_cancelled { timeout(patience, call).await } else { Ok(call.await) };
    match ended {
        Ok(Ok(_)) => "OK".into(),
        Ok(Err(status)) => end(&status),
        Err(_) => "left".into(),
    }
}

/// How a call with this status ended. A status without a reason comes from the client and not from the service.
fn end(status: &Status) -> String {
    let Some(info) = status.get_details_error_info() else {
        return match status.code() {
            // The client's timer ended the call first.
            Code::Cancelled | Code::DeadlineExceeded => "timer".into(),
            // The listener is closed, or the client sent the call before it received GOAWAY, and the service did not
            // process it.
            Code::Unavailable => "closed".into(),
            _ if is_go_away(status) => "closed".into(),
            // The drain ended by its deadline, and cut the connection of a client that had not read in time.
            _ if is_cut(status) => "cut".into(),
            code => panic!("{code:?} without a reason: {status:?}"),
        };
    };
    // Only an accepted call has a job id.
    let is_accepted = info.metadata.contains_key("job");
    match info.reason.as_str() {
        "DRAINING" if is_accepted => "DRAINED".into(),
        "EXPIRED_IN_QUEUE" if !is_accepted => "DEADLINE_UNREACHABLE".into(),
        // The deadline passed while the caller waited for queue capacity.
        "RUN_TIMEOUT" if !is_accepted => "QUEUE_FULL".into(),
        _ => info.reason,
    }
}

fn is_go_away(status: &Status) -> bool {
    let causes = std::iter::successors(status.source(), |&error| error.source());
    let mut of_h2 = causes.filter_map(|error| error.downcast_ref::<h2::Error>());
    of_h2.any(|error| error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR))
}

fn is_cut(status: &Status) -> bool {
    let causes = std::iter::successors(status.source(), |&error| error.source());
    let mut of_socket = causes.filter_map(|error| match error.downcast_ref::<h2::Error>() {
        Some(error) => error.get_io(),
        None => error.downcast_ref(),
    });
    // h2 reports the end of a connection with open calls as a broken pipe.
    let cut = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    of_socket.any(|error| cut.contains(&error.kind()))
}

/// Checks that each accepted job ended once: the counts of all outcomes add up to the accepted jobs.
fn balance(stats: &PoolStats) {
    let PoolStats { counts, queued, waiting, in_flight, queued_bytes, workers, .. } = stats;
    assert_eq!(counts.accepted, counts.ended(), "{counts:?}");
    assert_eq!((*queued, *waiting, *in_flight, *queued_bytes), (0, 0, 0, 0), "{stats:?}");
    assert!(workers.iter().all(|worker| worker.state == WorkerState::Stopped), "{workers:?}");
    assert!(counts.completed > CALLS / 5, "the drain was not in the middle of the calls: {counts:?}");
}

/// Checks that callers and services count the same. A call that its caller cancelled, or whose connection was cut, may
/// have any outcome.
fn agree(ends: &Ends, counts: &[Counts]) {
    let sum = |of: &dyn Fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    let of = |names: &[&str]| names.iter().filter_map(|name| ends.get(*name)).sum::<u64>();
    let unseen = of(&["left", "timer", "cut"]);
    let between = |name: &str, seen: u64, counted: u64| {
        assert!(
            (seen..=seen + unseen).contains(&counted),
            "{name}: callers saw {seen}, services counted {counted}, {unseen} calls ended at the caller"
        );
    };
    between("completed", of(&["OK"]), sum(&|counts| counts.completed));
    between("failed", of(&["HANDLER_FAILED"]), sum(&|counts| counts.failed));
    between("panicked", of(&["HANDLER_PANICKED"]), sum(&|counts| counts.panicked));
    between("expired", of(&["RUN_TIMEOUT", "EXPIRED_IN_QUEUE"]), sum(&|counts| counts.expired));
    between("shed", of(&["SHED"]), sum(&|counts| counts.shed));
    between("cancelled", of(&["CANCELLED", "DRAIN_KILLED", "DRAINED"]), sum(&|counts| counts.cancelled));
    for (index, reason) in Reason::REFUSALS.map(Reason::name).into_iter().enumerate() {
        between(reason, of(&[reason]), sum(&|counts| counts.rejected[index]));
    }
    // On a busy machine the callers are slower than the services, which then have nothing to shed.
    let outcomes: [fn(&Counts) -> u64; 4] =
        [|counts| counts.failed, |counts| counts.cancelled, |counts| counts.expired, |counts| counts.panicked];
    assert!(outcomes.iter().all(|of| sum(of) > 0), "an outcome is missing: {counts:?}");
    let counted = sum(&|counts| counts.accepted + counts.rejected.iter().sum::<u64>());
    let reached = CALLS - of(&["closed"]);
    assert!((reached - unseen..=reached).contains(&counted), "{counted} counted, {reached} sent: {ends:?}");
    assert!(of(&["cut"]) <= (CONNECTIONS * CONCURRENT) as u64, "only the drain may cut: {ends:?}");
    let refused = of(&["DRAINING", "closed"]);
    assert!((1..1000).contains(&refused), "the drain refused {refused} calls: {ends:?}");
}
