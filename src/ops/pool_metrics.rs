//! Metrics of pools, jobs, kinds and limits.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::{
    families::{Exemplar, Families},
    lower,
    metrics::OTHER_TENANTS,
};
use crate::{
    model::{Limit, Reason, RecordedEnd},
    pool::{EndedJob, KindStats, LimitStats, Pool, PoolStats, Pools, ProcessState},
};

/// A gauge of every pool: name, help, and function that reads it.
type Level = (&'static str, &'static str, fn(&PoolStats) -> f64);

const LEVELS: [Level; 17] = [
    ("waterwheel_queue_jobs", "Jobs in the queue", |pool| pool.queued as f64),
    ("waterwheel_queue_jobs_limit", "Limit of jobs in the queue", |pool| pool.queue_jobs as f64),
    ("waterwheel_queue_bytes", "Payload bytes in the queue", |pool| pool.queued_bytes as f64),
    ("waterwheel_queue_bytes_limit", "Limit of payload bytes in the queue", |pool| pool.queue_bytes as f64),
    ("waterwheel_waiting_callers", "Callers that wait for capacity", |pool| pool.waiting as f64),
    ("waterwheel_waiting_callers_limit", "Limit of callers that wait for capacity", |pool| pool.queue_waiting as f64),
    ("waterwheel_queue_oldest_age_seconds", "Age of the oldest queued job", |pool| pool.oldest_age.as_secs_f64()),
    (
        "waterwheel_queue_expected_wait_seconds",
        "Expected wait of a job of the default class that arrives now",
        |pool| pool.expected_wait.as_secs_f64(),
    ),
    ("waterwheel_jobs_running", "Jobs that hold a worker", |pool| pool.in_flight as f64),
    ("waterwheel_jobs_stale", "Running jobs older than the stale_after of their pool", |pool| pool.stale as f64),
    ("waterwheel_worker_utilization_ratio", "Busy share of the workers, from 0 to 1", |pool| pool.utilization),
    ("waterwheel_pool_paused", "1 while the pool is paused", |pool| f64::from(u8::from(pool.paused.is_some()))),
    ("waterwheel_pool_workers_min", "Smallest number of workers", |pool| pool.size.min as f64),
    ("waterwheel_pool_workers_max", "Largest number of workers", |pool| pool.size.max as f64),
    ("waterwheel_pool_workers", "Target number of workers", |pool| pool.size.workers as f64),
    ("waterwheel_pool_cold_start_seconds", "Usual time until the first worker attaches, if jobs want one", |pool| {
        pool.size.cold_start.as_secs_f64()
    }),
    (
        "waterwheel_pool_slowdown_ratio",
        "Recent run time of jobs, divided by the usual run time of their kinds",
        |pool| pool.size.slowdown,
    ),
];

/// A counter of every pool: name, help, and function that reads it.
type Count = (&'static str, &'static str, fn(&PoolStats) -> u64);

const COUNTS: [Count; 3] = [
    ("waterwheel_slow_polls", "Handler polls that blocked their thread for too long", |pool| pool.slow_polls),
    ("waterwheel_late_messages", "Messages of workers about jobs that were over, which were dropped", |pool| {
        pool.late_messages
    }),
    ("waterwheel_jobs_accepted", "Accepted jobs", |pool| pool.counts.accepted),
];

/// A gauge of every kind with limits: name, help, and function that reads it. `None` if that limit is not set.
type LimitLevel = (&'static str, &'static str, fn(&LimitStats) -> Option<f64>);

const LIMITS: [LimitLevel; 8] = [
    ("waterwheel_kind_jobs_running", "Jobs of a limited kind that hold a worker", |limit| {
        Some(f64::from(limit.running))
    }),
    ("waterwheel_kind_jobs_running_limit", "Limit of running jobs of a kind", |limit| concurrency(limit.limits.all)),
    ("waterwheel_kind_jobs_queued", "Jobs of a limited kind in the queue, which may wait for the limit", |limit| {
        Some(limit.queued as f64)
    }),
    ("waterwheel_kind_starts_per_second_limit", "Limit of starts of a kind per second", |limit| {
        per_second(limit.limits.all)
    }),
    ("waterwheel_kind_key_jobs_running_limit", "Limit of running jobs of one limit key", |limit| {
        concurrency(limit.limits.per_key)
    }),
    ("waterwheel_kind_key_starts_per_second_limit", "Limit of starts of one limit key per second", |limit| {
        per_second(limit.limits.per_key)
    }),
    ("waterwheel_kind_limit_keys", "Limit keys in use", |limit| {
        limit.limits.per_key.is_set().then_some(limit.keys as f64)
    }),
    (
        "waterwheel_kind_limit_keys_limit",
        "Limit of keys that are counted separately; further keys share one limit",
        |limit| limit.limits.per_key.is_set().then_some(limit.limits.keys as f64),
    ),
];

