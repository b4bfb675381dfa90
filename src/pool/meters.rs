//! Durations and ended jobs, recorded by each shard separately.

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::{
    ended_jobs::{EndedJob, EndedJobs},
    shard::shard,
};
use crate::{
    model::{JobId, ProgramEnd, Rung, Waterfall},
    scheduler::{Smallest, smallest},
};

/// Longest duration that is recorded, in nanoseconds: one hour.
const MAX_DURATION: u64 = 3_600_000_000_000;

/// Durations by kind. Each shard writes to its own part, so that threads do not contend; readers merge the parts.
pub(super) struct Meters {
    shards: Vec<Mutex<Part>>,
}

/// Queue wait and run time of a kind.
type Histograms = [Histogram<u64>; 2];

/// The part of one shard.
struct Part {
    /// The kinds up to the last one with an ended job here. The first job allocates its histograms, because most
    /// threads run few of the kinds.
    kinds: Vec<Option<Box<Histograms>>>,
    ended: EndedJobs,
}

fn histograms() -> Histograms {
    let histogram = || Histogram::new_with_max(MAX_DURATION, 2).expect("the bounds are valid constants");
    [histogram(), histogram()]
}

impl Meters {
    /// Parts that together remember `ended` jobs.
    pub(super) fn new(shards: usize, ended: usize) -> Self {
        let part = || Mutex::new(Part { kinds: Vec::new(), ended: EndedJobs::new(ended.div_ceil(shards.max(1))) });
        Self { shards: std::iter::repeat_with(part).take(shards).collect() }
    }

    /// Records a job that ended, and its durations if it ran.
    pub(super) fn record(&self, ended: EndedJob) {
        let mut part = self.shards[shard() % self.shards.len()].lock();
        if ended.started {
            let Waterfall { queue, run, .. } = ended.waterfall;
            if part.kinds.len() <= ended.kind {
                part.kinds.resize_with(ended.kind + 1, || None);
            }
            let histograms = part.kinds[ended.kind].get_or_insert_with(|| Box::new(histograms()));
            for (histogram, duration) in histograms.iter_mut().zip([queue, run]) {
                let nanos = u64::try_from(duration.as_nanos()).unwrap_or(MAX_DURATION).clamp(1, MAX_DURATION);
                histogram.saturating_record(nanos);
            }
        }
        let oldest = part.ended.push(ended);
        drop(part);
        drop(oldest);
    }

    /// Adds the last rung of a job that had ended.
    pub(super) fn stop_ended(&self, job: JobId, rung: Rung, program: Option<&ProgramEnd>) {
        self.shards.iter().any(|shard| shard.lock().ended.stop_ended(job, rung, program));
    }

    /// The ended job with this id, if it is remembered.
    pub(super) fn find(&self, job: JobId) -> Option<EndedJob> {
        self.shards.iter().find_map(|shard| shard.lock().ended.find(job))
    }

    /// The ended jobs for which `key` returns a value: the first `limit` by key, and the number of all.
    pub(super) fn list<K: Ord>(&self, limit: usize, key: impl Fn(&EndedJob) -> Option<K>) -> Smallest<K, EndedJob> {
        let (parts, counts): (Vec<_>, Vec<_>) =
            self.shards.iter().map(|shard| shard.lock().ended.list(limit, &key)).unzip();
        (smallest(parts.into_iter().flatten(), limit).0, counts.iter().sum())
    }

    /// Queue wait and run time of `kind` over all shards.
    pub(super) fn of_kind(&self, kind: usize) -> Histograms {
        let mut merged = histograms();
        for shard in &self.shards {
            if let Some(Some(part)) = shard.lock().kinds.get(kind) {
                for (whole, part) in merged.iter_mut().zip(part.iter()) {
                    whole.add(part).expect("all histograms have the same bounds");
                }
            }
        }
        merged
    }

    /// Discards the figures of a kind that is no longer served.
    pub(super) fn forget(&self, kind: usize) {
        for shard in &self.shards {
            if let Some(part) = shard.lock().kinds.get_mut(kind) {
                *part = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{
        super::{
            ended_jobs::JobNames,
            stats::{Distribution, in_buckets},
        },
        *,
    };
    use crate::model::Outcome;

    #[test]
    fn parts_are_merged() {
        let meters = Meters::new(2, 10);
        for millis in 1..=100 {
            super::super::shard::set_shard(millis as usize % 2);
            let zero = Duration::ZERO;
            let run = Duration::from_millis(millis);
            let waterfall = Waterfall { budget: zero, queue: zero, run, left: zero, worker: 0 };
            meters.record(EndedJob {
                job: JobId::next(),
                outcome: Outcome::Completed,
                rung: None,
                started: true,
                waterfall,
                at: Instant::now(),
                names: JobNames::default(),
                failure: None,
                kind: 0,
            });
        }
        let [queue, run] = meters.of_kind(0).each_ref().map(Distribution::of);
        assert_eq!((queue.count, run.count, queue.max), (100, 100, Duration::from_nanos(1)));
        let off = |measured: Duration, truth: f64| (measured.as_secs_f64() / truth - 1.0).abs();
        let [queue_buckets, run_buckets] = meters.of_kind(0).each_ref().map(in_buckets);
        assert_eq!((queue_buckets.counts[0], run_buckets.count()), (100, 100));
        assert!((48..=51).contains(&run_buckets.counts[..=8].iter().sum::<u64>()), "{run_buckets:?}");
        assert!(off(run_buckets.sum, 5.050) < 0.01, "{run_buckets:?}");
        assert!(off(run.p50, 0.050) < 0.01 && off(run.p99, 0.099) < 0.01, "{run:?}");
    }
}
