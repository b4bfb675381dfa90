//! A reload of the configuration while jobs run: all changes are applied, or none.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use rustix::process::Signal;
use tonic::Code;

use crate::{
    ops_pages::metrics,
    process::Process,
    service::{Caller, job, queued},
    support::{KEYS, toml_string},
};

const CONFIG: &str = r#"
    drain = { notice = "0s", finish = "20s", kill = "1s" }
    telemetry = { log = "info", log_format = "text" }
    quota.tenant = { shop = { rate = 9 }, old = { rate = 9 } }
    auth.jwt = { jwks = KEYS, issuer = "issuer", audience = ["here"] }
    auth.rule.all = { principals = ["anonymous"], rpcs = ["*"], kinds = ["echo", "held", "gone", "fresh"] }
    [pool.one]
    workers = 3
    [kind]
    echo = { pool = "one", builtin = "echo" }
    held = { pool = "one", exec = ["/bin/sh", "-c", SCRIPT, "old"], limit.concurrency = 1 }
    late = { pool = "one", builtin = "echo" }
    gone = { pool = "one", builtin = "echo" }
"#;

/// The configuration. Jobs of kind `held` wait for the file `go`.
fn config(files: &Path) -> String {
    let go = files.join("go");
    let script = format!("until [ -e {} ]; do sleep 0.02; done; printf $0", go.display());
    let keys = files.join("keys.json");
    std::fs::write(&keys, KEYS).unwrap();
    CONFIG.replace("SCRIPT", &toml_string(Path::new(&script))).replace("KEYS", &toml_string(&keys))
}