fn concurrency(limit: Limit) -> Option<f64> {
    limit.concurrency.map(|max| f64::from(max.get()))
}

fn per_second(limit: Limit) -> Option<f64> {
    limit.rate.map(|rate| rate.interval.as_secs_f64().recip())
}

/// Writes the metrics of all pools, with exemplars of the runs that ended after a time, if one is given.
pub(super) fn write(families: &mut Families, pools: &Pools, exemplars_since: Option<Instant>) {
    let stats: Vec<_> = pools.all().iter().map(Pool::stats).collect();
    for (name, help, read) in LEVELS {
        families.gauges(name, help, stats.iter().map(|pool| ([("pool", &*pool.name)], read(pool))));
    }
    for (name, help, read) in COUNTS {
        families.counters(name, help, stats.iter().map(|pool| ([("pool", &*pool.name)], read(pool))));
    }
    workers(families, &stats);
    programs(families, &stats);
    attached(families, &stats);
    limits(families, &stats);
    counts(families, &stats);
    families.counter("waterwheel_jobs_unknown_kind", "Jobs of unknown kinds", pools.unknown_kinds());
    tenants(families, pools);
    durations(families, pools, exemplars_since);
}

/// The jobs of the tenants that the configuration names, and of all others.
fn tenants(families: &mut Families, pools: &Pools) {
    let tenants: Vec<_> = pools.all().iter().map(|pool| (&**pool.name(), pool.tenants())).collect();
    let tenants = tenants.iter().flat_map(|(pool, tenants)| tenants.iter().map(move |tenant| (*pool, tenant)));
    let jobs = tenants.flat_map(|(pool, (tenant, jobs))| {
        let tenant = tenant.as_deref().unwrap_or(OTHER_TENANTS);
        let ends = RecordedEnd::NAMES.into_iter().zip(jobs);
        ends.map(move |(end, count)| ([("pool", pool), ("tenant", tenant), ("end", end)], *count))
    });
    families.counters("waterwheel_tenant_jobs", "Jobs that ended or were refused, by tenant", jobs);
}

fn durations(families: &mut Families, pools: &Pools, exemplars_since: Option<Instant>) {
    let drains: Vec<_> = pools.all().iter().map(|pool| (&**pool.name(), pool.drain_durations())).collect();
    let drains = drains.iter().map(|(pool, drains)| ([("pool", *pool)], drains));
    families.durations("waterwheel_drain_duration", "Duration of drains, until no job was left", drains);
    let kinds: Vec<_> = pools.all().iter().map(|pool| (&**pool.name(), pool.durations())).collect();
    let kinds = kinds.iter().flat_map(|(pool, kinds)| kinds.iter().map(move |kind| (pool, kind)));
    let kinds = kinds.map(|(pool, kind)| ([("pool", *pool), ("kind", &*kind.kind)], kind));
    let waits = kinds.clone().map(|(labels, kind)| (labels, &kind.queue_wait));
    families.durations("waterwheel_job_queue_wait", "Time from arrival to the start, of jobs that ran", waits);
    let mut exemplars = exemplars_since.map(|since| exemplars(pools, since)).unwrap_or_default();
    let runs = kinds.map(|(labels, kind)| {
        let [(_, pool), (_, kind_name)] = labels;
        let exemplars = exemplars.remove(&(pool.to_owned(), kind_name.to_owned())).unwrap_or_default();
        (labels, (&kind.run_time, exemplars))
    });
    families.durations("waterwheel_job_run_time", "Run time of jobs", runs);
}

/// Exemplars of run times, by the names of pool and kind.
fn exemplars(pools: &Pools, since: Instant) -> BTreeMap<(String, String), Vec<Exemplar>> {
    let mut exemplars = BTreeMap::<_, Vec<_>>::new();
    for pool in pools.all() {
        for ((kind, _), EndedJob { names, waterfall, at, .. }) in pool.traced_runs(since) {
            let exemplar = Exemplar { trace_id: names.trace_id.unwrap_or_default(), duration: waterfall.run, at };
            exemplars.entry((pool.name().to_string(), kind.to_string())).or_default().push(exemplar);
        }
    }
    exemplars
}

