//! Callers that give up, send twice and cancel at random moments: each acknowledged job runs once, none stays without a
//! run, and each cancellation arrives.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, timeout};
use tonic::Code;
use waterwheel::proto::{CreateJobRequest, DetachedJob, JobState};

use super::{Jobs, work};
use crate::{
    process::{PATIENCE, Process},
    support::size,
};

const CONFIG: &str = r#"
    store.path = "jobs.db"
    [pool.one]
    workers = 16
    cancel_grace = "100ms"
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
"#;
const CALLERS: usize = 64;

/// What the caller of a job does.
#[derive(Debug, Clone, Copy)]
struct Plan {
    number: usize,
    /// Time after which the caller leaves.
    gives_up: Option<Duration>,
    is_sent_twice: bool,
    /// The job then lasts until it is cancelled.
    cancels: bool,
}

impl Plan {
    fn new(number: usize, random: &mut StdRng) -> Self {
        let gives_up = random.random_bool(0.2).then(|| Duration::from_micros(random.random_range(0..5_000)));
        Self { number, gives_up, is_sent_twice: random.random_bool(0.2), cancels: random.random_bool(0.33) }
    }

    fn request(self) -> CreateJobRequest {
        let lasts = if self.cancels { "600000" } else { "2" };
        CreateJobRequest { job_id: format!("job-{}", self.number), ..work("sleep", lasts) }
    }

    /// Returns the id of an acknowledged job.
    async fn call(self, jobs: Jobs) -> Option<String> {
        let create = || jobs.create(self.request());
        let created = match self.gives_up {
            Some(after) => timeout(after, create()).await.ok()?,
            None if self.is_sent_twice => {
                let (first, second) = tokio::join!(create(), create());
                let both = [first.unwrap().already_existed, second.unwrap().already_existed];
                assert!(both.contains(&true), "{self:?}: one of the two existed");
                create().await
            }
            None => create().await,
        };
        let id = created.unwrap().job_id;
        if self.cancels {
            jobs.cancel(&id).await.unwrap();
            let begin = Instant::now();
            assert_eq!(jobs.ended(&id).await.state(), JobState::Cancelled, "{self:?}");
            assert!(begin.elapsed() < PATIENCE, "{self:?}");
        }
        Some(id)
    }
}

fn ran_once(job: &DetachedJob) -> bool {
    job.attempts.len() == 1 && job.attempts[0].number == 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_job_runs_once_whatever_its_callers_do() {
    let (count, seed) = (size("WATERWHEEL_JOBS", 600), size("WATERWHEEL_SEED", 1) as u64);
    let process = Process::serve(CONFIG).await;
    let jobs = Jobs::of(&process).await;
    let mut random = StdRng::seed_from_u64(seed);
    let plans: Vec<_> = (0..count).map(|number| Plan::new(number, &mut random)).collect();
    let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
    let begin = Instant::now();
    let calls = stream::iter(plans.clone()).for_each_concurrent(CALLERS, |plan| {
        let (jobs, acknowledged) = (jobs.clone(), acknowledged.clone());
        async move {
            let created = plan.call(jobs).await;
            acknowledged.lock().extend(created);
        }
    });
    calls.await;
    let (mut found, mut once) = (0, 0);
    for plan in &plans {
        let id = plan.request().job_id;
        let known = acknowledged.lock().contains(&id);
        if !known && jobs.cancel(&id).await.is_err_and(|refused| refused.code() == Code::NotFound) {
            continue;
        }
        let ended = jobs.ended(&id).await;
        let state = if plan.cancels { JobState::Cancelled } else { JobState::Succeeded };
        // The job of a caller that gave up may have been cancelled here, before or while it ran.
        let is_right = ended.state() == state || !known && ended.state() == JobState::Cancelled;
        let never_ran = ended.state() == JobState::Cancelled && ended.attempts.is_empty();
        assert!(is_right && (ran_once(&ended) || never_ran), "{plan:?}: {ended:?}");
        (found, once) = (found + 1, once + usize::from(ran_once(&ended)));
    }
    eprintln!(
        "seed {seed}: {count} jobs in {:.0?}, {} acknowledged, {found} stored, {once} ran once, none twice",
        begin.elapsed(),
        acknowledged.lock().len(),
    );
}
