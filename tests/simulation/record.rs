//! The record of a run: data for the oracle, and a text to compare two runs.

use std::{
    fmt,
    hash::{DefaultHasher, Hasher},
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;
use waterwheel::{app::Receipt, pool::Pools};

use crate::{oracle::Answer, server::NOTICE};

/// Prefix of the request ids of calls.
pub(crate) const CALL: &str = "call-";

/// A handle to the shared record.
#[derive(Clone, Default)]
pub(crate) struct Record(Arc<Mutex<Events>>);

#[derive(Default)]
pub(crate) struct Events {
    pub(crate) trace: String,
    wire: DefaultHasher,
    pub(crate) jobs: Vec<SentJob>,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) lives: Vec<Life>,
    pub(crate) connections: Vec<Connection>,
    pub(crate) disturbances: Vec<Disturbance>,
    /// Longest latency of a message.
    pub(crate) latency: Duration,
    /// Faults that were found during the run.
    pub(crate) faults: Vec<String>,
    pub(crate) callers_left: usize,
    /// Whether servers do not restart after their drain.
    pub(crate) is_over: bool,
}

/// An RPC that submits jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Submit,
    Stream,
    SubmitMany,
}

/// A job that a caller sent.
#[derive(Debug)]
pub(crate) struct SentJob {
    pub(crate) way: Way,
    pub(crate) caller: usize,
    pub(crate) server: usize,
    pub(crate) request_id: String,
    /// Whether its handler records attempts.
    pub(crate) is_recorded: bool,
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
    pub(crate) answer: Option<Answer>,
}

/// One run of a handler.
#[derive(Debug)]
pub(crate) struct Attempt {
    /// Number of the job in `jobs`.
    pub(crate) job: usize,
    pub(crate) life: usize,
    pub(crate) job_id: String,
    pub(crate) begin: Duration,
    pub(crate) end: AttemptEnd,
    pub(crate) end_at: Duration,
}

/// The end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptEnd {
    Running,
    Answered,
    Refused,
    Stopped,
    Panicked,
    /// The future was dropped.
    Dropped,
}

/// A service from its start to its drain or crash.
pub(crate) struct Life {
    pub(crate) server: usize,
    pub(crate) pools: Pools,
    pub(crate) begin: Duration,
    /// `begin` on the clock of its host.
    pub(crate) clock: Instant,
    pub(crate) end: LifeEnd,
}

pub(crate) enum LifeEnd {
    Serving,
    Drained { receipt: Receipt, at: Duration },
    Crashed,
}

/// A connection that a service accepted.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) life: usize,
    pub(crate) port: u16,
    /// Whether the service has written to it.
    pub(crate) has_begun: bool,
    /// When the service sent GOAWAY.
    pub(crate) goaway: Option<Duration>,
    /// Whether the peer closed it first, or a write failed.
    pub(crate) has_failed: bool,
    pub(crate) end: Option<Duration>,
}

/// The virtual time since the start of the simulation.
pub(crate) fn now() -> Duration {
    turmoil::sim_elapsed().unwrap_or_default()
}

impl Record {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Events> {
        self.0.lock()
    }

    /// Adds a line to the trace.
    pub(crate) fn note(&self, line: fmt::Arguments<'_>) {
        self.note_at(now(), line);
    }

    pub(crate) fn note_at(&self, at: Duration, line: fmt::Arguments<'_>) {
        use fmt::Write;
        let mut events = self.lock();
        let wire = events.wire.finish();
        writeln!(events.trace, "{:>8} {wire:016x} {line}", at.as_micros()).unwrap();
    }

    pub(crate) fn fault(&self, fault: String) {
        self.note(format_args!("FAULT {fault}"));
        self.lock().faults.push(fault);
    }

    /// Adds transferred bytes to the hash that every later line of the trace contains.
    pub(crate) fn bytes(&self, connection: u64, direction: u8, bytes: &[u8]) {
        let wire = &mut self.lock().wire;
        wire.write_u64(connection);
        wire.write_u8(direction);
        wire.write_u128(now().as_micros());
        wire.write(bytes);
    }

