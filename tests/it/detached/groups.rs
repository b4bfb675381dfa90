//! Groups of jobs: when all of them are done, one more runs, once.

use std::{collections::BTreeSet, time::SystemTime};

use futures_util::{StreamExt as _, stream};
use rustix::process::Signal;
use tonic::{Code, Status};
use waterwheel::proto::{
    Binding, CloseGroupRequest, CreateGroupRequest, DetachedJobFilter, GetGroupRequest, GetGroupResponse,
    GroupCondition, JobOptions, JobState, explain_response::State,
};

use super::{CONFIG, Jobs, delayed, with, work};
use crate::{
    jobs::explain,
    process::{Process, config_file},
    service::job,
    support::{Cluster, size},
};

const TELLS: &str = r#"
    [kind.tells]
    pool = "one"
    exec = ["/bin/sh", "-c", "cat; printf ' of %s' $WATERWHEEL_LABEL_GROUP"]
"#;

impl Jobs {
    async fn open(&self, group: &str, kind: &str) -> Result<String, Status> {
        let (job, group_id) = (Some(job(kind, "the report")), group.to_owned());
        let request = CreateGroupRequest { job, group_id, ..CreateGroupRequest::default() };
        Ok(self.0.clone().create_group(request).await?.into_inner().job_id)
    }

    async fn join(&self, group: &str, id: &str, kind: &str) -> Result<String, Status> {
        let options = JobOptions { group: group.to_owned(), ..JobOptions::default() };
        let mut request = with(options, work(kind, "part"));
        id.clone_into(&mut request.job_id);
        Ok(self.0.clone().create_job(request).await?.into_inner().job_id)
    }

    async fn close(&self, group: &str) -> Result<(), Status> {
        self.0.clone().close_group(CloseGroupRequest { group_id: group.to_owned() }).await.map(drop)
    }

    async fn group(&self, group: &str) -> GetGroupResponse {
        let request = GetGroupRequest { group_id: group.to_owned() };
        self.0.clone().get_group(request).await.unwrap().into_inner()
    }
}

#[tokio::test]
async fn a_job_runs_when_all_of_its_group_have_succeeded_and_says_until_then_what_it_waits_for() {
    let cluster = Cluster::start().await;
    let shared = cluster.as_ref().map(|cluster| format!("store.url = \"{}\"", cluster.url("postgres")));
    let stores = ["store.memory = true", "store.path = \"jobs.db\""].map(str::to_owned);
    for store in stores.into_iter().chain(shared) {
        let config = CONFIG.replace("store.path = \"jobs.db\"", &store);
        let process = Process::serve(&format!("{config}{TELLS}")).await;
        waits(&process, &Jobs::of(&process).await).await;
    }
}

async fn waits(process: &Process, jobs: &Jobs) {
    let refused = jobs.join("parts", "a", "echo").await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("no group with this id"), "{refused:?}");
    let waiting = jobs.open("parts", "tells").await.unwrap();
    assert_eq!((&*waiting, &waiting), ("group/parts", &jobs.open("parts", "tells").await.unwrap()));
    let [good, bad] = [("good", "echo"), ("bad", "refuses")].map(|(id, kind)| jobs.join("parts", id, kind));
    let (good, bad) = (good.await.unwrap(), bad.await.unwrap());
    assert_eq!(
        (jobs.ended(&good).await.state(), jobs.ended(&bad).await.state()),
        (JobState::Succeeded, JobState::Failed)
    );

    let says = async |words: &str, counts: [u64; 3]| {
        let found = jobs.group("parts").await;
        assert_eq!([found.active, found.succeeded, found.failed], counts, "{found:?}");
        assert!(found.waits_for.contains(words), "{found:?}");
        let explained = explain(process.ops, &waiting).await;
        let Some(State::Stored(stored)) = explained.state else { panic!("{explained:?}") };
        assert_eq!((stored.bound_by(), &stored.detail), (Binding::Group, &found.waits_for));
        assert_eq!(found.job.unwrap().due_time, None);
        let shown = process.run("jobs group get parts").await.out;
        assert!(shown.starts_with("parts") && shown.contains(&found.waits_for), "{shown}");
    };
    says("its group is open: 0 of its jobs have not ended", [0, 1, 1]).await;
    assert_eq!(process.run("jobs group close parts").await.code, Some(0));
    says("1 jobs of its group did not succeed", [0, 1, 1]).await;
    let refused = jobs.join("parts", "late", "echo").await.unwrap_err();
    assert!(refused.message().contains("the group is closed"), "{refused:?}");
    let members = DetachedJobFilter { group: "parts".into(), ..DetachedJobFilter::default() };
    let ids: Vec<_> = jobs.list(members.clone()).await.into_iter().map(|job| job.job_id).collect();
    assert_eq!(ids, ["bad", "good"]);
    let listed = process.run("jobs list --group parts --state failed --output json").await.json();
    assert_eq!(listed["jobs"][0]["job_id"], "bad");

    // A member that has not succeeded may be removed; it counts, and the job is run by hand.
    let purged = process.run("jobs purge --group parts").await;
    assert_eq!(purged.code, Some(0), "{}", purged.err);
    assert_eq!(jobs.list(members).await, []);
    says("1 jobs of its group did not succeed", [0, 1, 1]).await;
    jobs.cancel(&waiting).await.unwrap();
    jobs.retry(&waiting).await;
    assert_eq!(jobs.ended(&waiting).await.output, b"the report of parts");

    // A group of groups, by the command.
    for command in ["all echo end --when all-ended", "first tells x --joins all"] {
        let ran = process.run(&format!("jobs group create {command}")).await;
        assert_eq!(ran.code, Some(0), "{}", ran.err);
    }
    jobs.close("all").await.unwrap();
    assert_eq!(jobs.group("all").await.when(), GroupCondition::AllEnded);
    let member = process.run("jobs create refuses x --group first --id only").await;
    assert_eq!(member.code, Some(0), "{}", member.err);
    jobs.close("first").await.unwrap();
    assert_eq!(jobs.ended("only").await.state(), JobState::Failed);
    assert_eq!(jobs.get("group/all").await.state(), JobState::Scheduled);
    jobs.cancel("group/first").await.unwrap();
    assert_eq!(jobs.ended("group/all").await.state(), JobState::Succeeded);
}