/// Spawns callers that call until `stop` is set, and counts their answers.
fn load(caller: &Caller, stop: &Arc<AtomicBool>, answered: &Arc<AtomicU32>) -> Vec<tokio::task::JoinHandle<()>> {
    let one = || {
        let (caller, stop, answered) = (Caller(caller.0.clone()), Arc::clone(stop), Arc::clone(answered));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                caller.leave(job("echo", "")).await.unwrap().expect("no call fails");
                answered.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    std::iter::repeat_with(one).take(4).collect()
}

#[tokio::test]
async fn sighup_applies_all_changes_without_failing_a_call() {
    let files = tempfile::tempdir().unwrap();
    let before = config(files.path());
    let process = Process::serve_as_configured(&before).await;
    let caller = Caller::of(process.public).await;
    let held = [caller.leave(job("held", "")), caller.leave(job("held", ""))];
    // One runs, the other waits for the limit.
    caller.until(|pool| (pool.in_flight, queued(pool)) == (1, 1)).await;
    let refused = caller.leave(job("late", "")).await.unwrap().unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let (stop, answered) = <(Arc<AtomicBool>, Arc<AtomicU32>)>::default();
    let load = load(&caller, &stop, &answered);

    let after = before.replace("workers = 3", "workers = 5").replace(r#""old"], limit.concurrency = 1"#, r#""new"]"#);
    let after = after.replace(r#""gone", "#, r#""late", "#).replace("gone = ", "fresh = ");
    let after = after.replace("old = { rate = 9 }", "new = { rate = 9 }");
    let after = after.replace(r#"log = "info""#, r#"log = "info,waterwheel::pool=debug""#);
    process.configure(&after);
    process.signal(Signal::HUP);
    process.logged("the configuration was reloaded").await;
    for change in [
        "pool.one.workers: 3 → 5",
        r#"telemetry.log: "info" → "info,waterwheel::pool=debug""#,
        "kind.held.limit.concurrency: 1 → not set",
        "kind.held.exec: ",
        r#"kind.fresh.pool: not set → "one""#,
        r#"kind.gone.builtin: "echo" → not set"#,
        "auth.rule.all.kinds: ",
    ] {
        assert!(process.log().contains(change), "no {change} in {}", process.log());
    }
    process.logged("job arrived").await;
    assert_eq!(caller.pool().await.size.unwrap().workers, 5);
    let metrics = metrics(process.ops).await;
    for (tenant, has_series) in [("shop", true), ("_OTHER", true), ("new", true), ("old", false)] {
        let series = format!(r#"waterwheel_tenant_jobs_total{{pool="one",tenant="{tenant}",end="ran"}}"#);
        assert_eq!(metrics.contains_key(&series), has_series, "{tenant}");
    }
    for (kind, code) in [("fresh", None), ("late", None), ("gone", Some(Code::PermissionDenied))] {
        let answer = caller.leave(job(kind, "")).await.unwrap();
        assert_eq!(answer.err().map(|status| status.code()), code, "{kind}");
    }
    let new = caller.leave(job("held", ""));
    std::fs::write(files.path().join("go"), "").unwrap();
    for (held, says) in held.into_iter().zip(["old", "old"]).chain([(new, "new")]) {
        assert_eq!(held.await.unwrap().unwrap().into_inner().result.unwrap().output, says.as_bytes());
    }

    // An invalid file changes nothing, and its error is logged.
    process.configure(&after.replace("workers = 5", "workers = 0").replace("fresh", "fresher"));
    process.signal(Signal::HUP);
    process.logged("`pool.one.workers` is 0, outside of 1 to 65536 at ").await;
    caller.leave(job("fresh", "")).await.unwrap().expect("the old configuration still applies");
    assert_eq!(caller.pool().await.size.unwrap().workers, 5);
    stop.store(true, Ordering::Relaxed);
    for task in load {
        task.await.unwrap();
    }
    assert!(answered.load(Ordering::Relaxed) > 0);
    process.signal(Signal::TERM);
    assert_eq!(process.ended().await.code, Some(0));
}

#[tokio::test]
async fn a_dry_run_says_what_the_change_would_have_done_to_the_last_jobs() {
    let files = tempfile::tempdir().unwrap();
    let before = config(files.path());
    let process = Process::serve_as_configured(&before).await;
    let caller = Caller::of(process.public).await;
    for kind in ["echo", "gone"].repeat(150) {
        caller.leave(job(kind, "")).await.unwrap().expect("it is served");
    }
    let ran = process.run("reload --dry-run").await;
    assert_eq!(ran.out, "no changes\n");
    let changed = before.replace("workers = 3", "workers = 5\n    recorded_jobs = 65536");
    process.configure(&changed.replace("    gone = { pool = \"one\", builtin = \"echo\" }", ""));
    let ran = process.run("reload --dry-run").await;
    for line in [
        "  would have refused 0.0 % of echo (now 0.0 %), missed 0.0 % (now 0.0 %); p99 wait ",
        "  would no longer serve gone: 150 jobs\n",
        "  1 worker is the fewest for at most 1 % refused or missed; there would be 5\n",
    ] {
        assert!(ran.code == Some(0) && ran.out.contains(line), "{line}: {}", ran.out);
    }
    assert!(ran.out.contains("\npool one: its last 300 jobs, of "), "{}", ran.out);
    let ran = process.run("reload --dry-run --output json").await;
    let answer: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let echo = &answer["forecasts"][0]["kinds"][0];
    assert_eq!((echo["kind"].as_str(), echo["measured"]["jobs"].as_u64()), (Some("echo"), Some(150)), "{answer}");
    assert_eq!(answer["forecasts"][0]["fewest_workers"].as_u64(), Some(1), "{answer}");
}

#[tokio::test]
async fn a_reload_that_needs_a_restart_names_the_setting_and_changes_nothing() {
    let files = tempfile::tempdir().unwrap();
    let before = config(files.path());
    let process = Process::serve_as_configured(&before).await;
    let caller = Caller::of(process.public).await;
    let cases = [
        ("server.max_payload = \"1MiB\"\n", "server.max_payload: \"4MiB\" → \"1MiB\"  needs a restart"),
        ("pool.two.workers = 1\n", "pool.two.workers: not set → 1  needs a restart"),
        ("pool.one.ended_jobs = 7\n", "pool.one.ended_jobs: 1024 → 7  needs a restart"),
    ];
    for (added, named) in cases {
        let file = before.replace("workers = 3", "workers = 5");
        process.configure(&match added.strip_prefix("pool.one.") {
            Some(key) => file.replace("workers = 5", &format!("workers = 5\n{key}")),
            None => format!("{added}{file}"),
        });
        let ran = process.run("reload").await;
        assert!(ran.code == Some(1) && ran.out.contains(named), "{named}: {}", ran.out);
        assert!(ran.out.contains("pool.one.workers: 3 → 5\n"), "{}", ran.out);
        process.logged(&format!("a restart is needed for {}", named.split(':').next().unwrap())).await;
    }
    assert_eq!(caller.pool().await.size.unwrap().workers, 3);

    process.configure(&before.replace("workers = 3", "workers = 5"));
    let ran = process.run("reload --dry-run").await;
    let few = "\npool one: 0 jobs recorded, too few for a forecast; 200 are enough if some ran to their end\n";
    let changed = "pool.one.workers: 3 → 5\n1 setting would change\n";
    assert_eq!((ran.code, ran.out), (Some(0), format!("{changed}{few}")));
    assert_eq!(caller.pool().await.size.unwrap().workers, 3);
    let ran = process.run("reload").await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "pool.one.workers: 3 → 5\n1 setting changed\n"));
    assert_eq!(caller.pool().await.size.unwrap().workers, 5);
    process.configure("pool = 7");
    let ran = process.run("reload").await;
    assert!(ran.code == Some(1) && ran.out.contains("`pool` must be a table, not an integer"), "{}", ran.out);
}
