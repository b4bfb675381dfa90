//! The commands, each as its own process against a server with real sockets.

use std::process::Output;

use serde_json::Value;
use tokio::time::timeout;

use super::{CONFIG, named, until};
use crate::{
    process::{PATIENCE, Process, program},
    service::{Caller, job, queued},
};

/// What a command wrote, and its exit code.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("no JSON: {:?} {:?}", self.out, self.err))
    }
}

pub(crate) async fn run(process: &Process, line: &str) -> Ran {
    let ops = process.ops.0.to_string();
    let words: Vec<&str> = line.split(' ').chain(["--ops", &ops]).collect();
    let ended = timeout(PATIENCE, program(&words).output()).await.expect("the command ends").unwrap();
    let Output { status, stdout, stderr } = ended;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: status.code(), out: text(stdout), err: text(stderr) }
}

#[tokio::test]
async fn a_pool_is_paused_resized_and_resumed() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let ran = run(&process, "pause one").await;
    assert!(ran.out.starts_with("pool one  PAUSED for ") && ran.code == Some(0), "{} {}", ran.out, ran.err);
    let held = caller.leave(job("echo", ""));
    until(&caller, |pool| queued(pool) == 1).await;
    let shown = run(&process, "pause one --output json").await.json();
    assert_eq!(
        (&shown["name"], &shown["queued"], &shown["phase"]),
        (&"one".into(), &1.into(), &"PHASE_SERVING".into())
    );
    assert!(shown["paused"].as_str().is_some_and(|paused| paused.ends_with('s')), "{shown}");
    let ran = run(&process, "resize one 2..9").await;
    assert!(ran.out.ends_with("1 queued  0 running  2 workers of 2 to 9\n"), "{} {}", ran.out, ran.err);
    let shown = run(&process, "resize one 3 --output json").await.json();
    assert_eq!(
        (&shown["size"]["min"], &shown["size"]["max"], &shown["size"]["workers"]),
        (&3.into(), &3.into(), &3.into())
    );
    let ran = run(&process, "resume one").await;
    assert!(ran.out.starts_with("pool one  SERVING  ") && ran.code == Some(0), "{} {}", ran.out, ran.err);
    held.await.unwrap().unwrap();
}

/// Who mixes the two ports up is told which one to pass, and nothing is drained.
#[tokio::test]
async fn orders_to_the_port_for_callers_are_told_the_other_one() {
    let process = Process::serve(CONFIG).await;
    let callers = process.public.0.to_string();
    for line in ["drain", "drain --watch", "pause one", "resize one 2", "cancel x", "explain x"] {
        let words: Vec<&str> = line.split(' ').chain(["--ops", &callers]).collect();
        let output = timeout(PATIENCE, program(&words).output()).await.expect("the command ends").unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {told}");
        assert!(
            told.starts_with(&format!("{callers} is the listener for callers, not for operators\n  help: pass --ops")),
            "{told}"
        );
    }
    let ran = run(&process, "pause one").await;
    assert!(ran.out.starts_with("pool one  PAUSED for "), "{} {}", ran.out, ran.err);
}

#[tokio::test]
async fn a_pool_is_drained_and_a_job_cancelled() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let running = caller.leave(job("sleep", "60000"));
    until(&caller, |pool| pool.in_flight == 1).await;
    let ran = run(&process, "drain --pool one").await;
    assert!(ran.out.starts_with("NOT_SERVING  0 queued  1 running") && !ran.out.contains("hard stop"), "{}", ran.out);
    let id = named(&caller.stats().await, "one").workers[0].job_id.clone();
    let line = format!("cancel {id}");
    let (watch, ran) = tokio::join!(run(&process, "drain --pool one --watch"), run(&process, &line));
    assert_eq!(ran.out, format!("cancelled {id} of pool one: it runs, and is asked to stop\n"), "{}", ran.err);
    running.await.unwrap().unwrap_err();
    let last = watch.out.lines().last().unwrap();
    assert!(last.starts_with("drained ") && last.ends_with("lost 0"), "{} {}", watch.out, watch.err);
    assert_eq!(watch.code, Some(0));
    let ran = run(&process, &format!("{line} --output json")).await;
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("ListJobs") && ran.err.contains(&id), "{}", ran.err);
}

#[tokio::test]
async fn errors_say_what_to_do() {
    let process = Process::serve(CONFIG).await;
    for line in ["pause tow", "resume tow", "resize tow 3", "drain --pool tow"] {
        let ran = run(&process, line).await;
        assert_eq!(ran.code, Some(2), "{line}");
        assert!(ran.err.starts_with("NOT_FOUND  no pool \"tow\"; there are one, two\n"), "{line}: {}", ran.err);
    }
    run(&process, "drain --pool one").await;
    let ran = run(&process, "pause one").await;
    assert!(ran.err.contains("resume the pool first"), "{}", ran.err);
    assert_eq!(ran.code, Some(4));
    let ran = run(&process, "resize one 9..2").await;
    assert!(ran.code == Some(2) && ran.err.contains("9 is more than 2"), "{}", ran.err);
}