#[tokio::test]
async fn what_no_group_can_have_is_refused() {
    let process = Process::serve(CONFIG).await;
    let jobs = Jobs::of(&process).await;
    let request = |group: &str| CreateGroupRequest {
        job: Some(job("echo", "")),
        group_id: group.to_owned(),
        ..CreateGroupRequest::default()
    };
    let delay = delayed("5s", work("echo", "")).options;
    for (request, field) in [
        (request(""), "group_id"),
        (request("a b"), "group_id"),
        (request(&"x".repeat(123)), "group_id"),
        (CreateGroupRequest { job: None, ..request("a") }, "job"),
        (CreateGroupRequest { when: 9, ..request("a") }, "when"),
        (CreateGroupRequest { options: delay, ..request("a") }, "options.start"),
    ] {
        let refused = jobs.0.clone().create_group(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{field}: {refused:?}");
        assert!(refused.message().contains(field), "{field}: {refused:?}");
    }
    let refused = jobs.join("a b", "x", "echo").await.unwrap_err();
    assert!(refused.message().contains("options.group"), "{refused:?}");
    let mut reserved = work("echo", "");
    reserved.job_id = "group/a".into();
    assert_eq!(jobs.create(reserved).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(jobs.close("a").await.unwrap_err().code(), Code::NotFound);
    // A group is as a job to its limits and its conflicts.
    jobs.open("a", "echo").await.unwrap();
    let other = CreateGroupRequest { job: Some(job("echo", "other")), ..request("a") };
    assert_eq!(jobs.0.clone().create_group(other).await.unwrap_err().code(), Code::AlreadyExists);
}

/// Makes a group of two jobs, and closes it. Each call is safe to repeat.
async fn make(jobs: Jobs, group: String) -> Result<String, Status> {
    jobs.open(&group, "echo").await?;
    for part in 0..2 {
        jobs.join(&group, &format!("{group}-{part}"), "echo").await?;
    }
    jobs.close(&group).await?;
    Ok(group)
}

#[tokio::test]
async fn each_group_runs_its_job_once_over_many_kills() {
    let (rounds, groups) = (size("WATERWHEEL_ROUNDS", 5), size("WATERWHEEL_GROUPS", 250));
    let config = CONFIG.replace("retain_for = \"1h\"", "retain_for = \"24h\"").replace("workers = 2", "workers = 64");
    let (_dir, path) = config_file(&config);
    let all: BTreeSet<_> = (0..groups).map(|number| number.to_string()).collect();
    let (mut open, mut kills) = (all.clone(), 0);
    let (_process, jobs) = loop {
        let process = Process::serve_file(&path).await;
        let jobs = Jobs::of(&process).await;
        let most = if kills < rounds { (open.len() / (rounds - kills + 1)).max(1) } else { usize::MAX };
        let calls = open.clone().into_iter().map(|group| make(jobs.clone(), group));
        let mut made = stream::iter(calls).buffer_unordered(32);
        let mut count = 0;
        while let Some(answer) = made.next().await {
            let Ok(group) = answer else { continue };
            open.remove(&group);
            count += 1;
            if count == most {
                process.signal(Signal::KILL);
                break;
            }
        }
        // Nobody knows what became of the calls that had no answer. They are made again.
        drop(made);
        if count < most {
            break (process, jobs);
        }
        process.killed().await;
        kills += 1;
    };
    assert!(open.is_empty() && kills > 0, "{kills} kills: {open:?}");
    // Each job ended once, and each after those that it waits for.
    assert_eq!(jobs.all_ended_once(BTreeSet::new()).await, 3 * groups);
    for group in all {
        let found = jobs.group(&group).await;
        assert_eq!((found.closed, found.active, found.succeeded), (true, 0, 2), "{found:?}");
        let then = found.job.unwrap();
        for part in 0..2 {
            let member = jobs.get(&format!("{group}-{part}")).await;
            let [start, end] =
                [then.attempts[0].start_time, member.end_time].map(|time| SystemTime::try_from(time.unwrap()));
            assert!(start.unwrap() >= end.unwrap(), "{member:?} {then:?}");
        }
    }
    eprintln!("{groups} groups over {kills} kills: each ran its job once, after its members");
}
