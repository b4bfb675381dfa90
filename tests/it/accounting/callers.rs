//! The callers: the calls that they make, and how these end.

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

// tidy: real time, because callers cancel calls on real sockets after a random time.

/// How calls ended, as their callers see it.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Number of calls by how they ended.
    pub(super) ends: BTreeMap<String, u64>,
    /// Jobs that a drain stopped, by request id.
    pub(super) lost: HashMap<String, Lost>,
    /// Request ids of calls after SIGTERM that ended by a cancellation, a deadline or a panic. The drain may have
    /// stopped their jobs at the same time.
    pub(super) faster: HashSet<String>,
}

/// An accepted job that a drain did not finish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) job: String,
    pub(super) running: bool,
}

/// How a call ended, and its job if a drain stopped it.
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

    /// Number of calls whose callers do not know the outcome on the server.
    pub(super) fn unseen(&self) -> u64 {
        self.of("left") + self.of("timer")
    }
}

impl End {
    fn plain(how: &str) -> Self {
        Self { how: how.to_owned(), lost: None }
    }

    /// How a call with this status ended. A status without a reason comes from the client and not from the server.
    fn of(status: &Status) -> Self {
        let Some(info) = status.get_details_error_info() else {
            return Self::plain(match status.code() {
                // The client's timer ended the call first.
                Code::Cancelled | Code::DeadlineExceeded => "timer",
                // The listener is closed, or the client sent the call before it received GOAWAY, and the server did not
                // process it.
                Code::Unavailable => "closed",
                _ if is_go_away(status) => "closed",
                code => panic!("{code:?} without a reason: {status:?}"),
            });
        };
        let job = info.metadata.get("job").cloned();
        match (info.reason.as_str(), job) {
            ("DRAIN_KILLED", Some(job)) => Self { how: info.reason, lost: Some(Lost { job, running: true }) },
            // Only an accepted call has a job id.
            ("DRAINING", Some(job)) => Self { how: "DRAINED".into(), lost: Some(Lost { job, running: false }) },
            (reason, _) => Self::plain(reason),
        }
    }

    /// Whether a drain may have stopped the job as well.
    fn may_be_faster(&self) -> bool {
        ["left", "timer", "RUN_TIMEOUT", "HANDLER_PANICKED"].contains(&self.how.as_str())
    }

    /// Whether the call failed because the server drains.
    fn is_by_drain(&self) -> bool {
        ["closed", "DRAINING", "DRAINED", "DRAIN_KILLED"].contains(&self.how.as_str())
    }
}

fn is_go_away(status: &Status) -> bool {
    let causes = std::iter::successors(status.source(), |&error| error.source());
    let mut of_h2 = causes.filter_map(|error| error.downcast_ref::<h2::Error>());
    of_h2.any(|error| error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR))
}

/// State that all callers share.
pub(super) struct Run {
    /// Number of calls that are still to be made.
    pub(super) left: AtomicU64,
    /// Notified when half of the calls were made.
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

    /// Records that SIGTERM is sent next.
    pub(super) fn terminate(&self) {
        self.terminated.store(true, Ordering::SeqCst);
    }

    /// Takes one of the calls that are left, and returns its number.
    fn take(&self) -> Option<u64> {
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if taken == Ok(self.half_at) {
            self.half.notify_one();
        }
        taken.ok()
    }
}

/// One caller, which makes one call after another until none is left. It uses the second service once the first drains.
pub(super) async fn call_again([first, second]: [Client; 2], run: Arc<Run>, mut random: StdRng) -> Tally {
    let mut tally = Tally::default();
    let mut client = first;
    while let Some(number) = run.take() {
        let request_id = format!("call-{number}");
        let end = call(&mut client, &request_id, &mut random).await;
        if end.is_by_drain() {
            client = second.clone();
        }
        if end.may_be_faster() && run.terminated.load(Ordering::SeqCst) {
            tally.faster.insert(request_id.clone());
        }
        tally.add(request_id, end);
    }
    tally
}

/// Makes one random call, and returns how it ended.
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
    // A job that hangs ends only by a cancellation or a deadline.
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
        Ok(Err(status)) => End::of(&status),
        Err(_) => End::plain("left"),
    }
}

/// A call in the pool `held` whose job never ends by itself.
pub(super) async fn hold(mut client: Client, number: u32) -> Tally {
    let request_id = format!("held-{number}");
    let ask = if number.is_multiple_of(2) { Ask::Hang } else { Ask::Wait };
    let status = client.submit(request("held", ask, &request_id)).await.expect_err("its job does not end");
    let mut tally = Tally::default();
    tally.add(request_id, End::of(&status));
    tally
}

fn request(kind: &str, ask: Ask, request_id: &str) -> Request<SubmitRequest> {
    let mut request = Request::new(SubmitRequest { job: Some(job(kind, vec![ask as u8; 16])) });
    request.metadata_mut().insert("x-request-id", request_id.parse().unwrap());
    request
}
