//! The state changes of a job, one method each. Stores load a record, change it, and save it.

use std::mem;

use super::{
    Attempt, Change, Claimed, JobRecord, JobState, NewJob, Next, SessionId, Settle, Start, StoreError, Timestamp,
    Token, pattern, retry::MAX_CRASHES,
};
use crate::model::{Code, Output, Reason};

/// Attempts that a job record keeps.
const MAX_ATTEMPTS_KEPT: usize = 10;
/// Longest stored message of an attempt, in bytes.
const MAX_MESSAGE: usize = 4096;

impl JobRecord {
    /// A job that was just accepted. It is scheduled until [`enter`](Self::enter).
    pub(super) fn new(request: NewJob, now: Timestamp, row: i64) -> Self {
        let due_at = match request.start {
            Start::Now => now,
            Start::At(time) => time.max(now),
            Start::After(delay) => now.plus(delay),
            Start::Group { .. } => Timestamp::MAX,
        };
        Self {
            created_at: now,
            due_at,
            payload_bytes: request.job.payload.len() as u64,
            row,
            place: row,
            digest: request.digest(),
            request,
            ..Self::default()
        }
    }

    /// Whether it must get its ordering key before it is ready. A job that waits for its next attempt has its key
    /// already.
    pub(crate) fn needs_key(&self) -> bool {
        self.request.ordering_key().is_some() && !self.holds_key
    }

    /// Takes its ordering key if that is free. Returns whether it may go on.
    pub(super) fn take_key(&mut self, key_is_held: bool) -> bool {
        self.holds_key |= self.request.ordering_key().is_some() && !key_is_held;
        !self.needs_key()
    }

    /// Becomes ready at `place`, or blocked.
    pub(super) fn enter(&mut self, may_run: bool, place: i64) {
        self.state = if may_run { JobState::Ready } else { JobState::Blocked };
        self.place = place;
    }

    /// Whether it counts for the limit of its limit key.
    pub(super) fn has_slot(&self) -> bool {
        matches!(self.state, JobState::Ready | JobState::Running)
    }

    /// Whether it was taken last when a limit let it not begin.
    pub(super) fn was_held(&self) -> bool {
        self.attempts.last().is_some_and(|attempt| attempt.outcome == Some(Reason::LimitExceeded))
    }

