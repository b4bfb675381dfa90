//! What each shard records of ended jobs: their durations, and the last jobs, for `explain` and `jobs`.

use std::{collections::VecDeque, time::Duration};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use super::{job_names::JobNames, shard::shard, spread::Spread};
use crate::{
    handler::Context,
    model::{Execution, Failure, JobId, JobStage, KindId, Outcome, ProgramEnd, Reason, Rung, Waterfall},
    scheduler::{Smallest, smallest},
};

/// Longest duration that is recorded, in nanoseconds: one hour.
const MAX_DURATION: u64 = 3_600_000_000_000;
/// Longest message that is kept, in bytes.
const MAX_MESSAGE: usize = 1 << 10;

/// An ended job that is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndedJob {
    /// Id of the job.
    pub job: JobId,
    /// How it ended.
    pub outcome: Outcome,
    /// Last rung of the stop ladder; `None` if the run was not stopped.
    pub rung: Option<Rung>,
    /// Whether the handler had begun.
    pub started: bool,
    /// Durations of its phases. Without a run, the worker is 0.
    pub waterfall: Waterfall,
    /// When it ended.
    pub at: Instant,
    /// Its names besides its id.
    pub names: JobNames,
    /// The failure; `None` if the job completed.
    pub failure: Option<Box<EndedFailure>>,
    /// Number of its kind in the pool.
    pub(super) kind: KindId,
}

/// Failure of an ended job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndedFailure {
    /// The failure as a sentence, at most 1 KiB. It excludes the output of a program, which is in `program`.
    pub message: String,
    /// How its program ended, if it had one that ended by itself. Its standard error is at most 3 KiB.
    pub program: Option<ProgramEnd>,
}

/// Records of ended jobs. Each shard writes to its own part, so that threads do not contend; readers merge the parts.
pub(super) struct Meters {
    shards: Vec<Mutex<JobsPart>>,
}

/// Queue wait and run time of a kind.
type Histograms = [Histogram<u64>; 2];

/// Numbers of jobs that ended by a fault of their handler, in the order of [`Reason::FAULTS`].
pub(super) type Faults = [u64; Reason::FAULTS.len()];

/// The figures of one kind.
struct KindPart {
    durations: Histograms,
    faults: Faults,
}

/// The part of one shard. Half of the remembered jobs are jobs that did not complete, because completed jobs would
/// replace them within seconds.
struct JobsPart {
    /// The kinds up to the last one with an ended job here. The first job allocates its histograms, because most
    /// threads run few of the kinds.
    kinds: Vec<Option<Box<KindPart>>>,
    completed: Ring,
    failed: Ring,
}

/// The last recorded jobs, the oldest first.
struct Ring {
    jobs: VecDeque<EndedJob>,
    capacity: usize,
}

impl EndedJob {
    /// An accepted job that did not complete.
    pub(super) fn failed(cx: &Context, failure: &Failure, at: Instant) -> Self {
        Self {
            rung: failure.rung,
            started: failure.execution == Execution::Started,
            failure: Some(Box::new(EndedFailure::of(cx, failure))),
            ..Self::new(cx, failure.outcome, failure.run, at)
        }
    }

    /// A job that ran for `run`, or never began, and ended at `at`; not yet why.
    pub(super) fn new(cx: &Context, outcome: Outcome, run: Duration, at: Instant) -> Self {
        let (budget, queue) = (cx.deadline().budget(), cx.queued(at));
        Self {
            job: cx.job(),
            outcome,
            rung: None,
            started: cx.waited().is_some(),
            waterfall: Waterfall { budget, queue, run, left: budget.saturating_sub(queue + run), worker: cx.worker() },
            at,
            names: JobNames::of(cx),
            failure: None,
            kind: cx.kind_id(),
        }
    }

    /// The position of its reason in [`Reason::FAULTS`], if its handler is to blame.
    fn fault(&self) -> Option<usize> {
        let reason = self.outcome.reason();
        Reason::FAULTS.iter().position(|fault| *fault == reason)
    }

    /// Its stage.
    pub(super) fn stage(&self) -> JobStage {
        if self.outcome == Outcome::Completed { JobStage::Completed } else { JobStage::Failed }
    }

    /// Time since it arrived.
    pub(super) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at) + self.waterfall.queue + self.waterfall.run
    }
}

impl EndedFailure {
    fn of(cx: &Context, failure: &Failure) -> Self {
        let program = cx.program_end();
        let mut message = match (&failure.error, program) {
            (Some(_), Some(end)) => end.summary.clone(),
            _ => failure.to_string(),
        };
        if message.len() > MAX_MESSAGE {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE - '…'.len_utf8()));
            message.push('…');
        }
        Self { message, program: program.map(Self::kept) }
    }

    /// The part of a program's end that is kept, without its sentence, which is in the message.
    fn kept(end: &ProgramEnd) -> ProgramEnd {
        ProgramEnd { summary: String::new(), stderr: end.stderr.clone(), ..*end }
    }
}

