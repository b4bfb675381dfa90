//! The rules: what is wrong, from the series of the last minutes. Each has its sentence.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    problem::{Level, Problem},
    sample::{PoolSample, Sample},
    series::{AllSeries, Flow, KindSeries, MINUTE, PoolSeries, RECENT},
};
use crate::{model::Reason, pool::TenantRate, store::StoreError};

/// Least number of jobs from which a share is taken.
const FEW: u64 = 5;
/// Least numbers of runs for a comparison with the usual run time.
const RECENT_RUNS: u64 = 10;
const USUAL_RUNS: u64 = 20;

/// Everything that is wrong in `sample`, whose pools are in `series`.
pub(super) fn judge(now: Instant, sample: &Sample, series: &AllSeries) -> Vec<Problem> {
    let mut found = Found { now, pool: Arc::default(), problems: Vec::new() };
    store(&mut found, sample);
    drain(&mut found, sample);
    for (name, pool) in &series.pools {
        found.pool = Arc::clone(name);
        held_back(&mut found, pool);
        workers(&mut found, &pool.last);
        programs(&mut found, pool);
        if let Some(flow) = pool.flow(RECENT) {
            refusals(&mut found, pool, &flow);
        }
        for kind in &pool.last.kinds {
            if let Some(series) = pool.kinds.get(&kind.name) {
                failures(&mut found, pool, &kind.name, &kind.last_failure, series);
                slowness(&mut found, &kind.name, series);
                dead_letters(&mut found, &kind.name, series);
            }
        }
    }
    found.problems
}

/// What was found so far, and the pool that is looked at.
struct Found {
    now: Instant,
    pool: Arc<str>,
    problems: Vec<Problem>,
}

/// The texts of a problem: title, detail, and what to do.
type Words = [String; 3];

impl Found {
    /// Adds a problem of `subject`, which hurts so many jobs per second and began `age` ago.
    fn add(&mut self, key: &str, subject: String, level: Level, hurt: f64, age: Duration, words: Words) {
        let [title, detail, todo] = words;
        let since = self.now.checked_sub(age).unwrap_or(self.now);
        let pool = self.pool.to_string();
        let key = key.to_owned();
        self.problems.push(Problem { key, level, subject, pool, title, detail, todo, hurt, since });
    }

    /// Adds a problem of the pool that begins now.
    fn of_pool(&mut self, key: &str, level: Level, hurt: f64, words: Words) {
        self.add(key, format!("pool/{}", self.pool), level, hurt, Duration::ZERO, words);
    }
}

fn store(found: &mut Found, sample: &Sample) {
    let Some(error) = &sample.away else { return };
    let key = if refuses_writes(error) { "store_full" } else { "store_away" };
    let text = error.to_string();
    let (title, todo) = text.split_once("; ").unwrap_or((&text, "look at the database; jobs go on when it answers"));
    let detail = "no job can be created; results of running jobs wait in memory".to_owned();
    let words = [format!("store: {title}"), detail, todo.to_owned()];
    found.add(key, "store".to_owned(), Level::Error, 0.0, Duration::ZERO, words);
}

/// Whether the store still answers, but cannot be written.
pub(super) fn refuses_writes(error: &StoreError) -> bool {
    matches!(error, StoreError::DiskFull | StoreError::NoRoom | StoreError::ReadOnly { .. })
}

fn drain(found: &mut Found, sample: &Sample) {
    let Some((jobs @ 1.., left)) = sample.drain else { return };
    let words = [
        format!("the drain will probably stop {}", counted(jobs, "job")),
        format!("they usually run longer than the {} that are left", time(left)),
        "raise drain.finish for the next one; callers are told that their jobs were stopped".to_owned(),
    ];
    found.add("drain_loses_jobs", String::new(), Level::Error, 0.0, Duration::ZERO, words);
}

/// Pools that an operator paused or drained.
fn held_back(found: &mut Found, pool: &PoolSeries) {
    let PoolSample { name, paused, is_shut, operator, queued, .. } = &pool.last;
    let todo = format!("`waterwheel resume {name}`");
    if let Some(age) = *paused {
        let detail = format!("no job has started for {}; {} wait", time(age), counted(*queued as u64, "job"));
        let words = [format!("{name} is paused{operator}"), detail, todo];
        found.add("pool_paused", format!("pool/{name}"), Level::Warning, 0.0, age, words);
    } else if *is_shut {
        let hurt = pool.flow(RECENT).map_or(0.0, |flow| flow.per_second(refused(&flow, Reason::Draining)));
        let words = [format!("{name} is drained{operator}"), format!("it refuses {}", per_second(hurt)), todo];
        found.of_pool("pool_drained", Level::Warning, hurt, words);
    }
}

