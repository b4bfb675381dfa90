//! Operator commands for a running service: pause, resume, resize and drain a pool, cancel a job.

mod pools;
mod workers;

use std::collections::BTreeMap;

use serde_json::Value;
use tonic::{Code, Status, Streaming, transport::Channel};
use tonic_types::StatusExt;
use waterwheel::proto::{
    CancelJobRequest, CancelJobResponse, DrainRequest, DrainResponse, Job, PauseRequest, Phase, PoolState, PoolStats,
    ResizeRequest, ResumeRequest, Stats, WhenFull, admin_service_client::AdminServiceClient,
};

use crate::{
    ops_pages::get,
    process::{Process, Ran, program},
    service::{Address, Caller},
};

const CONFIG: &str = r#"
    drain = { notice = "0s", finish = "20s", kill = "1s" }
    pool.one = { workers = 1, queue = { jobs = 2 } }
    pool.two.workers = 1
    kind.sleep = { pool = "one", builtin = "sleep" }
    kind.echo = { pool = "one", builtin = "echo" }
    kind.other = { pool = "two", builtin = "echo" }
"#;

/// A client of the admin service.
struct Operator(AdminServiceClient<Channel>);

impl Operator {
    async fn of(ops: Address) -> Self {
        Self(AdminServiceClient::new(ops.channel().await))
    }

    async fn pause(&mut self, pool: &str) -> Result<PoolState, Status> {
        let answer = self.0.pause(PauseRequest { pool: pool.into(), reason: String::new() }).await?;
        Ok(answer.into_inner().pool.unwrap())
    }

    async fn resume(&mut self, pool: &str) -> Result<PoolState, Status> {
        let answer = self.0.resume(ResumeRequest { pool: pool.into(), reason: String::new() }).await?;
        Ok(answer.into_inner().pool.unwrap())
    }

    async fn resize(&mut self, pool: &str, min_workers: u32, max_workers: u32) -> Result<PoolState, Status> {
        let answer =
            self.0.resize(ResizeRequest { pool: pool.into(), min_workers, max_workers, reason: String::new() }).await?;
        Ok(answer.into_inner().pool.unwrap())
    }

    async fn drain(&mut self, pool: &str) -> Result<Streaming<DrainResponse>, Status> {
        Ok(self.0.drain(DrainRequest { pool: pool.into(), reason: String::new() }).await?.into_inner())
    }

    async fn cancel(&mut self, job: &str) -> Result<CancelJobResponse, Status> {
        Ok(self.0.cancel_job(CancelJobRequest { job_id: job.into(), reason: String::new() }).await?.into_inner())
    }
}

fn named<'a>(stats: &'a Stats, name: &str) -> &'a PoolStats {
    stats.pools.iter().find(|pool| pool.name == name).unwrap()
}

/// Polls the statistics of the pool `one` until they fulfil the condition.
async fn until(caller: &Caller, reached: impl Fn(&PoolStats) -> bool) {
    caller.until_all(|pools| reached(pools.iter().find(|pool| pool.name == "one").unwrap())).await;
}

/// Ids of the oldest jobs of the pool `one` by stage, from the page `/debug/tasks`.
async fn jobs(ops: Address) -> BTreeMap<String, String> {
    let page: Value = serde_json::from_str(&get(ops, "/debug/tasks").await.1).unwrap();
    let jobs = page["pools"]["one"]["jobs"].as_array().unwrap().iter();
    let text = |job: &Value, key: &str| job[key].as_str().unwrap().to_owned();
    jobs.rev().map(|job| (text(job, "stage"), text(job, "job"))).collect()
}

fn reason(status: &Status) -> (Code, String) {
    (status.code(), status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default())
}

fn waits(job: Job) -> Job {
    Job { when_full: WhenFull::Wait.into(), ..job }
}

fn size(state: &PoolState) -> (u32, u32, u32, u32) {
    let size = state.size.unwrap();
    (size.min, size.max, size.workers, size.retiring)
}

fn serving(state: &PoolState) -> (Phase, bool) {
    (state.phase(), state.paused.is_some())
}

#[tokio::test]
async fn an_operator_command_sent_to_the_public_port_names_the_right_option() {
    let process = Process::serve(CONFIG).await;
    let callers = process.public.0.to_string();
    for line in ["drain", "drain --watch", "pause one", "resize one 2", "cancel x", "explain x"] {
        let words: Vec<&str> = line.split(' ').chain(["--ops", &callers]).collect();
        let Ran { code, err, .. } = Ran::of(program(&words)).await;
        assert_eq!(code, Some(2), "{line}: {err}");
        let start = format!("{callers} is the listener for callers, not for operators\n  help: pass --ops");
        assert!(err.starts_with(&start), "{err}");
    }
}
