//! Checks that must hold for every seed, and the answer that a caller got for a job.

use std::{collections::BTreeMap, time::Duration};

use prost::Message;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use waterwheel::{
    model::Reason,
    pool::{Counts, LostWhile, PoolStats, WorkerState},
    proto::JobFailure,
};

use crate::{
    accounting,
    record::{Attempt, AttemptEnd, Events, Life, LifeEnd, SentJob, Way},
    server::LONGEST_DRAIN,
};

/// Allowance for the rounding of timers.
pub(crate) const SLACK: Duration = Duration::from_millis(3);
/// Longest latency at which an answer must arrive before the deadline. The server sends it earlier by the reply margin.
const FAST: Duration = Duration::from_millis(2);

/// All faults of a seed.
pub(crate) fn faults(events: &Events) -> Vec<String> {
    let mut faults = events.faults.clone();
    for (number, sent) in events.jobs.iter().enumerate() {
        let attempts: Vec<_> = events.attempts.iter().filter(|attempt| attempt.job == number).collect();
        faults.extend(
            job_fault(number, &attempts, events).map(|fault| format!("job {number}: {fault}; {sent:?}, {attempts:?}")),
        );
    }
    for (number, life) in events.lives.iter().enumerate() {
        let stats: Vec<_> = life.pools.all().iter().map(waterwheel::Pool::stats).collect();
        let mut wrong = life_faults(life, &stats);
        wrong.extend(receipt_faults(life, events));
        wrong.extend(accounting::faults(life, events));
        wrong.extend(accounting::drain_faults(number, life, events));
        faults.extend(wrong.into_iter().map(|fault| format!("life {number}: {fault}; {stats:?}")));
    }
    faults.extend(agreement_faults(events));
    faults
}

/// Number of jobs by their end, from the view of their callers.
pub(crate) fn ends(events: &Events) -> BTreeMap<&str, u64> {
    let mut ends = BTreeMap::new();
    for answer in events.jobs.iter().filter_map(|sent| sent.answer.as_ref()) {
        *ends.entry(answer.name()).or_default() += 1;
    }
    ends
}

/// The fault of one job, by its answer and its attempts.
fn job_fault(number: usize, attempts: &[&Attempt], events: &Events) -> Option<String> {
    let sent = &events.jobs[number];
    let Some(answer) = &sent.answer else { return Some("its caller got no answer".into()) };
    if attempts.len() > 1 {
        return Some("it ran more than once".into());
    }
    if let Some(lost_while) = answer.lost_while()
        && !answer.job_id().is_some_and(|id| is_named(id, lost_while, sent.server, events))
    {
        return Some("it is in no receipt".into());
    }
    let attempt = attempts.first();
    if attempt.is_some_and(|attempt| attempt.end == AttemptEnd::Running) {
        return Some("it is still running".into());
    }
    if let (Some(id), Some(attempt)) = (answer.job_id(), attempt)
        && attempt.job_id != id
    {
        return Some("its caller got the answer of another job".into());
    }
    let ran = attempt.map(|attempt| attempt.end);
    let fits = match answer {
        _ if !sent.is_recorded => true,
        Answer::Completed { .. } => ran == Some(AttemptEnd::Answered),
        Answer::Failed { reason, execution, .. } => match (reason.as_str(), execution.as_str()) {
            ("HANDLER_FAILED", "STARTED") => ran == Some(AttemptEnd::Refused),
            ("HANDLER_PANICKED", "STARTED") => ran == Some(AttemptEnd::Panicked),
            (_, "STARTED") => ran.is_some(),
            (_, "NOT_STARTED") => ran.is_none(),
            _ => false,
        },
        Answer::Left | Answer::Timer | Answer::Broken { .. } | Answer::Late | Answer::Unsaid { .. } => true,
    };
    if !fits {
        return Some("the answer to its caller contradicts its attempt".into());
    }
    // A drain must answer the callers of all jobs that ran.
    let is_drained = |attempt: &&&Attempt| matches!(events.lives[attempt.life].end, LifeEnd::Drained { .. });
    let ran_to_its_end = attempt.filter(is_drained).is_some();
    let is_excused = events.disturbances.iter().any(|one| one.excuses(sent) && !(one.is_drain && ran_to_its_end));
    match answer {
        Answer::Broken { .. }
            if !(is_excused || answer.is_unconnected() && has_stale_connect_error(number, sent, events)) =>
        {
            Some("its call broke without a disturbance".into())
        }
        Answer::Timer if !is_excused && events.latency <= FAST => {
            Some("its caller timed out before the server answered".into())
        }
        Answer::Late if !is_excused => Some("the server received it too late".into()),
        _ => None,
    }
}

/// Whether a receipt names this job as lost, or its server crashed.
fn is_named(id: &str, lost_while: LostWhile, server: usize, events: &Events) -> bool {
    events.lives.iter().any(|life| match &life.end {
        LifeEnd::Drained { receipt, .. } => {
            receipt.lost.iter().any(|lost| lost.lost_while == lost_while && lost.job.to_string() == id)
        }
        // A crash leaves no receipt.
        LifeEnd::Crashed => life.server == server,
        LifeEnd::Serving => false,
    })
}