fn histograms() -> Histograms {
    let histogram = || Histogram::new_with_max(MAX_DURATION, 2).expect("the bounds are valid constants");
    [histogram(), histogram()]
}

impl Meters {
    /// Parts that together remember `ended` jobs.
    pub(super) fn new(shards: usize, ended: usize) -> Self {
        let capacity = ended.div_ceil(shards.max(1));
        let failed = capacity.div_ceil(2);
        let part =
            || JobsPart { kinds: Vec::new(), completed: Ring::new(capacity - failed), failed: Ring::new(failed) };
        Self { shards: std::iter::repeat_with(|| Mutex::new(part())).take(shards).collect() }
    }

    /// Records a job that ended, and its durations if it ran.
    pub(super) fn record(&self, ended: EndedJob) {
        let mut part = self.shards[shard() % self.shards.len()].lock();
        let fault = ended.fault();
        if ended.started || fault.is_some() {
            let figures = part.of_kind(ended.kind);
            if let Some(fault) = fault {
                figures.faults[fault] += 1;
            }
            if ended.started {
                figures.add_durations(ended.waterfall);
            }
        }
        let ring = if ended.outcome == Outcome::Completed { &mut part.completed } else { &mut part.failed };
        let oldest = ring.push(ended);
        // Dropped without the lock.
        drop(part);
        drop(oldest);
    }

    /// Adds the last rung of a job that had ended, and how its program ended.
    pub(super) fn stop_ended(&self, job: JobId, rung: Rung, program: Option<&ProgramEnd>) {
        for shard in &self.shards {
            let mut part = shard.lock();
            // The job has ended a short while ago, so it is among the last.
            if let Some(ended) = part.failed.jobs.iter_mut().rev().find(|ended| ended.job == job) {
                ended.rung = Some(rung);
                if let Some(failure) = &mut ended.failure {
                    failure.program = program.map(EndedFailure::kept);
                }
                return;
            }
        }
    }

    /// The ended job with this id, if it is remembered.
    pub(super) fn find(&self, job: JobId) -> Option<EndedJob> {
        self.last(|ended| ended.job == job)
    }

    /// The last remembered job for which `is` holds.
    pub(super) fn last(&self, is: impl Fn(&EndedJob) -> bool) -> Option<EndedJob> {
        let last = |shard: &Mutex<JobsPart>| {
            shard.lock().ended().filter(|ended| is(ended)).max_by_key(|ended| ended.at).cloned()
        };
        self.shards.iter().filter_map(last).max_by_key(|ended| ended.at)
    }

    /// The ended jobs for which `key` returns a value: the first `limit` by key, and the number of all.
    pub(super) fn list<K: Ord>(&self, limit: usize, key: impl Fn(&EndedJob) -> Option<K>) -> Smallest<K, EndedJob> {
        let (mut first, mut all) = (Vec::new(), 0);
        for shard in &self.shards {
            let part = shard.lock();
            let (ended, count) = smallest(part.ended().filter_map(|ended| Some((key(ended)?, ended))), limit);
            first.extend(ended.into_iter().map(|(key, ended)| (key, ended.clone())));
            all += count;
        }
        (smallest(first.into_iter(), limit).0, all)
    }

    /// Queue wait and run time of `kind` over all shards.
    pub(super) fn of_kind(&self, kind: KindId) -> Histograms {
        let mut merged = histograms();
        self.each_part(kind, |part| {
            for (whole, part) in merged.iter_mut().zip(&part.durations) {
                whole.add(part).expect("all histograms have the same bounds");
            }
        });
        merged
    }

    /// The same in small histograms.
    pub(super) fn spreads(&self, kind: KindId) -> [Spread; 2] {
        let mut merged = [Spread::default(), Spread::default()];
        self.each_part(kind, |part| merged.iter_mut().zip(&part.durations).for_each(|(all, part)| all.add_all(part)));
        merged
    }

    /// Jobs of `kind` that ended by a fault of their handler.
    pub(super) fn faults(&self, kind: KindId) -> Faults {
        let mut faults = Faults::default();
        self.each_part(kind, |part| faults.iter_mut().zip(part.faults).for_each(|(sum, count)| *sum += count));
        faults
    }

    fn each_part(&self, kind: KindId, mut look: impl FnMut(&KindPart)) {
        for shard in &self.shards {
            if let Some(Some(part)) = shard.lock().kinds.get(kind.0) {
                look(part);
            }
        }
    }

    /// The last remembered one of these jobs, of each kind.
    pub(super) fn last_failures(&self) -> FxHashMap<KindId, EndedJob> {
        let mut last = FxHashMap::<KindId, EndedJob>::default();
        for shard in &self.shards {
            for ended in shard.lock().failed.jobs.iter().rev().filter(|ended| ended.fault().is_some()) {
                if last.get(&ended.kind).is_none_or(|known| known.at < ended.at) {
                    last.insert(ended.kind, ended.clone());
                }
            }
        }
        last
    }

