//! A job that crashes the process that it shares with others.

use super::*;

const SHARED: &str = r#"
    store.memory = true
    kind.do = { pool = "one", program = "shared", retry = { initial = "1ms", max_attempts = 1 } }
    kind.echo = { pool = "one", program = "shared" }
    [pool.one]
    workers = 4
    [program.shared]
    command = ["/usr/bin/python3", "-u", "WORKER"]
    jobs_per_process = 4
    start_timeout = "60s"
"#;

#[tokio::test]
async fn the_neighbours_of_a_job_that_crashes_their_process_succeed() {
    let worker = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/programs/worker.py");
    let process = Process::serve(&SHARED.replace("WORKER", worker)).await;
    let jobs = Jobs::of(&process).await;
    let create =
        |payload: &'static str| jobs.created(CreateJobRequest { job: Some(job("do", payload)), ..Default::default() });
    for round in 0..3 {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            good.push(create("later 500").await);
        }
        for _ in 0..=round {
            bad.push(create("exit 3").await);
        }
        for id in &good {
            let ended = jobs.ended(id).await;
            assert_eq!((ended.state(), ended.failures), (JobState::Succeeded, 0), "{ended:?}");
        }
        for id in &bad {
            let ended = jobs.ended(id).await;
            assert_eq!(ended.state(), JobState::Failed);
            assert!(outcomes(&ended).iter().all(|outcome| *outcome == "WORKER_CRASHED"), "{ended:?}");
        }
    }
}