fn workers(found: &mut Found, pool: &PoolSample) {
    let PoolSample { name, stuck, attached, queued, .. } = pool;
    if *stuck > 0 {
        let words = [
            format!(
                "{name}: {} stuck",
                if *stuck == 1 { "a worker is".to_owned() } else { format!("{stuck} workers are") }
            ),
            "their jobs ignore the request to stop, and others run in their place up to max_stuck".to_owned(),
            format!("`waterwheel jobs --pool {name} --state running --oldest`; a restart ends them"),
        ];
        found.of_pool("stuck_worker", Level::Error, 0.0, words);
    }
    // Without jobs it is no fault: workers may come when there are some.
    if *attached == Some(0) && *queued > 0 {
        let kinds: Vec<_> = pool.kinds.iter().map(|kind| &*kind.name).collect();
        let words = [
            format!("no worker is attached to {name}"),
            format!("nothing runs {}; {} wait", kinds.join(", "), counted(*queued as u64, "job")),
            "start workers, or look at their log; `waterwheel stats` lists those that are attached".to_owned(),
        ];
        found.of_pool("no_attached_worker", Level::Error, 0.0, words);
    }
}

fn programs(found: &mut Found, pool: &PoolSeries) {
    for program in &pool.last.programs {
        let (name, cause) = (&program.name, &program.last_failure);
        let (minute, recent) = (pool.ends(name, MINUTE), pool.ends(name, 2 * RECENT));
        let hurt = minute as f64 / pool.minute().as_secs_f64().max(1.0);
        let subject = format!("program/{name}");
        if !program.is_ready && program.is_failing {
            let detail = format!("no process of it is ready; {} in the last minute", counted(minute, "try"));
            let todo = "correct its command or its files, then `waterwheel reload`; the log has its standard error";
            let words = [format!("{name} cannot start: {cause}"), detail, todo.to_owned()];
            found.add("program_cannot_start", subject, Level::Error, hurt, Duration::ZERO, words);
        } else if minute >= 3 && recent > 0 {
            let title = format!("{name}: {minute} processes crashed in a minute: {cause}");
            let detail = "each took the jobs that it ran with it".to_owned();
            let todo = format!("`waterwheel jobs --pool {} --state failed` lists the jobs", found.pool);
            found.add("crash_loop", subject, Level::Error, hurt, Duration::ZERO, [title, detail, todo]);
        }
    }
}

fn refusals(found: &mut Found, pool: &PoolSeries, flow: &Flow) {
    let is_flood = flood(found, &pool.last);
    for (reason, count) in &flow.refused {
        let share = *count as f64 / flow.arrivals.max(1) as f64;
        let (least, level, todo) = match reason {
            Reason::QueueFull | Reason::DeadlineUnreachable | Reason::TenantShare | Reason::Shed if is_flood => {
                continue;
            }
            Reason::QueueFull | Reason::DeadlineUnreachable | Reason::Shed => {
                (0.02, Level::Error, "add workers or servers (`waterwheel advise`), or find what made the jobs slower")
            }
            Reason::TenantShare => {
                (0.02, Level::Error, "`waterwheel stats --watch` shows who asks most; give it a quota")
            }
            Reason::LimitExceeded => {
                (0.02, Level::Error, "raise the limit if what it protects bears more, or send less")
            }
            Reason::QuotaExceeded => (0.1, Level::Warning, "raise the quota, or ask its tenant to send less"),
            Reason::InvalidField | Reason::PayloadTooLarge => {
                (0.1, Level::Warning, "tell their callers; the log names one of them")
            }
            Reason::NoWorkers if pool.last.attached != Some(0) => (
                0.02,
                Level::Error,
                "attach more workers; `waterwheel stats` shows those that still run jobs that were given up: restart them",
            ),
            // These have sentences of their own.
            _ => continue,
        };
        if *count < FEW || share < least {
            continue;
        }
        let limited: Vec<_> = pool.last.kinds.iter().filter(|kind| kind.is_limited).map(|kind| &*kind.name).collect();
        let of = if *reason == Reason::LimitExceeded { format!(" ({})", limited.join(", ")) } else { String::new() };
        let rate = flow.per_second(*count);
        let words = [
            format!("{} refuses {}: {}{of}", found.pool, per_second(rate), reason.words()),
            format!("{} of what arrives{}", percent(share), usually(pool.usual_refusals(*reason))),
            todo.to_owned(),
        ];
        found.of_pool(&format!("refused_{}", reason.name().to_lowercase()), level, rate, words);
    }
}

/// A tenant that asks for more than half of what all ask for, and is refused. Says whether others are refused, too.
fn flood(found: &mut Found, pool: &PoolSample) -> bool {
    let Some(first) = pool.tenants.iter().max_by(|a, b| a.asks.total_cmp(&b.asks)) else { return false };
    let sum = |of: fn(&TenantRate) -> f64| pool.tenants.iter().map(of).sum::<f64>();
    let (asks, refusals) = (sum(|rate| rate.asks), sum(|rate| rate.refusals));
    let others = asks - first.asks;
    if others < 0.1 || first.asks < asks / 2.0 || first.refusals < (first.asks / 10.0).max(1.0) {
        return false;
    }
    let lost = (refusals - first.refusals).max(0.0);
    let share = lost / others;
    let (level, detail) = if share < 0.02 {
        (Level::Warning, "nothing of the other tenants is refused".to_owned())
    } else {
        (Level::Error, format!("the other tenants lose {} of their {}", percent(share), per_second(others)))
    };
    let name = if first.tenant.is_empty() { "the default tenant" } else { &first.tenant };
    let words = [
        format!(
            "{name} floods {}: {}, of which {} are refused",
            found.pool,
            per_second(first.asks),
            rate(first.refusals)
        ),
        detail,
        "give it a quota ([quota.tenant]), or ask it to send less".to_owned(),
    ];
    found.of_pool("flood", level, first.refusals + lost, words);
    true
}