/// Whether the call failed with the connection error of an earlier call.
///
/// A channel connects for a call, and stops when that call is dropped. The next call gets the result of that attempt.
/// So the previous call must have been dropped, and its server must have been unreachable.
fn has_stale_connect_error(number: usize, sent: &SentJob, events: &Events) -> bool {
    let is_before = |other: &&SentJob| {
        (other.caller, other.server) == (sent.caller, sent.server) && other.request_id != sent.request_id
    };
    let before = events.jobs[..number].iter().rev().find(is_before);
    before.filter(|before| before.answer == Some(Answer::Left) && before.end <= sent.begin).is_some_and(|before| {
        let end = before.end + events.latency + SLACK;
        events.disturbances.iter().any(|one| one.may_refuse(before, end))
    })
}

/// Faults in the statistics of a service that has ended.
fn life_faults(life: &Life, stats: &[PoolStats]) -> Vec<String> {
    let mut faults = Vec::new();
    for pool in stats {
        if pool.counts.accepted != pool.counts.ended() {
            faults.push(format!("the counts of pool {} do not add up", pool.name));
        }
        if (pool.queued, pool.waiting, pool.in_flight, pool.queued_bytes) != (0, 0, 0, 0) {
            faults.push(format!("pool {} holds jobs", pool.name));
        }
        let is_drained = matches!(life.end, LifeEnd::Drained { .. });
        if is_drained && pool.workers.iter().any(|worker| worker.state != WorkerState::Stopped) {
            faults.push(format!("pool {} has workers that did not stop", pool.name));
        }
    }
    faults
}

/// The receipt names only jobs that ended by the drain, that ended otherwise while they were stopped, or whose callers
/// got no answer.
fn receipt_faults(life: &Life, events: &Events) -> Vec<String> {
    let receipt = match &life.end {
        LifeEnd::Drained { receipt, .. } => receipt,
        LifeEnd::Crashed => return Vec::new(),
        LifeEnd::Serving => return vec!["it did not end".into()],
    };
    let mut faults = Vec::new();
    if receipt.elapsed > LONGEST_DRAIN + SLACK {
        faults.push(format!("its drain took {:?}", receipt.elapsed));
    }
    let mut named = BTreeMap::new();
    for lost in &receipt.lost {
        if named.insert(lost.job.to_string(), lost).is_some() {
            faults.push(format!("the receipt names {} twice", lost.job));
        }
        let is_sent = |sent: &&SentJob| sent.request_id == lost.request_id.as_str();
        let mut callers = events.jobs.iter().filter(is_sent).filter_map(|sent| sent.answer.as_ref()).peekable();
        let is_known = callers.peek().is_some();
        let is_fitting = |answer: &Answer| {
            let stopped = ["DRAIN_KILLED", "DRAINED", "RUN_TIMEOUT", "HANDLER_PANICKED"].contains(&answer.name());
            answer.is_unseen() || stopped && answer.job_id() == Some(&lost.job.to_string())
        };
        if !is_known || !callers.any(is_fitting) {
            faults.push(format!("the receipt names {lost:?}, but its caller got another answer"));
        }
    }
    faults
}

/// The servers counted every answer. Each call without an answer adds at most one to the counts.
fn agreement_faults(events: &Events) -> Vec<String> {
    let counts: Vec<Counts> =
        events.lives.iter().flat_map(|life| life.pools.all()).map(|pool| pool.stats().counts).collect();
    let sum = |of: &dyn Fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    let answers = |names: &[&str]| {
        let of = |sent: &&SentJob| sent.answer.as_ref().is_some_and(|answer| names.contains(&answer.name()));
        events.jobs.iter().filter(of).count() as u64
    };
    let unseen = events.jobs.iter().filter(|sent| sent.answer.as_ref().is_some_and(Answer::is_unseen)).count() as u64;
    let answered = events.attempts.iter().filter(|attempt| attempt.end == AttemptEnd::Answered).count() as u64;
    let echoes = events.jobs.iter().filter(|sent| !sent.is_recorded).count() as u64;
    let mut faults = Vec::new();
    let mut between = |name: &str, answers: u64, counted: u64| {
        if !(answers..=answers + unseen).contains(&counted) {
            faults.push(format!("{name}: {answers} answers, {counted} counted, {unseen} without an answer"));
        }
    };
    between("completed", answers(&["COMPLETED"]), sum(&|counts| counts.completed));
    between("failed", answers(&["HANDLER_FAILED"]), sum(&|counts| counts.failed));
    between("panicked", answers(&["HANDLER_PANICKED"]), sum(&|counts| counts.panicked));
    between("expired", answers(&["RUN_TIMEOUT", "EXPIRED_IN_QUEUE"]), sum(&|counts| counts.expired));
    between("shed", answers(&["SHED"]), sum(&|counts| counts.shed));
    between("cancelled", answers(&["CANCELLED", "DRAIN_KILLED", "DRAINED"]), sum(&|counts| counts.cancelled));
    for (index, reason) in Reason::REFUSALS.map(Reason::name).into_iter().enumerate() {
        between(reason, answers(&[reason]), sum(&|counts| counts.rejected[index]));
    }
    let seen = sum(&|counts| counts.accepted + counts.rejected.iter().sum::<u64>());
    let sent = events.jobs.len() as u64;
    between("all", sent - unseen, seen);
    if sum(&|counts| counts.completed) > answered + echoes {
        faults.push(format!("more jobs completed than the {answered} whose handlers completed"));
    }
    let many = events.jobs.iter().filter(|sent| sent.way == Way::SubmitMany).count();
    if sent < 60 || many == 0 || answers(&["COMPLETED"]) < sent / 5 {
        faults.push(format!("the load was too small: {sent} jobs, {} completed", answers(&["COMPLETED"])));
    }
    faults
}

