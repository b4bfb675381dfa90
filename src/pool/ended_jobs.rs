//! The memory of ended jobs, for `explain` and `jobs`.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    handler::Context,
    model::{Execution, Failure, JobId, JobStage, Outcome, ProgramEnd, RequestId, Rung, Waterfall},
    scheduler::{Smallest, smallest},
};

/// Longest message that is kept, in bytes.
const MAX_MESSAGE: usize = 1 << 10;

/// An ended job that is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The failure; `None` if the job completed, or if the outcome says everything.
    pub failure: Option<Box<EndedFailure>>,
    /// Index of its kind in the pool.
    pub(super) kind: usize,
}

/// Names of a job besides its id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobNames {
    /// Correlation id of its call, if there is one.
    pub request_id: Option<RequestId>,
    /// Tenant; `None` for the default one.
    pub tenant: Option<Arc<str>>,
    /// Caller; `None` without authentication.
    pub principal: Option<Arc<str>>,
    /// What ran it, if that was not the server itself.
    pub runner: Option<Box<str>>,
}

/// Failure of an ended job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndedFailure {
    /// The failure as a sentence, at most 1 KiB. It excludes the output of a program, which is in `program`.
    pub message: String,
    /// How its program ended, if it had one that ended by itself. Its standard error is at most 3 KiB.
    pub program: Option<ProgramEnd>,
}

/// The last ended jobs. Half of the capacity is for jobs that did not complete, because completed jobs would replace
/// them within seconds.
pub(super) struct EndedJobs {
    completed: Ring,
    failed: Ring,
}

/// The last recorded jobs, the oldest first.
struct Ring {
    jobs: VecDeque<EndedJob>,
    capacity: usize,
}

impl EndedJob {
    /// A job that had a worker and did not complete.
    pub(super) fn failed(cx: &Context, kind: usize, failure: &Failure, at: Instant) -> Self {
        Self {
            rung: failure.rung,
            started: failure.execution == Execution::Started,
            failure: Some(Box::new(EndedFailure::of(cx, failure))),
            ..Self::new(cx, kind, failure.outcome, failure.run, at)
        }
    }

    /// A job that ran for `run`, and ended at `at`.
    pub(super) fn new(cx: &Context, kind: usize, outcome: Outcome, run: Duration, at: Instant) -> Self {
        let waited = cx.waited();
        let (budget, queue) = (cx.deadline().budget(), waited.unwrap_or_default());
        Self {
            job: cx.job(),
            outcome,
            rung: None,
            started: waited.is_some(),
            waterfall: Waterfall { budget, queue, run, left: budget.saturating_sub(queue + run), worker: cx.worker() },
            at,
            names: JobNames::of(cx),
            failure: None,
            kind,
        }
    }

    /// A job that ended at `at` before it began.
    pub(super) fn of_queued(cx: &Context, kind: usize, outcome: Outcome, at: Instant) -> Self {
        let mut ended = Self::new(cx, kind, outcome, Duration::ZERO, at);
        ended.waterfall.queue = at.saturating_duration_since(cx.deadline().arrival());
        ended.waterfall.left = ended.waterfall.budget.saturating_sub(ended.waterfall.queue);
        ended
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

impl JobNames {
    pub(super) fn of(cx: &Context) -> Self {
        Self {
            request_id: cx.known_request_id().cloned(),
            tenant: cx.tenant().cloned(),
            principal: cx.principal().cloned(),
            runner: cx.runner().map(|runner| runner.to_string().into()),
        }
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

impl EndedJobs {
    pub(super) fn new(capacity: usize) -> Self {
        let failed = capacity.div_ceil(2);
        Self { completed: Ring::new(capacity - failed), failed: Ring::new(failed) }
    }

    /// Records a job in place of the oldest one of its sort, which is returned, to be dropped outside of a lock.
    pub(super) fn push(&mut self, ended: EndedJob) -> Option<EndedJob> {
        let ring = if ended.outcome == Outcome::Completed { &mut self.completed } else { &mut self.failed };
        ring.push(ended)
    }

    /// Adds the last rung of an ended job, and how its program ended. Returns whether the job is remembered.
    pub(super) fn stop_ended(&mut self, job: JobId, rung: Rung, program: Option<&ProgramEnd>) -> bool {
        // The job has ended a short while ago, so it is among the last.
        let Some(ended) = self.failed.jobs.iter_mut().rev().find(|ended| ended.job == job) else { return false };
        ended.rung = Some(rung);
        if let Some(failure) = &mut ended.failure {
            failure.program = program.map(EndedFailure::kept);
        }
        true
    }

    pub(super) fn find(&self, job: JobId) -> Option<EndedJob> {
        self.iter().find(|ended| ended.job == job).cloned()
    }

    /// The ended jobs for which `key` returns a value: the first `limit` by key, and the number of all.
    pub(super) fn list<K: Ord>(&self, limit: usize, key: impl Fn(&EndedJob) -> Option<K>) -> Smallest<K, EndedJob> {
        let (smallest, all) = smallest(self.iter().filter_map(|ended| Some((key(ended)?, ended))), limit);
        (smallest.into_iter().map(|(key, ended)| (key, ended.clone())).collect(), all)
    }

    fn iter(&self) -> impl Iterator<Item = &EndedJob> {
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
    use super::*;

    fn ended(job: JobId, outcome: Outcome) -> EndedJob {
        let zero = Duration::ZERO;
        let waterfall = Waterfall { budget: zero, queue: zero, run: zero, left: zero, worker: 0 };
        EndedJob {
            job,
            outcome,
            rung: None,
            started: true,
            waterfall,
            at: Instant::now(),
            names: JobNames::default(),
            failure: None,
            kind: 0,
        }
    }

    #[test]
    fn the_last_jobs_are_kept_and_completed_ones_push_no_failure_out() {
        let jobs: Vec<JobId> = std::iter::repeat_with(JobId::next).take(10).collect();
        let mut kept = EndedJobs::new(5);
        for (index, job) in jobs.iter().enumerate() {
            kept.push(ended(*job, if index < 5 { Outcome::HandlerFailed } else { Outcome::Completed }));
        }
        let rings = [&kept.completed.jobs, &kept.failed.jobs].map(|jobs| (jobs.len(), jobs.capacity()));
        assert_eq!(rings, [(2, 2), (3, 3)], "each allocates once");
        let known: Vec<JobId> = jobs.iter().copied().filter(|job| kept.find(*job).is_some()).collect();
        assert_eq!(known, [&jobs[2..5], &jobs[8..]].concat());
        assert!(kept.stop_ended(jobs[4], Rung::Forced, None));
        assert!(!kept.stop_ended(jobs[0], Rung::Stuck, None), "it is forgotten");
        let rungs: Vec<_> = jobs[2..5].iter().map(|job| kept.find(*job).and_then(|ended| ended.rung)).collect();
        assert_eq!(rungs, [None, None, Some(Rung::Forced)]);
        let mut none = EndedJobs::new(0);
        assert!(none.push(ended(jobs[0], Outcome::HandlerFailed)).is_some() && none.find(jobs[0]).is_none());
        assert!(size_of::<EndedJob>() <= 192, "{}", size_of::<EndedJob>());
    }
}
