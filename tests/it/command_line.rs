//! The output and exit codes of the commands. Each runs as a separate process against a server with real sockets.

use rustix::process::{Pid, Signal, kill_process};
use waterwheel::config::starter;

use crate::{
    process::{Process, Ran},
    service::Caller,
};

/// A server with the starter configuration, and two workers in its pool `cpu`.
async fn serve() -> Process {
    Process::serve_with(&starter::text(), &[("WATERWHEEL_POOL__CPU__WORKERS", "2")]).await
}

#[tokio::test]
async fn submit_prints_the_output_and_the_waterfall() {
    let process = serve().await;
    let ran = process.run("submit sha256 abc --deadline 20s").await;
    assert_eq!(ran.out, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "{}", ran.err);
    assert!(ran.err.starts_with("done in ") && ran.err.contains("   budget 20s = queue "), "{}", ran.err);
    assert_eq!(ran.code, Some(0));
    let ran = process.run("submit echo abc --output json --request-id r1").await;
    assert_eq!(ran.json()["output"], "YWJj");
}

#[tokio::test]
async fn stats_and_probe_show_the_state_of_the_service() {
    let process = serve().await;
    process.run("submit echo abc").await;
    let ran = process.run("stats").await;
    for part in ["SERVING  up ", "pool cpu  SERVING  0 of 2 workers busy, 0%", "1 completed", "  64 idle workers"] {
        assert!(ran.out.contains(part), "no {part:?} in\n{}", ran.out);
    }
    let ran = process.run("stats --pool nowhere").await;
    assert!(ran.err.starts_with("NOT_FOUND  "), "{}", ran.err);
    assert_eq!(ran.code, Some(2));

    for name in ["readiness", "liveness", "capacity", "pool/io", "waterwheel.v1.WorkerPoolService", ""] {
        let ran = process.run(&format!("probe --timeout 20s --service {name}")).await;
        assert_eq!((ran.code, ran.out.starts_with("SERVING  ")), (Some(0), true), "{name}: {}", ran.err);
    }
    let ran = process.run("probe --timeout 20s --service pool/nowhere").await;
    assert_eq!((ran.code, ran.out.starts_with("SERVICE_UNKNOWN  ")), (Some(1), true), "{}", ran.err);
}

#[tokio::test]
async fn a_failure_prints_its_reason_and_a_help_line() {
    let process = serve().await;
    for (line, start, code) in [
        ("submit gizp", "UNKNOWN_KIND  ", 2),
        ("submit echo --label NO=x", "INVALID_FIELD  the request has invalid fields\n  job.labels: ", 2),
        ("submit sleep {}", "HANDLER_FAILED  ", 1),
        (
            "submit sleep 60000 --deadline 200ms",
            "RUN_TIMEOUT  the job reached its deadline or run timeout while it ran (",
            5,
        ),
    ] {
        let ran = process.run(line).await;
        assert!(ran.err.starts_with(start) && ran.err.contains("\n  help: "), "{}", ran.err);
        assert_eq!((ran.code, &*ran.out), (Some(code), ""), "{}", ran.err);
    }
}

#[tokio::test]
async fn ctrl_c_cancels_the_job() {
    let process = serve().await;
    let caller = Caller::of(process.public).await;
    let submit = process.command(&["submit", "sleep", "600000", "--deadline", "9m"]).spawn().unwrap();
    caller.until_all(|pools| pools.iter().any(|pool| pool.in_flight == 1)).await;
    kill_process(Pid::from_raw(submit.id().unwrap().cast_signed()).unwrap(), Signal::INT).unwrap();
    let ran = Ran::from(submit.wait_with_output().await.unwrap());
    assert_eq!((ran.code, &*ran.err), (Some(130), ""));
    caller.until_all(|pools| pools.iter().all(|pool| pool.in_flight == 0)).await;
}
