//! The callers: what they send, and what they were told.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    error::Error,
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rand::{RngExt, rngs::StdRng};
use tokio::{sync::Notify, time::timeout};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;
use waterwheel::proto::SubmitRequest;

use super::server::Ask;
use crate::service::{Client, job};

// tidy: real time, because calls on real sockets are cut off after a time of the caller's own.

/// How calls ended, as their callers see it.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// How many calls ended each way.
    pub(super) ends: BTreeMap<String, u64>,
    /// Jobs that a drain stopped, by the request id of their calls.
    pub(super) lost: HashMap<String, Lost>,
    /// Request ids of the calls since SIGTERM that ended in another way, faster than a drain that stopped their jobs: a
    /// caller that left, a deadline, a panic.
    pub(super) faster: HashSet<String>,
}

/// An accepted job that a drain did not finish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) job: String,
    pub(super) running: bool,
}

/// How a call ended, and for which job where a drain ended it.
#[derive(Debug)]
pub(super) struct End {
    how: String,
    lost: Option<Lost>,
}

impl Tally {
    fn add(&mut self, request_id: String, end: End) {
        if let Some(lost) = end.lost {
            assert_eq!(self.lost.insert(request_id, lost), None);
        }
        *self.ends.entry(end.how).or_default() += 1;
    }

    pub(super) fn merge(mut self, other: Self) -> Self {
        other.ends.into_iter().for_each(|(end, count)| *self.ends.entry(end).or_default() += count);
        self.lost.extend(other.lost);
        self.faster.extend(other.faster);
        self
    }

    pub(super) fn of(&self, end: &str) -> u64 {
        self.ends.get(end).copied().unwrap_or_default()
    }

    pub(super) fn total(&self) -> u64 {
        self.ends.values().sum()
    }

    /// Calls whose callers do not know what a server counted.
    pub(super) fn unseen(&self) -> u64 {
        self.of("left") + self.of("timer")
    }
}

impl End {
    fn plain(how: &str) -> Self {
        Self { how: how.to_owned(), lost: None }
    }

    /// The reason of the status. A status without one was made by the caller's own side.
    fn told(status: &Status) -> Self {
        let Some(info) = status.get_details_error_info() else {
            return Self::plain(match status.code() {
                // The client's own timer was faster.
                Code::Cancelled | Code::DeadlineExceeded => "timer",
                // The listener is closed, or the call was sent while GOAWAY was on its way, and the server did not
                // take it.
                Code::Unavailable => "closed",
                _ if is_go_away(status) => "closed",
                code => panic!("{code:?} without a reason: {status:?}"),
            });
        };
        let job = info.metadata.get("job").cloned();
        match (info.reason.as_str(), job) {
            ("DRAIN_KILLED", Some(job)) => Self { how: info.reason, lost: Some(Lost { job, running: true }) },
            // It had been accepted: a call that was refused has no job.
            ("DRAINING", Some(job)) => Self { how: "DRAINED".into(), lost: Some(Lost { job, running: false }) },
            (reason, _) => Self::plain(reason),
        }
    }

    /// Whether a drain may have stopped the job as well.
    fn may_be_faster(&self) -> bool {
        ["left", "timer", "RUN_TIMEOUT", "HANDLER_PANICKED"].contains(&self.how.as_str())
    }

    /// Whether the service goes away.
    fn turns_away(&self) -> bool {
        ["closed", "DRAINING", "DRAINED", "DRAIN_KILLED"].contains(&self.how.as_str())
    }
}

fn is_go_away(status: &Status) -> bool {
    let causes = std::iter::successors(status.source(), |&error| error.source());
    let mut of_h2 = causes.filter_map(|error| error.downcast_ref::<h2::Error>());
    of_h2.any(|error| error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR))
}

/// Shared by the callers.
pub(super) struct Run {
    /// Calls that are still to be made.
    pub(super) left: AtomicU64,
    /// Told when half of them were made.
    pub(super) half: Notify,
    half_at: u64,
    /// Whether SIGTERM was sent, or is about to be.
    terminated: AtomicBool,
}

impl Run {
    pub(super) fn new(calls: u64) -> Self {
        Self {
            left: AtomicU64::new(calls),
            half: Notify::new(),
            half_at: calls / 2,
            terminated: AtomicBool::new(false),
        }
    }

    /// SIGTERM is sent next.
    pub(super) fn terminate(&self) {
        self.terminated.store(true, Ordering::SeqCst);
    }

    /// Takes one call out of those that are left, and returns its number.
    fn take(&self) -> Option<u64> {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if taken == Ok(self.half_at) {
            self.half.notify_one();
        }
        taken.ok()
    }
}

/// One caller: a call after the other until none is left, with the second service once the first one turns it away.
pub(super) async fn call_again([first, second]: [Client; 2], run: Arc<Run>, mut random: StdRng) -> Tally {
    let mut tally = Tally::default();
    let mut client = first;
    while let Some(number) = run.take() {
        let request_id = format!("call-{number}");
        let end = call(&mut client, &request_id, &mut random).await;
        if end.turns_away() {
            client = second.clone();
        }
        if end.may_be_faster() && run.terminated.load(Ordering::SeqCst) {
            tally.faster.insert(request_id.clone());
        }
        tally.add(request_id, end);
    }
    tally
}

/// One call of the mix, and how it ended.
async fn call(client: &mut Client, request_id: &str, random: &mut StdRng) -> End {
    let ask = match random.random_range(0..100_u32) {
        0..58 => Ask::Answer,
        58..60 => Ask::Doze,
        60..80 => Ask::Yield,
        80..88 => Ask::Nap,
        88 => Ask::Hang,
        89..94 => Ask::Refuse,
        _ => Ask::Panic,
    };
    let mut request = request("mixed", ask, request_id);
    // A job that hangs needs somebody to give it up.
    let cancel = random.random_ratio(1, NonZeroU32::new(20).unwrap().get()) || ask == Ask::Hang && random.random();
    if !cancel && (ask == Ask::Hang || random.random_ratio(1, 10)) {
        let millis = random.random_range(20..150_u32);
        request.metadata_mut().insert("grpc-timeout", format!("{millis}m").parse().unwrap());
    }
    let patience = Duration::from_micros(random.random_range(0..50_000));
    let call = client.submit(request);
    let ended = if cancel { timeout(patience, call).await } else { Ok(call.await) };
    match ended {
        Ok(Ok(_)) => End::plain("OK"),
        Ok(Err(status)) => End::told(&status),
        Err(_) => End::plain("left"),
    }
}

/// A call in the pool `held` whose job never ends by itself.
pub(super) async fn hold(mut client: Client, number: u32) -> Tally {
    let request_id = format!("held-{number}");
    let ask = if number.is_multiple_of(2) { Ask::Hang } else { Ask::Wait };
    let status = client.submit(request("held", ask, &request_id)).await.expect_err("its job does not end");
    let mut tally = Tally::default();
    tally.add(request_id, End::told(&status));
    tally
}

fn request(kind: &str, ask: Ask, request_id: &str) -> Request<SubmitRequest> {
    let mut request = Request::new(SubmitRequest { job: Some(job(kind, vec![ask as u8; 16])) });
    request.metadata_mut().insert("x-request-id", request_id.parse().unwrap());
    request
}
