//! Callers that give up, send twice and cancel at random moments: each acknowledged job runs once, none stays without a
//! run, and each cancellation arrives.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Code;
use waterwheel::proto::{CreateJobRequest, DetachedJob, DetachedJobFilter, GetJobRequest, JobState};

use super::{Jobs, clock::Clock, work};
use crate::{
    process::{PATIENCE, Process},
    support::{Cluster, size},
};

const CONFIG: &str = r#"
    store.path = "jobs.db"
    [pool.one]
    workers = 16
    cancel_grace = "100ms"
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
    # The clock must not remove what the test looks at.
    retain_for = "100d"
"#;
const CALLERS: usize = 64;
/// Seconds by which the wall clock of the server differs from the true one, one after another.
const STEPS: [i64; 6] = [-3600, 60, 300, 864_000, -3600, 0];

/// What the caller of a job does.
#[derive(Debug, Clone, Copy)]
struct Plan {
    number: usize,
    /// Time after which the caller leaves.
    gives_up: Option<Duration>,
    is_sent_twice: bool,
    /// The job then lasts until it is cancelled, unless its caller leaves before it knows of the job.
    cancels: bool,
}

impl Plan {
    fn new(number: usize, random: &mut StdRng) -> Self {
        let gives_up = random.random_bool(0.2).then(|| Duration::from_micros(random.random_range(0..5_000)));
        Self { number, gives_up, is_sent_twice: random.random_bool(0.2), cancels: random.random_bool(0.33) }
    }

    fn id(self) -> String {
        format!("job-{}", self.number)
    }

    fn request(self) -> CreateJobRequest {
        let lasts = if self.cancels && self.gives_up.is_none() { "600000" } else { "2" };
        CreateJobRequest { job_id: self.id(), ..work("sleep", lasts) }
    }

    /// Returns the id of an acknowledged job, and the time until its cancellation arrived.
    async fn call(self, jobs: Jobs) -> (Option<String>, Duration) {
        let create = || jobs.create(self.request());
        let created = match self.gives_up {
            Some(after) => {
                let created = timeout(after, create()).await;
                if self.cancels {
                    // The job may not be created yet, or may have ended.
                    let _ = jobs.cancel(&self.id()).await;
                }
                return (created.ok().map(|created| created.unwrap().job_id), Duration::ZERO);
            }
            None if self.is_sent_twice => {
                let (first, second) = tokio::join!(create(), create());
                let both = [first.unwrap().already_existed, second.unwrap().already_existed];
                assert!(both.contains(&true), "{self:?}: one of the two existed");
                create().await
            }
            None => create().await,
        };
        let id = created.unwrap().job_id;
        let begin = Instant::now();
        if self.cancels {
            jobs.cancel(&id).await.unwrap();
            assert_eq!(jobs.ended(&id).await.state(), JobState::Cancelled, "{self:?}");
            assert!(begin.elapsed() < PATIENCE, "{self:?}");
        }
        (Some(id), begin.elapsed())
    }

    /// Whether the job has ended as it may. A caller that leaves may have cancelled its job, or not.
    fn allows(self, ended: &DetachedJob) -> bool {
        let state = if self.cancels { JobState::Cancelled } else { JobState::Succeeded };
        let is_open = self.gives_up.is_some() && self.cancels && ended.state() == JobState::Succeeded;
        let never_ran = ended.state() == JobState::Cancelled && ended.attempts.is_empty();
        (ended.state() == state || is_open) && (ran_once(ended) || never_ran)
    }
}

fn ran_once(job: &DetachedJob) -> bool {
    job.attempts.len() == 1 && job.attempts[0].number == 1
}