    /// Begins a disturbance. Returns its number.
    pub(crate) fn disturb(&self, caller: Option<usize>, server: usize, begin: Duration) -> usize {
        self.open(Disturbance { is_drain: false, caller, server, begin, end: None })
    }

    /// Begins the disturbance by a drain. Returns its number.
    pub(crate) fn disturb_by_drain(&self, server: usize) -> usize {
        self.open(Disturbance { is_drain: true, caller: None, server, begin: now(), end: None })
    }

    /// Adds a connection. Returns its number.
    pub(crate) fn connect(&self, life: usize, port: u16) -> usize {
        let mut events = self.lock();
        let (has_begun, has_failed, goaway, end) = (false, false, None, None);
        events.connections.push(Connection { life, port, has_begun, goaway, has_failed, end });
        events.connections.len() - 1
    }

    fn open(&self, disturbance: Disturbance) -> usize {
        let mut events = self.lock();
        events.disturbances.push(disturbance);
        events.disturbances.len() - 1
    }

    pub(crate) fn calm(&self, disturbance: usize, end: Duration) {
        self.lock().disturbances[disturbance].end = Some(end);
    }
}

impl Events {
    /// All jobs of a call.
    pub(crate) fn call_of(&self, request_id: &str) -> &[SentJob] {
        // The id holds the number of the first job of the call. Its other jobs follow that one.
        let first = request_id.strip_prefix(CALL).and_then(|number| number.parse().ok());
        let rest = first.and_then(|first: usize| self.jobs.get(first..)).unwrap_or_default();
        &rest[..rest.iter().take_while(|sent| sent.request_id == request_id).count()]
    }

    /// The latest life of a server.
    pub(crate) fn life_of(&mut self, server: usize) -> Option<&mut Life> {
        self.lives.iter_mut().rev().find(|life| life.server == server)
    }

    /// Whether a server has ended and does not restart.
    pub(crate) fn is_gone(&self, server: usize) -> bool {
        let last = self.lives.iter().rev().find(|life| life.server == server);
        self.is_over && last.is_some_and(|life| matches!(life.end, LifeEnd::Drained { .. }))
    }
}

/// Longest time after a disturbance until both sides have detected broken connections: the keepalive and some margin.
const DETECTED: Duration = Duration::from_millis(350);

/// A period in which calls between a server and its callers may break.
#[derive(Debug)]
pub(crate) struct Disturbance {
    /// Whether it is a drain. A drain answers the callers of all accepted jobs.
    pub(crate) is_drain: bool,
    /// `None` for all callers.
    pub(crate) caller: Option<usize>,
    pub(crate) server: usize,
    pub(crate) begin: Duration,
    pub(crate) end: Option<Duration>,
}

impl Disturbance {
    /// Whether the call may have broken because of it.
    pub(crate) fn excuses(&self, sent: &SentJob) -> bool {
        self.begin <= sent.end && self.may_concern(sent)
    }

    /// Whether it may prevent or delay the message that cancels the call.
    pub(crate) fn may_hide_end_of(&self, sent: &SentJob) -> bool {
        !self.is_drain && self.may_concern(sent)
    }

    /// Whether it may have prevented a connection for this call until `end`.
    pub(crate) fn may_refuse(&self, sent: &SentJob, end: Duration) -> bool {
        let begin = self.begin + if self.is_drain { NOTICE } else { Duration::ZERO };
        self.is_between(sent) && begin <= end && self.end.is_none_or(|end| sent.begin <= end)
    }

    fn may_concern(&self, sent: &SentJob) -> bool {
        self.is_between(sent) && self.end.is_none_or(|end| sent.begin <= end + DETECTED)
    }

    fn is_between(&self, sent: &SentJob) -> bool {
        self.server == sent.server && self.caller.is_none_or(|caller| caller == sent.caller)
    }
}
