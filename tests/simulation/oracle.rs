//! What must hold of a seed, whatever befell it.

use std::{collections::BTreeMap, time::Duration};

use waterwheel::{
    model::Reason,
    pool::{Counts, LostWhile, PoolStats, WorkerState},
};

use crate::{
    books, drained,
    record::{Asked, Attempt, AttemptEnd, Events, Life, LifeEnd, Way},
    server::LONGEST_DRAIN,
    told::Told,
};

/// Rounding of timers.
pub(crate) const SLACK: Duration = Duration::from_millis(3);
/// Most that a message may take where an answer is to arrive before its deadline, which it leaves the margin of a reply
/// ahead of.
const FAST: Duration = Duration::from_millis(2);

/// Everything that is wrong.
pub(crate) fn faults(events: &Events) -> Vec<String> {
    let mut faults = events.faults.clone();
    for (number, asked) in events.jobs.iter().enumerate() {
        let attempts: Vec<_> = events.attempts.iter().filter(|attempt| attempt.job == number).collect();
        faults.extend(
            job_fault(number, &attempts, events).map(|fault| format!("job {number}: {fault}; {asked:?}, {attempts:?}")),
        );
    }
    for (number, life) in events.lives.iter().enumerate() {
        let stats: Vec<_> = life.pools.all().iter().map(waterwheel::Pool::stats).collect();
        let mut wrong = life_faults(life, &stats);
        wrong.extend(receipt_faults(life, events));
        wrong.extend(books::faults(life, events));
        wrong.extend(drained::faults(number, life, events));
        faults.extend(wrong.into_iter().map(|fault| format!("life {number}: {fault}; {stats:?}")));
    }
    faults.extend(agreement_faults(events));
    faults
}

/// How jobs ended for their callers, and how many.
pub(crate) fn ends(events: &Events) -> BTreeMap<&str, u64> {
    let mut ends = BTreeMap::new();
    for told in events.jobs.iter().filter_map(|asked| asked.told.as_ref()) {
        *ends.entry(told.name()).or_default() += 1;
    }
    ends
}

/// One job, as its caller and its handler saw it.
fn job_fault(number: usize, attempts: &[&Attempt], events: &Events) -> Option<String> {
    let asked = &events.jobs[number];
    let Some(told) = &asked.told else { return Some("its caller heard nothing".into()) };
    if attempts.len() > 1 {
        return Some("it ran more than once".into());
    }
    if let Some(lost_while) = told.lost_while()
        && !told.job_id().is_some_and(|id| is_named(id, lost_while, asked.server, events))
    {
        return Some("no receipt names it".into());
    }
    let attempt = attempts.first();
    if attempt.is_some_and(|attempt| attempt.end == AttemptEnd::Running) {
        return Some("it still runs".into());
    }
    if let (Some(id), Some(attempt)) = (told.job_id(), attempt)
        && attempt.job_id != id
    {
        return Some("its caller was told of another job".into());
    }
    let ran = attempt.map(|attempt| attempt.end);
    let fits = match told {
        _ if !asked.is_recorded => true,
        Told::Completed { .. } => ran == Some(AttemptEnd::Answered),
        Told::Failed { reason, execution, .. } => match (reason.as_str(), execution.as_str()) {
            ("HANDLER_FAILED", "STARTED") => ran == Some(AttemptEnd::Refused),
            ("HANDLER_PANICKED", "STARTED") => ran == Some(AttemptEnd::Panicked),
            (_, "STARTED") => ran.is_some(),
            (_, "NOT_STARTED") => ran.is_none(),
            _ => false,
        },
        Told::Left | Told::Timer | Told::Broken { .. } | Told::Late | Told::Unsaid { .. } => true,
    };
    if !fits {
        return Some("what its caller was told is not what happened".into());
    }
    // A drain answers the callers of all that ran.
    let is_drained = |attempt: &&&Attempt| matches!(events.lives[attempt.life].end, LifeEnd::Drained { .. });
    let ran_to_its_end = attempt.filter(is_drained).is_some();
    let is_excused = events.disturbances.iter().any(|one| one.excuses(asked) && !(one.is_drain && ran_to_its_end));
    match told {
        Told::Broken { .. } if !(is_excused || told.is_unconnected() && is_kept(number, asked, events)) => {
            Some("nothing excuses that its call broke off".into())
        }
        Told::Timer if !is_excused && events.latency <= FAST => Some("the timer of its caller was faster".into()),
        Told::Late if !is_excused => Some("the server did not know of it in time".into()),
        _ => None,
    }
}

/// Whether a drain says that it did not finish this job.
fn is_named(id: &str, lost_while: LostWhile, server: usize, events: &Events) -> bool {
    events.lives.iter().any(|life| match &life.end {
        LifeEnd::Drained { receipt, .. } => {
            receipt.lost.iter().any(|lost| lost.lost_while == lost_while && lost.job.to_string() == id)
        }
        // There was no time to say it.
        LifeEnd::Crashed => life.server == server,
        LifeEnd::Serving => false,
    })
}

