//! Jobs of schedules, and statistics of detached jobs.

use std::collections::BTreeSet;

use waterwheel::proto::{DetachedJob, DetachedJobFilter, DetachedStats, JobState};

use super::{Jobs, outcomes, serve, work};
use crate::{
    ops_pages,
    process::{Process, config_file},
    service::Caller,
};

const CONFIG: &str = r#"
    pool.one.workers = 2
    kind.echo = { pool = "one", builtin = "echo" }
    store.path = "jobs.db"
    [kind.refuses]
    pool = "one"
    exec = ["/bin/sh", "-c", "exit 65"]
    [schedule.often]
    cron = "* * * * * *"
    kind = "echo"
    payload = "tick"
    [schedule.rare]
    cron = "0 0 1 1 *"
    timezone = "Europe/Berlin"
    kind = "echo"
"#;

async fn runs(jobs: &Jobs, schedule: &str) -> Vec<DetachedJob> {
    let (label_key, label_value) = ("schedule".to_owned(), schedule.to_owned());
    jobs.list_by(1000, DetachedJobFilter { label_key, label_value, ..DetachedJobFilter::default() }).await
}

#[tokio::test]
async fn each_tick_of_a_schedule_runs_once_although_the_server_is_killed() {
    let (_dir, path) = config_file(CONFIG);
    for least in [2, 4] {
        let process = Process::serve_file(&path).await;
        let jobs = Jobs::of(&process).await;
        let mut seen = Vec::new();
        while seen.len() < least {
            seen = runs(&jobs, "often").await;
        }
        let ids: BTreeSet<_> = seen.iter().map(|job| &*job.job_id).collect();
        assert_eq!(ids.len(), seen.len());
        for id in ids {
            assert!(id.starts_with("schedule/often/20") && id.ends_with('Z'), "{id}");
            let job = jobs.ended(id).await;
            assert_eq!(
                (job.state(), &*job.output, outcomes(&job)),
                (JobState::Succeeded, &b"tick"[..], vec!["COMPLETED"])
            );
        }
        assert_eq!(runs(&jobs, "rare").await, [], "a new schedule does not run ticks from before its creation");
        process.killed().await;
    }
}

#[tokio::test]
async fn stats_count_detached_jobs_and_metrics_count_calls_of_job_service() {
    let (process, jobs) =
        serve(&CONFIG.replace("[schedule.often]", "[schedule.daily]").replace("* * * * * *", "0 3 * * *")).await;
    jobs.ended(&jobs.created(work("refuses", "")).await).await;
    let caller = Caller::of(process.public).await;
    let dead = |kinds: &[waterwheel::proto::KindStats]| {
        let kind = kinds.iter().find(|kind| kind.name == "refuses").unwrap();
        kind.detached.unwrap() == DetachedStats { dead: 1, ..DetachedStats::default() }
    };
    caller.until(|pool| dead(&pool.kinds)).await;
    let metrics = ops_pages::metrics(process.ops).await;
    for (method, calls) in [("CreateJob", 1.0), ("WaitJob", 1.0)] {
        let name = format!(
            r#"rpc_server_call_duration_seconds_count{{rpc_method="waterwheel.v1.JobService/{method}",kind="_OTHER",rpc_status_code="OK"}}"#
        );
        assert_eq!(
            metrics.get(&name).copied(),
            Some(calls),
            "{name}: {:?}",
            metrics.keys().filter(|key| key.contains("JobService")).collect::<Vec<_>>()
        );
    }
}
