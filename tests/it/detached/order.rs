//! Which of the jobs that wait goes first, and how many leave the store for their pool.

use waterwheel::proto::{CreateJobRequest, Criticality, DetachedJobFilter, Job, JobState};

use super::{Jobs, serve, work};

const CONFIG: &str = r#"
    store.memory = true
    [pool.one]
    workers = 2
    [kind.echo]
    pool = "one"
    builtin = "echo"
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
"#;

/// Creates a job of a class.
async fn of_class(jobs: &Jobs, class: Criticality) -> String {
    let request = work("echo", "");
    let job = Job { criticality: class.into(), ..request.job.unwrap() };
    jobs.created(CreateJobRequest { job: Some(job), ..CreateJobRequest::default() }).await
}

#[tokio::test]
async fn a_new_job_is_leased_at_once_unless_others_wait_for_the_pool() {
    let (_process, jobs) = serve(CONFIG).await;
    // Wait for a first look at the store, which finds that no job waits.
    jobs.ended(&jobs.created(work("echo", "")).await).await;
    let mut long = Vec::new();
    for _ in 0..9 {
        long.push(jobs.created(work("sleep", "600000")).await);
    }
    let later = of_class(&jobs, Criticality::SheddablePlus).await;
    let first = of_class(&jobs, Criticality::Critical).await;
    let running = DetachedJobFilter { states: vec![JobState::Running.into()], ..DetachedJobFilter::default() };
    let running = jobs.list(running).await;
    assert!((2..=4).contains(&running.len()), "two workers, and what two short jobs let it take ahead: {running:?}");
    assert!(running.iter().all(|job| long.contains(&job.job_id)), "none overtakes: {running:?}");
    for id in &long {
        jobs.cancel(id).await.unwrap();
    }
    let [later, first] = [jobs.ended(&later).await, jobs.ended(&first).await];
    let started = [&later, &first].map(|job| job.attempts[0].start_time.unwrap());
    assert!(
        (started[1].seconds, started[1].nanos) <= (started[0].seconds, started[0].nanos),
        "the important one goes first: {started:?}"
    );
}
