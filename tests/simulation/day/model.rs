//! A reference model of a store. It follows the effect of each call, and records wrong effects as faults.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use waterwheel::store::{
    Change, Claimed, Clock, Fired, JobName, JobRecord, JobState, NewJob, Next, Overlap, SessionId, Settle, Size,
    Submitted, Tick, Timestamp, Token,
};

use super::{REFUSED, WATCHED};

/// Longest delay of the removal of a job after its retention, and of a job after its tick.
const LATE: Duration = Duration::from_secs(60);

/// Longest attempt, including a pause of its replica.
const LONGEST: Duration = Duration::from_secs(360);

/// Lost leases in a row that end a job.
const MAX_LOSSES: u32 = 3;

/// A job in the store.
struct Entry {
    request: NewJob,
    /// Earliest start.
    due_at: Timestamp,
    starts: u32,
    failures: u32,
    /// Lost leases in a row.
    losses: u32,
    is_cancelled: bool,
    end: Option<(JobState, Timestamp)>,
}

impl Entry {
    fn purge_at(&self) -> Option<Timestamp> {
        let (state, end) = self.end?;
        let is_dead = state == JobState::Failed;
        Some(end.plus(if is_dead { self.request.policy.retain_dead_for } else { self.request.policy.retain_for }))
    }
}

pub(crate) struct Model {
    clock: Clock,
    jobs: BTreeMap<String, Entry>,
    /// The valid attempt of each running job. Its lease may have ended.
    running: BTreeMap<String, Token>,
    /// Length and end of the lease of each session.
    leases: HashMap<SessionId, (Duration, Timestamp)>,
    pub(crate) ticks: BTreeMap<(String, Timestamp), Fired>,
    /// Id of the last job of each schedule that has ticked, or an empty string without a job.
    runs: HashMap<String, String>,
    /// Ids of removed jobs.
    removed: HashSet<String>,
    /// Number of events by name.
    pub(crate) counts: BTreeMap<&'static str, usize>,
    pub(crate) faults: Vec<String>,
    /// Hash of all events.
    trace: DefaultHasher,
    /// Id of the job whose events are printed.
    watched: Option<String>,
}

