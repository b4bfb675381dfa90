//! The script language of the cases: events and their expected results.

use std::time::Duration;

use super::{
    super::{Caps, Queued, Wait, Withdrawal},
    Answer, Event, Notification, Offer, Step,
    drive::{Drive, KindsLimits},
    notification_name,
};
use crate::model::{Criticality, Limiter, Outcome, WhenFull};

/// A rule, a pool, and a script with one line for each event: `event => expected result`.
///
/// | event | |
/// |---|---|
/// | `offer a` and any of `plus crit shed+ shed`, `reject wait evict newest`, `bytes=`, `for=` and `spare=` (ms), `of=` (tenant), `key=`, `limit=` (limit key), `shard=`, `kind=`, `stored` | a job named `a` arrives; else critical, reject, one byte, 1000 ms |
/// | `offer a,b` and the same | several jobs of one kind, each with this result |
/// | `end a completed 10` | decides an outcome after 10 ms; also `failed`, `cancelled`, … |
/// | `finish a completed 10` | the same, and releases the worker |
/// | `release a`, `cancel a`, `expire a`, `stick a` | |
/// | `servers 2` | so many divide the limits |
/// | `hold a kind 10`, `hold a key 10` | its handler holds its kind or its limit key for 10 ms |
/// | `worker`, `close`, `abandon`, `retire`, `pass 10`, `tick` | |
/// | `pause`, `resume`, `shut`, `open`, `kill a`, `resize 2`, `resize 2 8` | operator commands | |
/// | `show` | ready, blocked, waiting and running jobs, bytes in the queue |
/// | `pool` | live, missing and retiring workers | |
/// | `counts` | the counts that are not zero | |
/// | `explain a` | position, jobs ahead, expected start, and what the job waits for |
///
/// All jobs are checked after each event. At the end, all remaining jobs are run.
pub(super) struct Case {
    pub(super) rule: &'static str,
    pub(super) caps: Caps,
    pub(super) limits: KindsLimits,
    pub(super) workers: usize,
    pub(super) shards: usize,
    pub(super) script: &'static str,
}

pub(super) fn check(case: &Case) {
    let drive = Drive::new(case.caps, case.limits, case.workers, case.shards);
    let mut script = Script { drive, names: Vec::new() };
    for line in case.script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (event, expected) = line.split_once(" => ").expect("event => expected result");
        let seen = script.run(event).unwrap_or_else(|fault| panic!("{}: {line}: {fault}", case.rule));
        assert_eq!(seen, expected, "{}: {event}", case.rule);
    }
    script.drive.run_dry().unwrap_or_else(|fault| panic!("{}: {fault}", case.rule));
}

struct Script {
    drive: Drive,
    names: Vec<&'static str>,
}

impl Script {
    fn run(&mut self, line: &'static str) -> Result<String, String> {
        let mut words = line.split_whitespace();
        let verb = words.next().expect("a verb");
        let words: Vec<&'static str> = words.collect();
        if verb == "offer" {
            return self.offer(words[0], offer(&words[1..]));
        }
        let job = || {
            let name = words.first().expect("the name of a job");
            let job = self.names.iter().position(|known| known == name).expect("a job that was offered");
            u32::try_from(job).expect("few jobs")
        };
        let event = match verb {
            "end" => Event::End { job: job(), outcome: outcome(words[1]), run: millis(words[2]) },
            "finish" => {
                let job = job();
                let end = Event::End { job, outcome: outcome(words[1]), run: millis(words[2]) };
                assert!(matches!(self.drive.apply(end)?.answer, Answer::Decided(true)), "{line}: decided before");
                Event::Release { job }
            }
            "release" => Event::Release { job: job() },
            "cancel" => Event::Withdraw { job: job(), why: Withdrawal::Cancelled },
            "expire" => Event::Withdraw { job: job(), why: Withdrawal::Expired },
            "stick" => Event::Stick { job: job() },
            "hold" => {
                let scope = if words[1] == "kind" { Limiter::Hold } else { Limiter::KeyHold };
                Event::Hold { job: job(), scope, time: millis(words[2]) }
            }
            "servers" => Event::Divide { servers: number(words[0]) },
            "worker" => Event::AddWorker,
            "pause" => Event::Pause,
            "resume" => Event::Resume,
            "shut" => Event::Shut,
            "open" => Event::Open,
            "kill" => Event::Cancel { job: job() },
            "resize" => Event::Resize { min: number(words[0]), max: number(words[words.len() - 1]) },
            "close" => Event::Close,
            "abandon" => Event::Abandon,
            "retire" => Event::Retire,
            "tick" => Event::Tick,
            "pass" => Event::Pass { by: millis(words[0]) },
            "show" => return Ok(self.show()),
            "pool" => {
                let view = self.drive.view();
                let going = if view.retiring > 0 { format!(", {} retiring", view.retiring) } else { String::new() };
                return Ok(format!("{} live, {} missing{going}", view.live, view.unreplaced));
            }
            "counts" => return Ok(self.counts()),
            "explain" => return Ok(self.explain(job())),
            other => panic!("unknown event {other:?}"),
        };
        let step = self.drive.apply(event)?;
        Ok(self.describe(&step))
    }