fn failures(found: &mut Found, pool: &PoolSeries, kind: &str, cause: &str, series: &KindSeries) {
    let share = |seconds| {
        let [failed, runs, _] = series.sums(seconds);
        (failed, failed as f64 / runs.max(failed).max(1) as f64)
    };
    let ((recent, recent_share), (minute, minute_share)) = (share(RECENT), share(MINUTE));
    let usual = series.usual_failures();
    let (least, [last, _, _]) = ((2.0 * usual.unwrap_or(0.0)).clamp(0.1, 0.5), series.sums(2 * RECENT));
    let is_many = recent >= FEW && recent_share >= least;
    let lasts = minute >= 3 && minute_share >= least.max(0.3) && last > 0;
    if !is_many && !lasts {
        return;
    }
    let hurt = minute as f64 / pool.minute().as_secs_f64().max(1.0);
    let words = [
        format!("{kind} fails {} of its jobs: {cause}", percent(minute_share.max(recent_share))),
        format!("{} in the last minute{}", counted(minute, "job"), usually(usual)),
        format!("`waterwheel jobs --kind {kind} --state failed` lists them"),
    ];
    found.add("kind_fails", format!("kind/{kind}"), Level::Error, hurt, Duration::ZERO, words);
}

fn slowness(found: &mut Found, kind: &str, series: &KindSeries) {
    let Some(usual) = series.usual_run().filter(|usual| usual.count >= USUAL_RUNS) else { return };
    let runs = [RECENT, MINUTE].map(|seconds| series.spreads(seconds)[1].distribution());
    let Some(run) = runs.into_iter().find(|run| run.count >= RECENT_RUNS) else { return };
    let times = run.p50.as_secs_f64() / usual.p50.as_secs_f64().max(1e-6);
    // Where only the mixture of short and long jobs changes, the long ones stay as long.
    let is_slower = times >= 3.0 && run.p90.as_secs_f64() >= 1.5 * usual.p90.as_secs_f64();
    if !is_slower || run.p50.saturating_sub(usual.p50) < Duration::from_millis(20) {
        return;
    }
    let words = [
        format!("{kind} runs {times:.0} times as long as usual"),
        format!("half of its jobs run longer than {}, usually {}", time(run.p50), time(usual.p50)),
        format!("look at what it calls; `waterwheel jobs --kind {kind} --state running --oldest`"),
    ];
    found.add("slow_kind", format!("kind/{kind}"), Level::Warning, 0.0, Duration::ZERO, words);
}

fn dead_letters(found: &mut Found, kind: &str, series: &KindSeries) {
    let [[_, _, dead], [_, _, last]] = [MINUTE, 2 * RECENT].map(|seconds| series.sums(seconds));
    if dead < 3 || last == 0 {
        return;
    }
    let words = [
        format!("{kind}: {} failed for good in the last minute", counted(dead, "detached job")),
        "they stay in the store, and are not tried again".to_owned(),
        format!("`waterwheel jobs list --kind {kind} --state failed`; `waterwheel jobs retry` runs them again"),
    ];
    found.add("dead_letters", format!("kind/{kind}"), Level::Warning, dead as f64 / 60.0, Duration::ZERO, words);
}

fn refused(flow: &Flow, reason: Reason) -> u64 {
    flow.refused.iter().find(|(known, _)| *known == reason).map_or(0, |(_, count)| *count)
}

fn counted(count: u64, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "try") => format!("{count} tries"),
        _ => format!("{count} {what}s"),
    }
}

fn rate(per_second: f64) -> String {
    if per_second < 9.95 { format!("{per_second:.1}") } else { format!("{per_second:.0}") }
}

fn per_second(jobs: f64) -> String {
    format!("{} jobs a second", rate(jobs))
}

/// The usual share, if it is known.
fn usually(share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!(", usually {}", percent(share)))
}

fn percent(share: f64) -> String {
    match 100.0 * share {
        0.0 => "0 %".to_owned(),
        percent @ ..1.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

fn time(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds @ ..0.00995 => format!("{:.1} ms", seconds * 1e3),
        seconds @ ..0.9995 => format!("{:.0} ms", seconds * 1e3),
        seconds @ ..9.95 => format!("{seconds:.1} s"),
        seconds @ ..120.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.0} min", seconds / 60.0),
    }
}