impl Model {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            jobs: BTreeMap::new(),
            running: BTreeMap::new(),
            leases: HashMap::new(),
            ticks: BTreeMap::new(),
            runs: HashMap::new(),
            removed: HashSet::new(),
            counts: BTreeMap::new(),
            faults: Vec::new(),
            trace: DefaultHasher::new(),
            watched: std::env::var(WATCHED).ok(),
        }
    }

    /// A hash of all events, which is the same for the same seed.
    pub(crate) fn trace(&self) -> u64 {
        self.trace.finish()
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    fn note(&mut self, what: &'static str, id: &str) {
        *self.counts.entry(what).or_default() += 1;
        (self.now(), what, id).hash(&mut self.trace);
        if self.watched.as_deref() == Some(id) {
            println!("{}: {id} {what}", self.now().as_millis());
        }
    }

    pub(crate) fn fault(&mut self, what: impl Into<String>) {
        let now = self.now().as_millis();
        self.faults.push(format!("{now}: {}", what.into()));
    }

    fn lease_is_over(&self, session: SessionId) -> bool {
        self.leases.get(&session).is_none_or(|(_, end)| *end <= self.now())
    }

    /// Whether the lease of a job's running attempt has ended.
    fn is_lost(&self, id: &str) -> bool {
        self.running.get(id).is_some_and(|token| self.lease_is_over(token.session))
    }

    pub(crate) fn opened(&mut self, session: SessionId, lease: Duration) {
        self.note("session", "");
        if self.leases.insert(session, (lease, self.now().plus(lease))).is_some() {
            self.fault(format!("{session:?} was opened twice"));
        }
    }

    pub(crate) fn extended(&mut self, session: SessionId) {
        let now = self.now();
        if let Some((lease, end)) = self.leases.get_mut(&session) {
            *end = now.plus(*lease);
        }
    }

    pub(crate) fn released(&mut self, tokens: &[Token]) {
        let before = self.running.len();
        self.running.retain(|_, token| !tokens.contains(token));
        for _ in self.running.len()..before {
            self.note("released", "");
        }
    }

    pub(crate) fn submitted(&mut self, jobs: &[NewJob], answers: &[Submitted]) {
        for (job, answer) in jobs.iter().zip(answers) {
            match answer {
                Submitted::Created => self.created(job),
                Submitted::Leased(claimed) => {
                    self.created(job);
                    self.started(&claimed.token);
                }
                Submitted::Existing(_) => self.note("existing", &job.id),
                Submitted::Conflict | Submitted::Full(_) | Submitted::NoGroup | Submitted::GroupClosed => {
                    self.fault(format!("{answer:?}"))
                }
            }
        }
    }

    pub(crate) fn fired(&mut self, tick: &Tick, fired: Fired) {
        let is_late = self.now().since(tick.at) > LATE && !tick.is_missed;
        let last = self.runs.get(&tick.schedule);
        let last_runs = last.and_then(|id| self.jobs.get(id)).is_some_and(|entry| entry.end.is_none());
        let has_skipped = match fired {
            Fired::Already => {
                self.note("fired already", "");
                return;
            }
            Fired::Created => false,
            Fired::Skipped => true,
            Fired::Refused => return self.fault(format!("{tick:?} was refused")),
        };
        // A third lost lease ends the job, which the model learns later.
        let may_be_dead = last.is_some_and(|id| self.is_lost(id) && self.jobs[id].losses + 1 >= MAX_LOSSES);
        let must_skip = (tick.is_missed && last.is_none()) || (last_runs && tick.overlap == Overlap::Skip);
        let is_new = self.ticks.insert((tick.schedule.clone(), tick.at), fired).is_none();
        if is_late || (has_skipped != must_skip && !may_be_dead) || !is_new {
            self.fault(format!("{tick:?}: {fired:?}, late {is_late}, new {is_new}, runs {last_runs}"));
        }
        if has_skipped {
            self.note("skipped", &tick.job.id);
            self.runs.entry(tick.schedule.clone()).or_default();
        } else {
            self.created(&tick.job);
            self.runs.insert(tick.schedule.clone(), tick.job.id.clone());
        }
    }

    fn created(&mut self, job: &NewJob) {
        self.note("created", &job.id);
        let due_at = match job.start {
            waterwheel::store::Start::After(delay) => self.now().plus(delay),
            _ => self.now(),
        };
        let request = job.clone();
        let entry = Entry { request, due_at, starts: 0, failures: 0, losses: 0, is_cancelled: false, end: None };
        if self.jobs.insert(job.id.clone(), entry).is_some() || self.removed.contains(&job.id) {
            self.fault(format!("{} was created twice", job.id));
        }
    }

    pub(crate) fn claimed(&mut self, claimed: &[Claimed]) {
        for claimed in claimed {
            self.started(&claimed.token);
        }
    }

    fn started(&mut self, token: &Token) {
        let now = self.now();
        self.note("started", &token.id);
        if let Some(old) = self.running.insert(token.id.clone(), token.clone()) {
            if self.lease_is_over(old.session) {
                self.note("lost", &token.id);
                self.jobs.get_mut(&token.id).into_iter().for_each(|entry| entry.losses += 1);
            } else {
                self.fault(format!("{token:?} starts while {old:?} runs"));
            }
        }
        let Some(entry) = self.jobs.get_mut(&token.id) else {
            return self.fault(format!("{token:?} belongs to an unknown job"));
        };
        entry.starts += 1;
        let is_expired = entry.request.expire_at.is_some_and(|end| end <= now);
        if is_expired || now < entry.due_at || token.attempt != entry.starts || entry.end.is_some() {
            let Entry { due_at, starts, end, .. } = entry;
            let fault = format!("{token:?} starts: expired {is_expired}, due {due_at:?}, starts {starts}, end {end:?}");
            return self.fault(fault);
        }
        let key = entry.request.job.ordering_key.clone();
        let has_key = |id: &str| self.jobs.get(id).is_some_and(|entry| entry.request.job.ordering_key == key);
        let same_key = |other: &&Token| other.id != token.id && has_key(&other.id);
        let beside = self.running.values().filter(same_key).find(|other| !self.lease_is_over(other.session));
        if let Some(other) = beside.filter(|_| !key.is_empty()) {
            self.fault(format!("{token:?} runs at the same time as {other:?}, which has the same key"));
        }
    }

    pub(crate) fn settled(&mut self, ends: &[Settle], states: &[Option<JobState>]) {
        for (end, state) in ends.iter().zip(states) {
            let token = &end.token;
            let is_valid = self.running.get(&token.id) == Some(token);
            match state {
                Some(state) if is_valid => self.ended(end, *state),
                // The lease has ended, so the store ignores the attempt.
                None if is_valid && self.lease_is_over(token.session) => self.note("void", &token.id),
                None if !is_valid => self.note("void", &token.id),
                _ => self.fault(format!("{token:?} was settled as {state:?}, valid: {is_valid}")),
            }
        }
    }

    fn ended(&mut self, end: &Settle, state: JobState) {
        let (now, id) = (self.now(), &end.token.id);
        self.running.remove(id);
        let Some(entry) = self.jobs.get_mut(id) else { return };
        let (retry, failures) = (entry.request.policy.retry, entry.failures);
        if end.next != Next::GiveBack {
            entry.losses = 0;
        }
        let is_right = match (&end.next, state) {
            (Next::Succeeded(output), JobState::Succeeded) => {
                let Token { id, attempt, row, .. } = &end.token;
                output.bytes == format!("{id}/{attempt}/{row}")
            }
            (Next::Failed, JobState::Failed) => failures + 1 == retry.max_attempts || end.code == REFUSED as i32,
            (Next::Retry { after }, JobState::Scheduled) => {
                entry.failures += 1;
                entry.due_at = now.plus(*after);
                let most = retry.initial.saturating_mul(1 << failures).min(retry.max);
                failures + 1 < retry.max_attempts && *after <= most
            }
            (Next::Cancelled | Next::Retry { .. } | Next::GiveBack, JobState::Cancelled) => entry.is_cancelled,
            (Next::GiveBack, JobState::Ready) => true,
            (Next::Later { .. }, JobState::Scheduled) => true,
            _ => false,
        };
        if state.is_ended() {
            entry.end = Some((state, now));
        }
        let what = match state {
            JobState::Succeeded => "succeeded",
            JobState::Failed => "failed",
            JobState::Cancelled => "cancelled",
            JobState::Scheduled => "tried again",
            _ => "given back",
        };
        self.note(what, id);
        if !is_right {
            self.fault(format!("{end:?} became {state:?} after {failures} failures"));
        }
    }

    pub(crate) fn cancelled(&mut self, jobs: &[JobName], changes: &[Change]) {
        let now = self.now();
        for (JobName { id, .. }, change) in jobs.iter().zip(changes) {
            let Some(entry) = self.jobs.get_mut(id) else { continue };
            match change {
                Change::Done => {
                    entry.end = Some((JobState::Cancelled, now));
                    self.running.remove(id);
                    self.note("cancelled", id);
                }
                Change::Requested => entry.is_cancelled = true,
                Change::WrongState(_) => {}
                Change::NotFound | Change::Full(_) => self.fault(format!("{id}: {change:?}")),
            }
        }
    }

    /// Compares the content of the store with the model.
    pub(crate) fn compare(&mut self, found: &[JobRecord], size: Size) {
        let now = self.now();
        for record in found {
            if let Some(fault) = self.record_fault(record, now) {
                let JobRecord { request, state, starts, ended_at, .. } = record;
                self.fault(format!("{fault}: {} is {state:?} after {starts} starts, ended {ended_at:?}", request.id));
            }
        }
        let found: HashSet<_> = found.iter().map(|record| record.request.id.as_str()).collect();
        let gone: Vec<_> = self.jobs.keys().filter(|id| !found.contains(id.as_str())).cloned().collect();
        for id in gone {
            if self.jobs.remove(&id).is_none_or(|entry| entry.purge_at().is_none_or(|at| at > now)) {
                self.fault(format!("{id} is lost"));
            }
            self.removed.insert(id);
        }
        let unended = self.jobs.values().filter(|entry| entry.end.is_none()).count();
        if size.jobs != unended as u64 {
            self.fault(format!("the store has {} unfinished jobs, and the model {unended}", size.jobs));
        }
    }

    fn record_fault(&mut self, record: &JobRecord, now: Timestamp) -> Option<&'static str> {
        let id = &record.request.id;
        let runs = self.running.get(id).is_some_and(|token| !self.lease_is_over(token.session));
        let Some(entry) = self.jobs.get_mut(id) else { return Some("nothing created it") };
        let is_over = |at: Timestamp| at.plus(LATE) < now;
        let unknown = if entry.end.is_none() { record.ended_at } else { None };
        if let Some(end) = unknown {
            // No call ended the job. It expired, or its requested cancel took effect at the end of its lease.
            let may_expire = entry.request.expire_at.is_some_and(|at| at <= end);
            entry.end = Some((record.state, end));
            let what = match record.state {
                JobState::Expired if may_expire && !runs => "expired",
                JobState::Cancelled if entry.is_cancelled && !runs => "cancelled",
                JobState::Failed if record.losses == MAX_LOSSES && entry.losses + 1 >= MAX_LOSSES && !runs => {
                    "lost too often"
                }
                _ => return Some("nothing ended it"),
            };
            self.running.remove(id);
            self.note(what, id);
        } else if entry.end.is_some_and(|(state, _)| state != record.state) {
            return Some("it ended in another state");
        } else if entry.starts != record.starts {
            return Some("its number of starts differs");
        } else if record.state == JobState::Running && record.started_at.is_some_and(|at| at.plus(LONGEST) < now) {
            return Some("it does not end");
        } else if entry.purge_at().is_some_and(is_over) {
            return Some("its retention is over");
        } else if record.state < JobState::Running && entry.request.expire_at.is_some_and(is_over) {
            return Some("it should have expired");
        }
        None
    }
}
