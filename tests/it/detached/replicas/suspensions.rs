//! What operators pause and drain on one server holds on all servers of its store, and after a restart.

use waterwheel::{
    model::Reason,
    proto::{DrainRequest, JobState, PauseRequest, ResumeRequest, admin_service_client::AdminServiceClient},
};

use crate::{
    detached::{CONFIG, Jobs, work},
    jobs::explain,
    process::{Process, config_file, until},
    service::Caller,
    support::Cluster,
};

const WHY: &str = "the disk is replaced";

async fn resume(process: &Process) {
    let request = ResumeRequest { pool: "one".into(), ..ResumeRequest::default() };
    AdminServiceClient::new(process.ops.channel().await).resume(request).await.unwrap();
}

/// Waits until the pool of a server is paused, and checks who is said to have done it.
async fn is_paused(process: &Process) {
    let ops = Caller::of(process.ops).await;
    until("a pause", async || ops.stats().await.pools[0].paused.is_some()).await;
    assert_eq!(ops.stats().await.pools[0].paused_reason, WHY);
    until("its sentence", async || {
        let problems = ops.stats().await.problems;
        problems.iter().any(|problem| problem.title == format!("one is paused: {WHY}"))
    })
    .await;
}

#[tokio::test]
async fn a_pause_holds_on_all_servers_of_a_store_and_after_a_restart() {
    let cluster = Cluster::start().await;
    let shared = cluster.as_ref().map(|cluster| format!("store.url = \"{}\"", cluster.url("postgres")));
    let stores = ["store.memory = true", "store.path = \"jobs.db\""].map(str::to_owned);
    for store in stores.into_iter().chain(shared) {
        let (_dir, path) = config_file(&CONFIG.replace("store.path = \"jobs.db\"", &store));
        let mut process = Process::serve_file(&path).await;
        let other = if store.contains("url") { Some(Process::serve_file(&path).await) } else { None };
        let mut admin = AdminServiceClient::new(process.ops.channel().await);
        admin.pause(PauseRequest { pool: "one".into(), reason: WHY.into() }).await.unwrap();
        is_paused(&process).await;
        if let Some(other) = &other {
            is_paused(other).await;
        }
        let id = Jobs::of(&process).await.created(work("echo", "x")).await;
        let said = process.run(&format!("explain {id}")).await.out;
        assert!(said.contains(&format!("its pool is paused: {WHY}")), "{said}");
        let caller = Caller::of(process.public).await;
        caller.leave(crate::service::job("echo", "held"));
        caller.until(|pool| pool.queue.as_ref().unwrap().jobs == 1).await;
        let listed = process.run("jobs --output json").await.json();
        let said = process.run(&format!("explain {}", listed["jobs"][0]["job_id"].as_str().unwrap())).await.out;
        assert!(said.contains(&format!("its pool is paused: {WHY}")), "{said}");
        if !store.contains("memory") {
            process.killed().await;
            process = Process::serve_file(&path).await;
            is_paused(&process).await;
            let job = Jobs::of(&process).await.get(&id).await;
            assert_eq!((job.state(), job.attempts.len()), (JobState::Ready, 0), "{store}: {job:?}");
        }
        resume(other.as_ref().unwrap_or(&process)).await;
        let job = Jobs::of(&process).await.ended(&id).await;
        assert_eq!((job.state(), job.attempts.len()), (JobState::Succeeded, 1), "{store}: {job:?}");
        let ops = Caller::of(process.ops).await;
        until("the end of the pause", async || ops.stats().await.pools[0].paused.is_none()).await;

        let mut admin = AdminServiceClient::new(process.ops.channel().await);
        admin.drain(DrainRequest { pool: "one".into(), reason: WHY.into() }).await.unwrap();
        if let Some(other) = &other {
            let caller = Caller::of(other.public).await;
            let refused = async || {
                let ended = caller.leave(crate::service::job("echo", "x")).await.unwrap();
                ended.is_err_and(|status| {
                    crate::refusal::Refusal::of_call(status, true).reason() == Reason::Draining.name()
                })
            };
            until("a drain", refused).await;
        }
        let id = Jobs::of(&process).await.created(work("echo", "x")).await;
        let state = explain(process.ops, &id).await;
        assert!(format!("{state:?}").contains(&format!("its pool drains: {WHY}")), "{store}: {state:?}");
        resume(&process).await;
        assert_eq!(Jobs::of(&process).await.ended(&id).await.state(), JobState::Succeeded, "{store}");
    }
}