/// The end of a job from the view of its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Completed {
        job_id: String,
    },
    Failed {
        reason: String,
        execution: String,
        job_id: Option<String>,
    },
    /// The caller gave up.
    Left,
    /// The client timed out before the server answered.
    Timer,
    /// A status that the client created: the connection broke, or could not be made.
    Broken {
        code: Code,
        message: String,
    },
    /// The server ended the call at its deadline, before it had read a job.
    Late,
    /// The `SubmitMany` call ended without a result for this job.
    Unsaid {
        reason: String,
    },
}

impl Answer {
    pub(crate) fn of(status: &Status) -> Self {
        let Some(info) = status.get_details_error_info() else {
            return match status.code() {
                Code::Cancelled | Code::DeadlineExceeded if status.message().contains("Timeout expired") => Self::Timer,
                code => Self::Broken { code, message: format!("{status:?}") },
            };
        };
        let fact = |name: &str| info.metadata.get(name).cloned();
        if (info.reason.as_str(), fact("execution").as_deref()) == ("CALL_TIMEOUT", Some("UNKNOWN")) {
            return Self::Late;
        }
        // A job that arrived after its deadline was refused, and the pool counts it as such.
        let is_refused = info.reason == "EXPIRED_IN_QUEUE" && fact("job").is_none();
        let reason = if is_refused { "DEADLINE_UNREACHABLE".to_owned() } else { info.reason.clone() };
        Self::Failed { execution: fact("execution").unwrap_or_default(), job_id: fact("job"), reason }
    }

    /// The answer for a failure inside a response message.
    pub(crate) fn of_failure(failure: JobFailure) -> Self {
        let JobFailure { code, message, details } = failure;
        // `JobFailure` and `google.rpc.Status` have the same encoding.
        let bytes = JobFailure { code, message: message.clone(), details }.encode_to_vec();
        Self::of(&Status::with_details(Code::from_i32(code), message, bytes.into()))
    }

    /// The answer for the remaining jobs of a `SubmitMany` call that ended with this status.
    pub(crate) fn of_the_rest(self) -> Self {
        match self {
            Self::Late => Self::Unsaid { reason: "RUN_TIMEOUT".into() },
            Self::Failed { reason, .. } => Self::Unsaid { reason },
            other => other,
        }
    }

    /// Name of the outcome or refusal, by which answers and counts are compared.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Completed { .. } => "COMPLETED",
            Self::Failed { reason, execution, job_id } => match (reason.as_str(), job_id) {
                // The job had been accepted, because a refused job has no id.
                ("DRAINING", Some(_)) => "DRAINED",
                // The deadline passed while the caller waited for queue capacity.
                ("RUN_TIMEOUT", None) if execution == "NOT_STARTED" => "QUEUE_FULL",
                (reason, _) => reason,
            },
            Self::Left => "left",
            Self::Timer => "timer",
            Self::Broken { .. } => "broken",
            Self::Late => "late",
            Self::Unsaid { .. } => "unsaid",
        }
    }

    /// Whether the caller got no answer about the outcome.
    pub(crate) fn is_unseen(&self) -> bool {
        matches!(self, Self::Left | Self::Timer | Self::Broken { .. } | Self::Late | Self::Unsaid { .. })
    }

    /// Whether the client could not connect.
    pub(crate) fn is_unconnected(&self) -> bool {
        matches!(self, Self::Broken { message, .. } if message.contains("ConnectError"))
    }

    /// The stage of the job when a drain ended it, if one did.
    pub(crate) fn lost_while(&self) -> Option<LostWhile> {
        match self.name() {
            "DRAINED" => Some(LostWhile::Queued),
            "DRAIN_KILLED" => Some(LostWhile::Running),
            _ => None,
        }
    }

    pub(crate) fn job_id(&self) -> Option<&str> {
        match self {
            Self::Completed { job_id } => Some(job_id),
            Self::Failed { job_id, .. } => job_id.as_deref(),
            _ => None,
        }
    }
}
