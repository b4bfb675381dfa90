//! Explains one job. The wait of a queued job comes from `src/scheduler/explain.rs`.

use tokio::time::Instant;

use super::{
    ListedJob, Pool, Pools,
    core::{Holding, Wait},
};
use crate::model::JobId;

/// State of a job: what it waits for, how it runs, or how it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The job.
    pub job: ListedJob,
    /// What it waits for; `None` if it has begun.
    pub wait: Option<Wait>,
}

impl Pool {
    /// The state of a job; `None` if the pool does not know it: it was never accepted, or it ended too many jobs ago.
    /// This scans every queued, running and remembered job.
    #[must_use]
    pub fn explain(&self, job: JobId) -> Option<Explanation> {
        let (shell, now) = (self.shell(), Instant::now());
        let held = shell.read(|core| core.explain(now, |cx| cx.job() == job));
        let is_open = matches!(held, Some((_, holding, _)) if !matches!(holding, Holding::Running { ended: true, .. }));
        if !is_open && let Some(ended) = shell.meters.find(job) {
            return Some(Explanation { job: ListedJob::ended(shell, ended, now), wait: None });
        }
        held.map(|(cx, holding, wait)| Explanation { job: ListedJob::held(&cx, holding, now), wait })
    }
}

impl Pools {
    /// [`Pool::explain`] over all pools.
    #[must_use]
    pub fn explain(&self, job: JobId) -> Option<Explanation> {
        self.all().iter().find_map(|pool| pool.explain(job))
    }
}