/// Each kind, with its labels.
fn kinds(stats: &[PoolStats]) -> impl Iterator<Item = ([(&'static str, &str); 2], &KindStats)> {
    stats.iter().flat_map(|pool| pool.kinds.iter().map(|kind| ([("pool", &*pool.name), ("kind", &*kind.name)], kind)))
}

fn workers(families: &mut Families, stats: &[PoolStats]) {
    let states = stats.iter().flat_map(|pool| {
        let mut states: BTreeMap<String, u32> = ["idle", "busy", "stuck"].map(|name| (name.to_owned(), 0)).into();
        pool.workers.iter().for_each(|worker| *states.entry(lower(worker.state)).or_default() += 1);
        let row = |(state, count)| ([("pool", pool.name.to_string()), ("state", state)], f64::from(count));
        states.into_iter().map(row)
    });
    families.gauges("waterwheel_workers", "Workers by state", states);
    let failures = kinds(stats).map(|(labels, kind)| (labels, kind.factory.failures));
    families.counters("waterwheel_factory_failures", "Failed attempts to create a handler", failures);
}

/// The processes of long-running programs.
fn programs(families: &mut Families, stats: &[PoolStats]) {
    let programs = stats.iter().flat_map(|pool| {
        pool.programs.iter().map(|program| ([("pool", &*pool.name), ("program", &*program.name)], program))
    });
    let processes = programs.clone().flat_map(|([pool, name], program)| {
        ProcessState::ALL.into_iter().map(move |state| {
            let count = program.processes.iter().filter(|process| process.state == state).count();
            ([pool, name, ("state", state.name())], count as f64)
        })
    });
    families.gauges("waterwheel_program_processes", "Processes of a program by state", processes);
    let memory = programs.clone().map(|(labels, program)| {
        let memory: u64 = program.processes.iter().map(|process| process.memory).sum();
        (labels, memory as f64)
    });
    families.gauges("waterwheel_program_memory_bytes", "Resident memory of the processes of a program", memory);
    let starts = programs.clone().map(|(labels, program)| (labels, program.starts));
    families.counters("waterwheel_program_starts", "Processes of a program that were started", starts);
    let failures = programs.map(|(labels, program)| (labels, program.failures));
    let help = "Processes of a program that ended although the server had not asked them to";
    families.counters("waterwheel_program_failures", help, failures);
}

/// Attached workers. They choose their own names, so names are not labels.
fn attached(families: &mut Families, stats: &[PoolStats]) {
    let pools = stats.iter().filter_map(|pool| Some(([("pool", &*pool.name)], pool.attached.as_ref()?)));
    let count = pools.clone().map(|(labels, workers)| (labels, workers.len() as f64));
    families.gauges("waterwheel_attached_workers", "Attached workers", count);
    let abandoned = pools.map(|(labels, workers)| {
        let abandoned: usize = workers.iter().map(|worker| worker.abandoned).sum();
        (labels, abandoned as f64)
    });
    let help = "Jobs that attached workers still run although their callers have been answered";
    families.gauges("waterwheel_attached_abandoned_jobs", help, abandoned);
}

/// Use and size of the limits of kinds. Kinds without limits, and unset limits, have no series. Keys are counted, but
/// never named.
fn limits(families: &mut Families, stats: &[PoolStats]) {
    for (name, help, read) in LIMITS {
        let limited = kinds(stats).filter_map(|(labels, kind)| Some((labels, kind.limit.as_ref().and_then(read)?)));
        families.gauges(name, help, limited);
    }
    let limited = kinds(stats).filter(|(_, kind)| kind.limit.is_some());
    let waits = limited.map(|(labels, kind)| (labels, kind.expected_wait.as_secs_f64()));
    let help = "Expected wait of a job of a limited kind, of the default class, that arrives now";
    families.gauges("waterwheel_kind_expected_wait_seconds", help, waits);
}

fn counts(families: &mut Families, stats: &[PoolStats]) {
    let ended = stats.iter().flat_map(|pool| {
        let counts = &pool.counts;
        [
            ("completed", counts.completed),
            ("failed", counts.failed),
            ("cancelled", counts.cancelled),
            ("expired", counts.expired),
            ("panicked", counts.panicked),
            ("shed", counts.shed),
        ]
        .map(|(outcome, count)| ([("pool", &*pool.name), ("outcome", outcome)], count))
    });
    families.counters("waterwheel_jobs_ended", "Ended jobs, by outcome", ended);
    let failed = kinds(stats).flat_map(|([pool, kind], stats)| {
        let faults = Reason::FAULTS.map(Reason::name).into_iter().zip(stats.faults);
        faults.map(move |(reason, count)| ([pool, kind, ("reason", reason)], count))
    });
    families.counters("waterwheel_jobs_failed", "Jobs that ended by a fault of their handler, by reason", failed);
    let rejected = stats.iter().flat_map(|pool| {
        let reasons = Reason::REFUSALS.into_iter().zip(pool.counts.rejected);
        // Quotas hold over all pools, and count what they refuse by tenant.
        let of_pool = reasons.filter(|(reason, _)| *reason != Reason::QuotaExceeded);
        of_pool.map(|(reason, count)| ([("pool", &*pool.name), ("reason", reason.name())], count))
    });
    families.counters("waterwheel_jobs_rejected", "Refused jobs, by reason", rejected);
}
