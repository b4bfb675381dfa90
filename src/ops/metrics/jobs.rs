//! Metrics of pools, jobs, kinds and limits.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::{
    super::{Subject, tasks::state_name},
    family::{Families, Family},
};
use crate::{
    model::{Durations, Limit, Reason},
    pool::{AttachedWorkerStats, KindDurations, LimitStats, Pool, PoolStats, ProcessState, ProgramStats},
};

/// The pools.
pub(super) struct JobMetrics(pub(super) Arc<Subject>);

/// A gauge of every pool: name, help, and how to read it.
type Level = (&'static str, &'static str, fn(&PoolStats) -> f64);

const LEVELS: [Level; 15] = [
    ("waterwheel_queue_jobs", "Jobs in the queue", |pool| pool.queued as f64),
    ("waterwheel_queue_jobs_limit", "Most jobs in the queue", |pool| pool.queue_jobs as f64),
    ("waterwheel_queue_bytes", "Payload bytes in the queue", |pool| pool.queued_bytes as f64),
    ("waterwheel_queue_bytes_limit", "Most payload bytes in the queue", |pool| pool.queue_bytes as f64),
    ("waterwheel_waiting_callers", "Callers that wait for capacity", |pool| pool.waiting as f64),
    ("waterwheel_waiting_callers_limit", "Most callers that wait for capacity", |pool| pool.queue_waiting as f64),
    ("waterwheel_queue_oldest_age_seconds", "Age of the oldest queued job", |pool| pool.oldest_age.as_secs_f64()),
    ("waterwheel_queue_expected_wait_seconds", "Expected wait of a job that arrives now", |pool| {
        pool.expected_wait.as_secs_f64()
    }),
    ("waterwheel_jobs_running", "Jobs that hold a worker", |pool| pool.in_flight as f64),
    ("waterwheel_worker_utilization_ratio", "Busy share of the workers, from 0 to 1", |pool| pool.utilization),
    ("waterwheel_pool_paused", "1 while the pool is paused", |pool| f64::from(u8::from(pool.paused.is_some()))),
    ("waterwheel_pool_workers_min", "Least workers", |pool| pool.size.min as f64),
    ("waterwheel_pool_workers_max", "Most workers", |pool| pool.size.max as f64),
    ("waterwheel_pool_workers", "Workers that the pool aims at", |pool| pool.size.workers as f64),
    ("waterwheel_pool_slowdown_ratio", "Run time of jobs, relative to the run time before", |pool| pool.size.slowdown),
];

/// A gauge of every kind with limits; `None` if that limit is not set.
type LimitLevel = (&'static str, &'static str, fn(&LimitStats) -> Option<f64>);

const LIMITS: [LimitLevel; 8] = [
    ("waterwheel_kind_jobs_running", "Jobs of a limited kind that hold a worker", |limit| {
        Some(f64::from(limit.running))
    }),
    ("waterwheel_kind_jobs_running_limit", "Most jobs of a limited kind that hold a worker", |limit| {
        most(limit.limits.all)
    }),
    ("waterwheel_kind_jobs_queued", "Jobs of a limited kind in the queue, which may wait for the limit", |limit| {
        Some(limit.queued as f64)
    }),
    ("waterwheel_kind_starts_per_second_limit", "Most starts of a kind per second", |limit| {
        per_second(limit.limits.all)
    }),
    ("waterwheel_kind_key_jobs_running_limit", "Most jobs of one limit key that hold a worker", |limit| {
        most(limit.limits.per_key)
    }),
    ("waterwheel_kind_key_starts_per_second_limit", "Most starts of one limit key per second", |limit| {
        per_second(limit.limits.per_key)
    }),
    ("waterwheel_kind_limit_keys", "Limit keys in use", |limit| {
        limit.limits.per_key.is_set().then_some(limit.keys as f64)
    }),
    ("waterwheel_kind_limit_keys_limit", "Most limit keys in use; further keys share one limit", |limit| {
        limit.limits.per_key.is_set().then_some(limit.limits.keys as f64)
    }),
];

