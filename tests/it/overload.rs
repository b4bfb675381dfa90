//! What the tools around overload say of a real server.

use serde_json::Value;
use tokio::time::timeout;

use crate::process::{PATIENCE, Process, program};

/// The lines of JSON that a command prints.
async fn lines(args: &[&str]) -> Vec<Value> {
    let output = timeout(4 * PATIENCE, program(args).output()).await.expect("the command ends").unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_sweep_accounts_for_each_job_and_for_the_time_of_the_workers() {
    let sweep = ["bench", "overload", "--load", "0.5,4", "--duration", "1s", "--workers", "2", "--output", "json"];
    let report = lines(&sweep).await.remove(0);
    assert!(report["capacity"]["jobs_per_s"].as_f64() > Some(0.0), "{report}");
    let busy = report["capacity"]["busy_workers"].as_f64().unwrap();
    assert!(busy > 0.5 && busy < 2.2, "of two workers: {report}");
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 2);
    for step in steps {
        let count = |name: &str| step[name].as_u64().unwrap();
        let missed: u64 = step["missed_by_reason"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
        assert_eq!(count("offered"), count("completed") + missed + count("refused"), "{step}");
        assert_eq!(count("admitted"), count("completed") + missed, "{step}");
        assert!(step["useful_share"].as_f64() > Some(0.0) && count("server_memory_bytes") > 1 << 20, "{step}");
    }
    assert!(steps[1]["refused"].as_u64() > Some(0), "four times what it can do: {report}");
}

#[tokio::test]
async fn a_servers_log_is_replayed_job_for_job() {
    let server = Process::dev(&["--log", "waterwheel::pool=debug"]).await;
    let address = server.public.0.to_string();
    for (ms, deadline) in [("30", "20s"), ("40", "20s"), ("60000", "2s")] {
        let mut submit =
            program(&["submit", "sleep", ms, "--deadline", deadline, "--tenant", "t", "--server", &address]);
        timeout(PATIENCE, submit.output()).await.expect("an answer").unwrap();
    }
    server.logged("job did not complete").await;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    std::fs::write(&log, server.log()).unwrap();
    let replay = ["sim", "--replay", log.to_str().unwrap(), "--policy", "ours", "--seeds", "1", "--output", "json"];
    let rows = lines(&[&replay[..], &["--pool", "io"]].concat()).await;
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!((row["arrived"].as_u64(), row["service"].as_str()), (Some(3), Some("recorded")), "{row}");
    // The third was cut off: no job of its kind took as long as it had, so that it is taken for no longer than that.
    assert_eq!(row["admitted"].as_u64(), Some(3), "{row}");
    let useful = row["useful_s"].as_f64().unwrap();
    assert!((0.07..PATIENCE.as_secs_f64()).contains(&useful), "the runs of two jobs at the least: {row}");
}

#[tokio::test]
async fn advice_follows_from_what_a_server_measured() {
    let server = Process::dev(&[]).await;
    let address = server.public.0.to_string();
    let watch = ["advise", "--server", &address, "--pool", "io", "--over", "1s", "--busy", "0.5", "--output", "json"];
    let load = ["bench", "echo", "--server", &address, "--connections", "1", "--in-flight", "2", "--duration", "8s"];
    let mut load = program(&load).spawn().unwrap();
    let report = loop {
        let report = lines(&watch).await.remove(0);
        if report["idle"].as_array().unwrap().is_empty() {
            break report;
        }
        assert!(load.try_wait().unwrap().is_none(), "jobs came, and none was seen: {report}");
    };
    load.kill().await.unwrap();
    let pool = &report["pools"][0];
    let figure = |name: &str| pool[name].as_f64().unwrap();
    assert!(figure("arrived") > 0.0 && figure("mean_run_s") > 0.0, "{pool}");
    let rate = figure("arrived") / report["watched_s"].as_f64().unwrap();
    assert!((figure("arrivals_per_s") / rate - 1.0).abs() < 1e-6, "{report}");
    assert!((figure("arrivals_per_s") * figure("mean_run_s") / figure("busy_workers") - 1.0).abs() < 1e-6, "{pool}");
    assert!(figure("workers_advised") * 0.5 >= figure("busy_workers") && figure("workers") == 64.0, "{pool}");
}
