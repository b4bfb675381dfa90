//! 100,000 submits from 64 connections, with cancels, panics, deadlines and failures at random: each call ends once,
//! and the books of the server and of its callers agree.
//!
//! In the middle the service is drained. Callers that it turns away go on with a second one, as they would behind a load
//! balancer, so that both ends of the drain see the whole load.

use std::{
    collections::BTreeMap,
    error::Error,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::timeout;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;
use waterwheel::{
    app::OwnKind,
    handler::{Context, Handler, Kind},
    model::{FailureCode, HandlerError, Output, RejectionReason},
    pool::{Counts, WorkerState},
    proto::SubmitRequest,
};

use crate::{
    process::PATIENCE,
    service::{Caller, Client, Service, job},
};

const CONNECTIONS: usize = 64;
const CALLS: u64 = 100_000;
/// Calls that each connection has open at once.
const ABREAST: usize = 2;
const WORKERS: usize = 32;
/// What the handler panics with: the one panic that is not worth a line.
const MOODY: &str = "moody";
const SEED: u64 = 0x5eed_0f1e_d6e2;

const CONFIG: &str = r#"
    server.threads = 2
    drain = { notice = "100ms", finish = "20s", kill = "1s" }
    [pool.mixed]
    workers = 32
    queue = { jobs = 128 }
    cancel_grace = "20ms"
"#;

/// What a job asks its handler to do, as its payload says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Ask {
    Answer = b'a',
    Yield = b'y',
    Nap = b'n',
    /// Sleeps past every deadline, and ignores the request to stop.
    Hang = b'h',
    Refuse = b'r',
    Panic = b'p',
}

struct Moody;

impl Handler for Moody {
    async fn handle(&mut self, job: waterwheel::Job, _: Context) -> Result<Output, HandlerError> {
        match job.payload[0] {
            b'y' => tokio::task::yield_now().await,
            b'n' => tokio::time::sleep(Duration::from_millis(2)).await,
            b'h' => std::future::pending().await,
            b'r' => return Err(HandlerError::new(FailureCode::DataLoss, "refused")),
            b'p' => std::panic::panic_any(MOODY),
            _ => {}
        }
        Ok(Output::new(job.payload))
    }
}

// tidy: real time, because calls on real sockets are cut off after a time of the caller's own.

/// How calls ended, as their callers see it.
#[derive(Debug, Default)]
struct Tally(BTreeMap<String, u64>);

impl Tally {
    fn add(&mut self, end: String) {
        *self.0.entry(end).or_default() += 1;
    }

    fn merge(mut self, other: Self) -> Self {
        other.0.into_iter().for_each(|(end, count)| *self.0.entry(end).or_default() += count);
        self
    }

    fn of(&self, end: &str) -> u64 {
        self.0.get(end).copied().unwrap_or_default()
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Shared by the callers.
struct Run {
    /// Calls that are still to be made.
    left: AtomicU64,
    /// Told when half of them were made.
    half: tokio::sync::Notify,
}

impl Run {
    /// Takes one call out of those that are left.
    fn take(&self) -> bool {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if taken == Ok(CALLS / 2) {
            self.half.notify_one();
        }
        taken.is_ok()
    }
}

#[test]
fn every_call_ends_once_and_the_books_agree() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload().downcast_ref::<&str>() != Some(&MOODY) {
            loud(info);
        }
    }));
    runtime.block_on(async {
        let services =
            [(); 2].map(|()| Service::start(CONFIG, vec![OwnKind::new("mixed", Kind::new("moody", || Moody))]));
        let run = Arc::new(Run { left: AtomicU64::new(CALLS), half: tokio::sync::Notify::new() });
        let mut callers = Vec::new();
        for connection in 0..CONNECTIONS {
            let clients = [services[0].public.client().await, services[1].public.client().await];
            for lane in 0..ABREAST {
                let seed = SEED + (connection * ABREAST + lane) as u64;
                callers.push(tokio::spawn(call_again(clients.clone(), Arc::clone(&run), StdRng::seed_from_u64(seed))));
            }
        }
        let drain = async {
            run.half.notified().await;
            services[0].control.drain();
        };
        let (tallies, ()) = tokio::join!(timeout(PATIENCE * 10, join_all(callers)), drain);
        let stats = || services.each_ref().map(|service| service.control.pools().all()[0].stats());
        let tallies = tallies.unwrap_or_else(|_| panic!("{:?} calls left, {:?}", run.left, stats()));
        let tallies = tallies.into_iter().map(Result::unwrap);
        let tally = tallies.fold(Tally::default(), Tally::merge);
        Caller::of(services[1].public).await.until(|pool| pool.in_flight == 0).await;
        let workers = services[1].control.pools().all()[0].stats().workers;
        assert_eq!(workers.iter().filter(|worker| worker.state == WorkerState::Idle).count(), WORKERS, "{workers:?}");
        services[1].control.drain();
        let mut counts = Vec::new();
        for service in services {
            counts.push(end(service).await);
        }
        println!("{tally:?}\n{counts:?}");
        assert_eq!(tally.total(), CALLS);
        agree(&tally, &counts);
        assert!(
            counts.iter().all(|counts| counts.completed > CALLS / 5),
            "the drain was not in the middle: {counts:?}"
        );
    });
}