fn most(limit: Limit) -> Option<f64> {
    limit.concurrency.map(|most| f64::from(most.get()))
}

fn per_second(limit: Limit) -> Option<f64> {
    limit.rate.map(|rate| rate.interval.as_secs_f64().recip())
}

impl fmt::Debug for JobMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobMetrics")
    }
}

impl Collector for JobMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder);
        let stats: Vec<_> = self.0.pools.all().iter().map(Pool::stats).collect();
        for (name, help, read) in LEVELS {
            families.gauge(name, help, |family| {
                stats.iter().try_for_each(|pool| family.level(&[("pool", &*pool.name)], read(pool)))
            });
        }
        workers(&mut families, &stats);
        programs(&mut families, &stats);
        attached(&mut families, &stats);
        limits(&mut families, &stats);
        counts(&mut families, &stats);
        families.counter("waterwheel_jobs_unknown_kind", "Jobs of unknown kinds", |family| {
            family.only_count(self.0.pools.unknown_kinds())
        });
        self.durations(&mut families);
        families.finish()
    }
}

impl JobMetrics {
    fn durations(&self, families: &mut Families<'_>) {
        let pools = self.0.pools.all().iter();
        let pools: Vec<_> = pools.map(|pool| (Arc::clone(pool.name()), pool.durations())).collect();
        let write = |family: &mut Family<'_>, read: fn(&KindDurations) -> &Durations| {
            pools.iter().try_for_each(|(pool, kinds)| {
                kinds
                    .iter()
                    .try_for_each(|kind| family.measured(&[("pool", &**pool), ("kind", &*kind.kind)], read(kind)))
            })
        };
        families.durations("waterwheel_job_queue_wait", "Jobs that ran, from arrival to the start", |family| {
            write(family, |kind| &kind.queue_wait)
        });
        families.durations("waterwheel_job_run_time", "Runs of jobs", |family| write(family, |kind| &kind.run_time));
    }
}

fn workers(families: &mut Families<'_>, stats: &[PoolStats]) {
    families.gauge("waterwheel_workers", "Workers by state", |family| {
        stats.iter().try_for_each(|pool| {
            let mut states: BTreeMap<&str, u32> = ["idle", "busy", "stuck"].into_iter().map(|name| (name, 0)).collect();
            pool.workers.iter().for_each(|worker| *states.entry(state_name(worker.state)).or_default() += 1);
            let mut states = states.into_iter();
            states.try_for_each(|(state, count)| {
                family.level(&[("pool", &*pool.name), ("state", state)], f64::from(count))
            })
        })
    });
    families.counter("waterwheel_factory_failures", "Handlers that could not be made", |family| {
        stats.iter().try_for_each(|pool| {
            pool.kinds.iter().try_for_each(|kind| {
                family.count(&[("pool", &*pool.name), ("kind", &*kind.name)], kind.factory.failures)
            })
        })
    });
    families.counter("waterwheel_slow_polls", "Handler polls that blocked their thread for too long", |family| {
        stats.iter().try_for_each(|pool| family.count(&[("pool", &*pool.name)], pool.slow_polls))
    });
}

/// A counter of a program: its name, what it shows, and where it is read.
type ProgramCount = (&'static str, &'static str, fn(&ProgramStats) -> u64);

const PROGRAM_COUNTS: [ProgramCount; 2] = [
    ("waterwheel_program_starts", "Processes of a program that were started", |program| program.starts),
    ("waterwheel_program_failures", "Processes of a program that ended unasked", |program| program.failures),
];