    /// Discards the figures of a kind that is no longer served.
    pub(super) fn forget(&self, kind: KindId) {
        for shard in &self.shards {
            if let Some(part) = shard.lock().kinds.get_mut(kind.0) {
                *part = None;
            }
        }
    }
}

impl KindPart {
    fn add_durations(&mut self, Waterfall { queue, run, .. }: Waterfall) {
        for (histogram, duration) in self.durations.iter_mut().zip([queue, run]) {
            let nanos = u64::try_from(duration.as_nanos()).unwrap_or(MAX_DURATION).clamp(1, MAX_DURATION);
            histogram.saturating_record(nanos);
        }
    }
}

impl JobsPart {
    fn of_kind(&mut self, kind: KindId) -> &mut KindPart {
        if self.kinds.len() <= kind.0 {
            self.kinds.resize_with(kind.0 + 1, || None);
        }
        self.kinds[kind.0]
            .get_or_insert_with(|| Box::new(KindPart { durations: histograms(), faults: Faults::default() }))
    }

    fn ended(&self) -> impl Iterator<Item = &EndedJob> {
        self.completed.jobs.iter().chain(&self.failed.jobs)
    }
}

impl Ring {
    fn new(capacity: usize) -> Self {
        Self { jobs: VecDeque::new(), capacity }
    }

    /// Adds a job. Returns the oldest one if the ring was full.
    fn push(&mut self, ended: EndedJob) -> Option<EndedJob> {
        if self.capacity == 0 {
            return Some(ended);
        }
        if self.jobs.is_empty() {
            // Allocated at once with the first job, so that later ones do not allocate.
            self.jobs.reserve_exact(self.capacity);
        }
        let oldest = if self.jobs.len() < self.capacity { None } else { self.jobs.pop_front() };
        self.jobs.push_back(ended);
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::stats::{Distribution, in_buckets},
        *,
    };

    fn ended(job: JobId, outcome: Outcome, run: Duration) -> EndedJob {
        let zero = Duration::ZERO;
        let waterfall = Waterfall { budget: zero, queue: zero, run, left: zero, worker: 0 };
        EndedJob {
            job,
            outcome,
            rung: None,
            started: true,
            waterfall,
            at: Instant::now(),
            names: JobNames::default(),
            failure: None,
            kind: KindId::default(),
        }
    }

    #[test]
    fn the_last_jobs_are_kept_and_completed_ones_push_no_failure_out() {
        let jobs: Vec<JobId> = std::iter::repeat_with(JobId::next).take(10).collect();
        let kept = Meters::new(1, 5);
        for (index, job) in jobs.iter().enumerate() {
            let outcome = if index < 5 { Outcome::HandlerFailed } else { Outcome::Completed };
            kept.record(ended(*job, outcome, Duration::ZERO));
        }
        let part = kept.shards[0].lock();
        let rings = [&part.completed.jobs, &part.failed.jobs].map(|jobs| (jobs.len(), jobs.capacity()));
        drop(part);
        assert_eq!(rings, [(2, 2), (3, 3)], "each allocates once");
        let known: Vec<JobId> = jobs.iter().copied().filter(|job| kept.find(*job).is_some()).collect();
        assert_eq!(known, [&jobs[2..5], &jobs[8..]].concat());
        kept.stop_ended(jobs[4], Rung::Forced, None);
        kept.stop_ended(jobs[0], Rung::Stuck, None);
        let rungs: Vec<_> = jobs[2..5].iter().map(|job| kept.find(*job).and_then(|ended| ended.rung)).collect();
        assert_eq!(rungs, [None, None, Some(Rung::Forced)]);
        let none = Meters::new(1, 0);
        none.record(ended(jobs[0], Outcome::HandlerFailed, Duration::ZERO));
        assert!(none.find(jobs[0]).is_none());
        assert!(size_of::<EndedJob>() <= 216, "{}", size_of::<EndedJob>());
    }

    #[test]
    fn parts_are_merged() {
        let meters = Meters::new(2, 10);
        for millis in 1..=100 {
            super::super::shard::set_shard(millis as usize % 2);
            meters.record(ended(JobId::next(), Outcome::Completed, Duration::from_millis(millis)));
        }
        let [queue, run] = meters.of_kind(KindId::default()).each_ref().map(Distribution::of);
        assert_eq!((queue.count, run.count, queue.max), (100, 100, Duration::from_nanos(1)));
        let off = |measured: Duration, truth: f64| (measured.as_secs_f64() / truth - 1.0).abs();
        let [queue_buckets, run_buckets] = meters.of_kind(KindId::default()).each_ref().map(in_buckets);
        assert_eq!((queue_buckets.counts[0], run_buckets.count()), (100, 100));
        assert!((48..=51).contains(&run_buckets.counts[..=8].iter().sum::<u64>()), "{run_buckets:?}");
        assert!(off(run_buckets.sum, 5.050) < 0.01, "{run_buckets:?}");
        assert!(off(run.p50, 0.050) < 0.01 && off(run.p99, 0.099) < 0.01, "{run:?}");
    }
}