/// Sees the jobs that run. Returns the longest time for which one of two milliseconds was seen.
async fn watch(jobs: Jobs, plans: Arc<Vec<Plan>>, stop: CancellationToken) -> Duration {
    let running = DetachedJobFilter { states: vec![JobState::Running.into()], ..DetachedJobFilter::default() };
    let is_short: HashMap<_, _> =
        plans.iter().map(|plan| (plan.id(), plan.gives_up.is_some() || !plan.cancels)).collect();
    let (mut seen, mut longest) = (HashMap::<String, Instant>::new(), Duration::ZERO);
    while !stop.is_cancelled() {
        let page = jobs.page(1000, &running, String::new()).await;
        let ids: BTreeSet<_> = page.jobs.into_iter().map(|job| job.job_id).filter(|id| is_short[id]).collect();
        seen.retain(|id, _| ids.contains(id));
        for id in ids {
            longest = longest.max(seen.entry(id).or_insert_with(Instant::now).elapsed());
        }
        // Its look must not become the load.
        let _ = timeout(Duration::from_millis(100), stop.cancelled()).await;
    }
    longest
}

/// Sets the wall clock to the next step each time that a part of the jobs was created.
fn step(clock: Option<&Clock>, number: usize, count: usize) {
    let part = (count / (STEPS.len() + 1)).max(1);
    if let (Some(clock), Some(step)) = (clock, STEPS.get((number / part).wrapping_sub(1)))
        && number.is_multiple_of(part)
    {
        clock.differ(*step);
    }
}

async fn churn(process: &Process, clock: Option<&Clock>) {
    let (count, seed) = (size("WATERWHEEL_JOBS", 600), size("WATERWHEEL_SEED", 1) as u64);
    let jobs = Jobs::of(process).await;
    let mut random = StdRng::seed_from_u64(seed);
    let plans: Arc<Vec<_>> = Arc::new((0..count).map(|number| Plan::new(number, &mut random)).collect());
    let (acknowledged, slowest) = (Mutex::new(BTreeSet::new()), Mutex::new(Duration::ZERO));
    let (begin, stop) = (Instant::now(), CancellationToken::new());
    let watched = tokio::spawn(watch(jobs.clone(), plans.clone(), stop.clone()));
    let calls = stream::iter(plans.iter().copied()).for_each_concurrent(CALLERS, |plan| {
        step(clock, plan.number, count);
        let (jobs, acknowledged, slowest) = (jobs.clone(), &acknowledged, &slowest);
        async move {
            // A server ends a connection with many calls that are given up before it has looked at them.
            let jobs = if plan.gives_up.is_some() { Jobs::of(process).await } else { jobs };
            let (created, took) = plan.call(jobs).await;
            acknowledged.lock().extend(created);
            let mut slowest = slowest.lock();
            *slowest = took.max(*slowest);
        }
    });
    calls.await;
    let (mut found, mut once) = (0, 0);
    for plan in &*plans {
        let known = acknowledged.lock().contains(&plan.id());
        let request = GetJobRequest { job_id: plan.id(), with_payload: false };
        if !known && jobs.0.clone().get_job(request).await.is_err_and(|refused| refused.code() == Code::NotFound) {
            continue;
        }
        let ended = jobs.ended(&plan.id()).await;
        assert!(plan.allows(&ended), "{plan:?}: {ended:?}");
        (found, once) = (found + 1, once + usize::from(ran_once(&ended)));
    }
    stop.cancel();
    let longest = watched.await.unwrap();
    eprintln!(
        "seed {seed}: {count} jobs in {:.0?}, {} acknowledged, {found} stored, {once} ran once, none twice; slowest \
         cancellation {:.1?}; a job of 2 ms ran for {longest:.1?} at most",
        begin.elapsed(),
        acknowledged.lock().len(),
        slowest.lock(),
    );
    assert!(longest < PATIENCE, "a job was RUNNING for {longest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_job_runs_once_whatever_its_callers_do() {
    churn(&Process::serve(CONFIG).await, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_job_runs_once_in_a_database_whatever_its_callers_do() {
    let Some(cluster) = Cluster::start().await else { return };
    let url = format!("store.url = \"{}\"", cluster.url("postgres"));
    churn(&Process::serve(&CONFIG.replace("store.path = \"jobs.db\"", &url)).await, None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_job_runs_once_however_the_wall_clock_jumps() {
    let Some(clock) = Clock::new() else { return };
    churn(&clock.serve(CONFIG).await, Some(&clock)).await;
}