/// The books of a service whose drain has begun, once it has ended.
async fn end(service: Service) -> Counts {
    let pool = service.control.pools().all()[0].clone();
    let receipt = service.ended().await;
    assert!(receipt.is_clean(), "{receipt:?}");
    let stats = pool.stats();
    balance(&stats.counts);
    assert_eq!((stats.in_flight, stats.queued, stats.waiting, stats.held_bytes), (0, 0, 0, 0));
    // Only a worker that came back from its job can be let go.
    assert!(stats.workers.is_empty(), "{:?}", stats.workers);
    stats.counts
}

/// One caller: a call after the other until none is left, with the second service once the first one turns it away.
async fn call_again([first, second]: [Client; 2], run: Arc<Run>, mut random: StdRng) -> Tally {
    let mut tally = Tally::default();
    let mut client = first;
    while run.take() {
        let end = call(&mut client, &mut random).await;
        if end == "closed" || end == "DRAINING" {
            client = second.clone();
        }
        tally.add(end);
    }
    tally
}

/// One call, and how it ended.
async fn call(client: &mut Client, random: &mut StdRng) -> String {
    let ask = match random.random_range(0..100_u32) {
        0..60 => Ask::Answer,
        60..80 => Ask::Yield,
        80..88 => Ask::Nap,
        88 => Ask::Hang,
        89..94 => Ask::Refuse,
        _ => Ask::Panic,
    };
    let mut request = Request::new(SubmitRequest { job: Some(job("moody", vec![ask as u8; 16])) });
    // A job that hangs needs somebody to give it up.
    let cancel = random.random_ratio(1, NonZeroU32::new(20).unwrap().get()) || ask == Ask::Hang && random.random();
    if !cancel && (ask == Ask::Hang || random.random_ratio(1, 10)) {
        let millis = random.random_range(20..150_u32);
        request.metadata_mut().insert("grpc-timeout", format!("{millis}m").parse().unwrap());
    }
    let call = client.submit(request);
    if !cancel {
        return told(call.await.map(|_| ()));
    }
    match timeout(Duration::from_micros(random.random_range(0..50_000)), call).await {
        Ok(answered) => told(answered.map(|_| ())),
        Err(_) => "left".into(),
    }
}

/// The reason of the status. A status without one was made by the caller's own side.
fn told(answered: Result<(), Status>) -> String {
    let Err(status) = answered else { return "OK".into() };
    match (status.get_details_error_info(), status.code()) {
        (Some(info), _) => info.reason,
        // The client's own timer was faster.
        (None, Code::Cancelled | Code::DeadlineExceeded) => "timer".into(),
        // The listener is closed, or the call was sent while GOAWAY was on its way, and the server did not take it.
        (None, Code::Unavailable) => "closed".into(),
        (None, _) if is_go_away(&status) => "closed".into(),
        (None, code) => panic!("{code:?} without a reason: {status:?}"),
    }
}

fn is_go_away(status: &Status) -> bool {
    let causes = std::iter::successors(status.source(), |&error| error.source());
    let mut of_h2 = causes.filter_map(|error| error.downcast_ref::<h2::Error>());
    of_h2.any(|error| error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR))
}

/// Accepted jobs are the sum of their ends: nothing is left, nothing ended twice.
fn balance(counts: &Counts) {
    assert_eq!(counts.accepted, counts.ended(), "{counts:?}");
    let Counts { completed, failed, cancelled, expired, panicked, .. } = *counts;
    for (end, count) in [completed, failed, cancelled, expired, panicked].into_iter().enumerate() {
        assert!(count > 0, "the mix has no job that ends the way {end}: {counts:?}");
    }
}

/// What callers were told is what the servers counted; where a caller left first, a server counted something, too.
fn agree(tally: &Tally, counts: &[Counts]) {
    let sum = |of: &dyn Fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    let unseen = tally.of("left") + tally.of("timer");
    let between = |name: &str, told: u64, counted: u64| {
        assert!(told <= counted && counted <= told + unseen, "{name}: {told} told, {counted} counted, {unseen} unseen");
    };
    between("completed", tally.of("OK"), sum(&|counts| counts.completed));
    between("failed", tally.of("HANDLER_FAILED"), sum(&|counts| counts.failed));
    between("panicked", tally.of("HANDLER_PANICKED"), sum(&|counts| counts.panicked));
    between("expired", tally.of("RUN_TIMEOUT") + tally.of("EXPIRED_IN_QUEUE"), sum(&|counts| counts.expired));
    between("shed", tally.of("SHED"), sum(&|counts| counts.shed));
    between("cancelled", tally.of("CANCELLED") + tally.of("DRAIN_KILLED"), sum(&|counts| counts.cancelled));
    for (index, reason) in RejectionReason::NAMES.into_iter().enumerate() {
        between(reason, tally.of(reason), sum(&|counts| counts.rejected[index]));
    }
    let seen = sum(&|counts| counts.accepted + counts.rejected.iter().sum::<u64>());
    let reached = tally.total() - tally.of("closed");
    assert!(seen <= reached, "the servers saw {seen} calls of {reached}: {tally:?}");
    assert!(seen + unseen >= reached, "{reached} calls reached the servers, which saw {seen}: {tally:?}");
    let turned_away = tally.of("DRAINING") + tally.of("closed");
    assert!((1..CALLS / 100).contains(&turned_away), "{turned_away} calls were turned away: {tally:?}");
}