    /// Jobs that arrive one after another, each with the same result.
    fn offer(&mut self, names: &'static str, offer: Offer) -> Result<String, String> {
        let mut results = Vec::new();
        for name in names.split(',') {
            self.names.push(name);
            let step = self.drive.apply(Event::Offer(offer))?;
            results.push(self.describe(&step));
        }
        results.dedup();
        Ok(results.join(", "))
    }

    fn describe(&self, step: &Step) -> String {
        let mut text = step.answer.to_string();
        for notification in &step.notifications {
            text += &match notification {
                Notification::Start { job, worker, .. } => {
                    format!("; {} starts on {worker}", self.names[*job as usize])
                }
                Notification::Ended { job, .. } | Notification::Refused { job, .. } => {
                    format!(
                        "; {} {}",
                        self.names[*job as usize],
                        notification_name(notification).expect("it did not start")
                    )
                }
            };
        }
        text
    }

    fn show(&self) -> String {
        let view = self.drive.view();
        let running: Vec<u32> = view.running.iter().map(|run| run.0).collect();
        let parts =
            [("ready", &view.ready), ("blocked", &view.blocked()), ("waiting", &view.waiting), ("runs", &running)];
        let mut text = String::new();
        for (name, jobs) in parts.iter().filter(|(_, jobs)| !jobs.is_empty()) {
            let jobs: Vec<&str> = jobs.iter().map(|job| self.names[*job as usize]).collect();
            text += &format!("{name} {}; ", jobs.join(" "));
        }
        text + &format!("{} bytes", view.queued_bytes)
    }

    fn explain(&self, job: u32) -> String {
        let Wait { position, queued } = self.drive.explain(job);
        let Some(Queued { ahead, expected_start, bound_by, held_until: _ }) = queued else {
            return format!("waits at {position}");
        };
        let start = expected_start.map_or_else(|| "unknown".to_owned(), |start| format!("in {} ms", start.as_millis()));
        format!("at {position}, {ahead} ahead, {start}, for {bound_by:?}")
    }

    fn counts(&self) -> String {
        let counts = self.drive.view().counts;
        let all = [
            ("accepted", counts.accepted),
            ("completed", counts.completed),
            ("failed", counts.failed),
            ("cancelled", counts.cancelled),
            ("expired", counts.expired),
            ("panicked", counts.panicked),
            ("shed", counts.shed),
            ("rejected", counts.rejected.iter().sum()),
        ];
        let some: Vec<String> =
            all.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}")).collect();
        some.join(", ")
    }
}

fn offer(words: &[&str]) -> Offer {
    let mut offer = Offer {
        class: Criticality::Critical,
        kind: 0,
        bytes: 1,
        patience: 1000,
        spare: 0,
        tenant: 0,
        key: 0,
        limit_key: 0,
        when_full: WhenFull::Reject,
        is_stored: false,
        shard: 0,
    };
    for word in words {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "plus" => offer.class = Criticality::CriticalPlus,
            "crit" => offer.class = Criticality::Critical,
            "shed+" => offer.class = Criticality::SheddablePlus,
            "shed" => offer.class = Criticality::Sheddable,
            "reject" => offer.when_full = WhenFull::Reject,
            "wait" => offer.when_full = WhenFull::Wait,
            "evict" => offer.when_full = WhenFull::Shed,
            "newest" => offer.when_full = WhenFull::DropOldest,
            "stored" => offer.is_stored = true,
            "bytes" => offer.bytes = number(value),
            "for" => offer.patience = value.parse().expect("milliseconds"),
            "spare" => offer.spare = value.parse().expect("milliseconds"),
            "of" => offer.tenant = number(value),
            "key" => offer.key = number(value),
            "limit" => offer.limit_key = number(value),
            "shard" => offer.shard = number(value),
            "kind" => offer.kind = number(value),
            other => panic!("unknown field of an offer: {other:?}"),
        }
    }
    offer
}

fn outcome(word: &str) -> Outcome {
    match word {
        "completed" => Outcome::Completed,
        "failed" => Outcome::HandlerFailed,
        "cancelled" => Outcome::Cancelled,
        "expired" => Outcome::DeadlineExceeded,
        "overran" => Outcome::RunTimeout,
        "panicked" => Outcome::HandlerPanicked,
        other => panic!("no running job ends as {other:?}"),
    }
}

fn millis(word: &str) -> Duration {
    Duration::from_millis(number(word))
}

fn number<T: std::str::FromStr>(word: &str) -> T {
    word.parse().unwrap_or_else(|_| panic!("{word:?} is not a number"))
}