    /// Whether it has expired.
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.request.expire_at.is_some_and(|end| end <= now)
    }

    pub(super) fn lease(&mut self, session: SessionId, now: Timestamp) {
        self.state = JobState::Running;
        self.session = Some(session);
        self.starts += 1;
        self.started_at = Some(now);
    }

    /// The token of its running attempt.
    pub(super) fn token(&self) -> Option<Token> {
        self.session.map(|session| self.request.token(self.row, self.starts, session))
    }

    /// The leased job for its session. `request` includes the payload.
    pub(super) fn claimed(self) -> Option<Claimed> {
        let token = self.token()?;
        let Self { request, failures, crashes, .. } = self;
        Some(Claimed { token, request, failures, crashes })
    }

    /// Whether another lost lease makes it a dead letter. It may be the job that ends its servers, so it runs beside no
    /// other such job.
    pub(super) fn is_suspect(&self) -> bool {
        self.losses + 1 >= MAX_CRASHES
    }

    /// Ends its attempt with `end`, whose token is valid.
    pub(super) fn settle(&mut self, end: &Settle, now: Timestamp) {
        self.keep_attempt(now, &end.worker, Some(end.reason), end.code, &end.message);
        if matches!(end.next, Next::Failed | Next::Retry { .. }) {
            self.failures += 1;
            self.crashes = if end.reason == Reason::WorkerCrashed { self.crashes + 1 } else { 0 };
        }
        if end.next != Next::GiveBack {
            self.losses = 0;
        }
        match &end.next {
            Next::Succeeded(output) => {
                self.output_bytes = output.bytes.len() as u64;
                self.output = output.clone();
                self.end(JobState::Succeeded, now);
            }
            Next::Failed => self.end(JobState::Failed, now),
            Next::Cancelled => self.end(JobState::Cancelled, now),
            Next::Retry { .. } | Next::Later { .. } | Next::GiveBack if self.cancel_requested => {
                self.end(JobState::Cancelled, now)
            }
            Next::Retry { after } | Next::Later { after } => {
                self.due_at = now.plus(*after);
                self.state = JobState::Scheduled;
                self.session = None;
            }
            Next::GiveBack => {
                self.crashes += u32::from(matches!(end.reason, Reason::WorkerCrashed | Reason::WorkerLost));
                self.give_back();
            }
        }
    }

    /// Takes it back from a session whose lease has ended. Like crashes, lost leases in a row make it a dead letter.
    pub(super) fn lose_lease(&mut self, now: Timestamp) {
        self.losses += 1;
        if self.losses >= MAX_CRASHES && !self.cancel_requested {
            let message = format!("the lease was lost {MAX_CRASHES} times in a row: the job may end its servers");
            self.keep_attempt(now, "", None, 0, &message);
            self.end(JobState::Failed, now);
        } else {
            self.keep_attempt(now, "", None, 0, "the lease was lost");
            self.release(now);
        }
    }

    /// Takes it back from a session that has not begun to run it.
    pub(super) fn release(&mut self, now: Timestamp) {
        if self.cancel_requested { self.end(JobState::Cancelled, now) } else { self.give_back() }
    }

    /// Makes a job that cannot be read a dead letter.
    pub(super) fn set_aside(&mut self, now: Timestamp) {
        let fault = self.fault.unwrap_or_default();
        let message = format!("unreadable: row {} of the store: {fault}", self.row);
        self.keep_attempt(now, "", Some(Reason::StoreUnavailable), Code::Internal as i32, &message);
        self.end(JobState::Failed, now);
    }

    /// Notes as a fault that the payload is not the one that was accepted.
    pub(super) fn check_payload(&mut self) {
        if self.request.digest() != self.digest {
            self.fault.get_or_insert("its payload is damaged");
        }
    }

    pub(super) fn end(&mut self, state: JobState, now: Timestamp) {
        self.state = state;
        self.ended_at = Some(now);
        self.session = None;
        self.cancel_requested = false;
    }

    /// Releases its ordering key if it has ended. Returns whether it held the key, so that the next job may run.
    pub(super) fn release_key(&mut self) -> bool {
        self.state.is_ended() && mem::take(&mut self.holds_key)
    }

    pub(super) fn cancel(&mut self, now: Timestamp) -> Change {
        match self.state {
            state if state.is_ended() => Change::WrongState(state),
            JobState::Running => {
                self.cancel_requested = true;
                Change::Requested
            }
            _ => {
                self.end(JobState::Cancelled, now);
                Change::Done
            }
        }
    }

    /// Restarts an ended job. Call [`enter`](Self::enter) next.
    pub(super) fn revive(&mut self, now: Timestamp) {
        self.state = JobState::Scheduled;
        self.due_at = now;
        self.ended_at = None;
        self.request.expire_at = None;
        self.failures = 0;
        self.crashes = 0;
        self.losses = 0;
        self.output_bytes = 0;
        self.output = Output::default();
    }

    /// Whether it must be set aside.
    pub(super) fn is_unreadable(&self) -> bool {
        self.fault.is_some() && !self.state.is_ended()
    }

    fn give_back(&mut self) {
        self.state = JobState::Ready;
        self.session = None;
    }

    /// Records the attempt that ends.
    fn keep_attempt(&mut self, now: Timestamp, worker: &str, outcome: Option<Reason>, code: i32, message: &str) {
        if outcome == Some(Reason::LimitExceeded) && self.was_held() {
            self.attempts.pop();
        }
        if self.attempts.len() >= MAX_ATTEMPTS_KEPT {
            self.attempts.remove(0);
        }
        self.pattern = pattern(message);
        self.attempts.push(Attempt {
            number: self.starts,
            started_at: self.started_at.unwrap_or(now),
            ended_at: now,
            worker: worker.to_owned(),
            outcome,
            code,
            message: message[..message.floor_char_boundary(MAX_MESSAGE)].to_owned(),
        });
    }
}

impl Settle {
    /// The end that is stored instead of one that the database refused.
    pub(super) fn refused(&self, error: &StoreError) -> Self {
        let message = format!("its result could not be stored: {error}").replace('\0', "");
        let (reason, code, next) = (Reason::StoreUnavailable, Code::Internal as i32, Next::Failed);
        Self { token: self.token.clone(), worker: self.worker.replace('\0', ""), reason, code, message, next }
    }
}