/// The processes of programs that stay.
fn programs(families: &mut Families<'_>, stats: &[PoolStats]) {
    families.gauge("waterwheel_program_processes", "Processes of a program by what they do", |family| {
        of_programs(stats, |pool, program| {
            ProcessState::ALL.into_iter().try_for_each(|state| {
                let count = program.processes.iter().filter(|process| process.state == state).count();
                family.level(&[("pool", pool), ("program", &program.name), ("state", state.name())], count as f64)
            })
        })
    });
    families.gauge("waterwheel_program_memory_bytes", "Resident memory of the processes of a program", |family| {
        of_programs(stats, |pool, program| {
            let memory: u64 = program.processes.iter().map(|process| process.memory).sum();
            family.level(&[("pool", pool), ("program", &program.name)], memory as f64)
        })
    });
    for (name, help, read) in PROGRAM_COUNTS {
        families.counter(name, help, |family| {
            of_programs(stats, |pool, program| {
                family.count(&[("pool", pool), ("program", &program.name)], read(program))
            })
        });
    }
}

/// A figure of the workers of a pool that are attached from elsewhere.
type AttachedLevel = (&'static str, &'static str, fn(&[AttachedWorkerStats]) -> usize);

const ATTACHED_LEVELS: [AttachedLevel; 2] = [
    ("waterwheel_attached_workers", "Workers that are attached from elsewhere", <[_]>::len),
    ("waterwheel_attached_abandoned_jobs", "Jobs of these that were given up and are not answered", |workers| {
        workers.iter().map(|worker| worker.abandoned).sum()
    }),
];

/// The workers that are attached from elsewhere. Their names are theirs to choose, and so no labels.
fn attached(families: &mut Families<'_>, stats: &[PoolStats]) {
    for (name, help, read) in ATTACHED_LEVELS {
        families.gauge(name, help, |family| {
            let mut pools = stats.iter().filter_map(|pool| Some((&pool.name, pool.attached.as_ref()?)));
            pools.try_for_each(|(pool, workers)| family.level(&[("pool", &**pool)], read(workers) as f64))
        });
    }
}

fn of_programs(stats: &[PoolStats], mut write: impl FnMut(&str, &ProgramStats) -> fmt::Result) -> fmt::Result {
    stats.iter().try_for_each(|pool| pool.programs.iter().try_for_each(|program| write(&pool.name, program)))
}

/// Use and size of the limits of kinds. Kinds without limits have no series, and unset limits have none either. Keys
/// are counted, never named.
fn limits(families: &mut Families<'_>, stats: &[PoolStats]) {
    for (name, help, read) in LIMITS {
        families.gauge(name, help, |family| {
            stats.iter().try_for_each(|pool| {
                let limited = pool.kinds.iter().filter_map(|kind| Some((kind, kind.limit.as_ref().and_then(read)?)));
                limited
                    .into_iter()
                    .try_for_each(|(kind, value)| family.level(&[("pool", &*pool.name), ("kind", &*kind.name)], value))
            })
        });
    }
}

fn counts(families: &mut Families<'_>, stats: &[PoolStats]) {
    families.counter("waterwheel_jobs_accepted", "Accepted jobs", |family| {
        stats.iter().try_for_each(|pool| family.count(&[("pool", &*pool.name)], pool.counts.accepted))
    });
    families.counter("waterwheel_jobs_ended", "Accepted jobs by outcome", |family| {
        stats.iter().try_for_each(|pool| {
            let counts = &pool.counts;
            let outcomes = [
                ("completed", counts.completed),
                ("failed", counts.failed),
                ("cancelled", counts.cancelled),
                ("expired", counts.expired),
                ("panicked", counts.panicked),
                ("shed", counts.shed),
            ];
            let mut outcomes = outcomes.into_iter();
            outcomes
                .try_for_each(|(outcome, count)| family.count(&[("pool", &*pool.name), ("outcome", outcome)], count))
        })
    });
    families.counter("waterwheel_jobs_rejected", "Refused jobs, by reason", |family| {
        stats.iter().try_for_each(|pool| {
            let mut reasons = Reason::REFUSALS.map(Reason::name).into_iter().zip(pool.counts.rejected);
            reasons.try_for_each(|(reason, count)| family.count(&[("pool", &*pool.name), ("reason", reason)], count))
        })
    });
}