/// Whether the channel of a call kept for it that no connection could be made.
///
/// A channel connects for a call, and goes no further once that call has left. The next call, whenever it comes, hears
/// how the attempt went. So the call before must have left, and its attempt must have met with a server out of reach.
fn is_kept(number: usize, asked: &Asked, events: &Events) -> bool {
    let is_before = |other: &&Asked| {
        (other.caller, other.server) == (asked.caller, asked.server) && other.request_id != asked.request_id
    };
    let before = events.jobs[..number].iter().rev().find(is_before);
    before.filter(|before| before.told == Some(Told::Left) && before.end <= asked.begin).is_some_and(|before| {
        let end = before.end + events.latency + SLACK;
        events.disturbances.iter().any(|one| one.may_refuse(before, end))
    })
}

/// The books of one service, when it has gone.
fn life_faults(life: &Life, stats: &[PoolStats]) -> Vec<String> {
    let mut faults = Vec::new();
    for pool in stats {
        if pool.counts.accepted != pool.counts.ended() {
            faults.push(format!("pool {} has open books", pool.name));
        }
        if (pool.queued, pool.waiting, pool.in_flight, pool.queued_bytes) != (0, 0, 0, 0) {
            faults.push(format!("pool {} holds jobs", pool.name));
        }
        let is_drained = matches!(life.end, LifeEnd::Drained { .. });
        if is_drained && pool.workers.iter().any(|worker| worker.state != WorkerState::Stopped) {
            faults.push(format!("pool {} has workers that did not come back", pool.name));
        }
    }
    faults
}

/// The receipt names what its callers were told of, and besides only jobs whose callers do not know, or that ended in
/// another way while they were being stopped.
fn receipt_faults(life: &Life, events: &Events) -> Vec<String> {
    let receipt = match &life.end {
        LifeEnd::Drained { receipt, .. } => receipt,
        LifeEnd::Crashed => return Vec::new(),
        LifeEnd::Serving => return vec!["it was not ended".into()],
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
        let is_sent = |asked: &&Asked| asked.request_id == lost.request_id.as_str();
        let mut callers = events.jobs.iter().filter(is_sent).filter_map(|asked| asked.told.as_ref()).peekable();
        let is_known = callers.peek().is_some();
        let is_fitting = |told: &Told| {
            let stopped = ["DRAIN_KILLED", "DRAINED", "RUN_TIMEOUT", "HANDLER_PANICKED"].contains(&told.name());
            told.is_unseen() || stopped && told.job_id() == Some(&lost.job.to_string())
        };
        if !is_known || !callers.any(is_fitting) {
            faults.push(format!("the receipt names {lost:?}, whose caller was told otherwise"));
        }
    }
    faults
}

/// What callers were told is what the servers counted; where a caller does not know, a server counted something, too.
fn agreement_faults(events: &Events) -> Vec<String> {
    let counts: Vec<Counts> =
        events.lives.iter().flat_map(|life| life.pools.all()).map(|pool| pool.stats().counts).collect();
    let sum = |of: &dyn Fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
    let told = |names: &[&str]| {
        let of = |asked: &&Asked| asked.told.as_ref().is_some_and(|told| names.contains(&told.name()));
        events.jobs.iter().filter(of).count() as u64
    };
    let unseen = events.jobs.iter().filter(|asked| asked.told.as_ref().is_some_and(Told::is_unseen)).count() as u64;
    let answered = events.attempts.iter().filter(|attempt| attempt.end == AttemptEnd::Answered).count() as u64;
    let echoes = events.jobs.iter().filter(|asked| !asked.is_recorded).count() as u64;
    let mut faults = Vec::new();
    let mut between = |name: &str, told: u64, counted: u64| {
        if !(told..=told + unseen).contains(&counted) {
            faults.push(format!("{name}: {told} told, {counted} counted, {unseen} unseen"));
        }
    };
    between("completed", told(&["COMPLETED"]), sum(&|counts| counts.completed));
    between("failed", told(&["HANDLER_FAILED"]), sum(&|counts| counts.failed));
    between("panicked", told(&["HANDLER_PANICKED"]), sum(&|counts| counts.panicked));
    between("expired", told(&["RUN_TIMEOUT", "EXPIRED_IN_QUEUE"]), sum(&|counts| counts.expired));
    between("shed", told(&["SHED"]), sum(&|counts| counts.shed));
    between("cancelled", told(&["CANCELLED", "DRAIN_KILLED", "DRAINED"]), sum(&|counts| counts.cancelled));
    for (index, reason) in Reason::REFUSALS.map(Reason::name).into_iter().enumerate() {
        between(reason, told(&[reason]), sum(&|counts| counts.rejected[index]));
    }
    let seen = sum(&|counts| counts.accepted + counts.rejected.iter().sum::<u64>());
    let sent = events.jobs.len() as u64;
    between("all", sent - unseen, seen);
    if sum(&|counts| counts.completed) > answered + echoes {
        faults.push(format!("more jobs completed than the {answered} whose handlers did"));
    }
    let many = events.jobs.iter().filter(|asked| asked.way == Way::SubmitMany).count();
    if sent < 60 || many == 0 || told(&["COMPLETED"]) < sent / 5 {
        faults.push(format!("this was no load: {sent} jobs, {} completed", told(&["COMPLETED"])));
    }
    faults
}
