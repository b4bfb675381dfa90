use crate::{
    ops_pages,
    process::Process,
    service::{Caller, queued},
};

const CONFIG: &str = r#"
    pool.one.workers = 4
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
    limit = { concurrency = 3, rate = 20, per_key.concurrency = 1 }
"#;

#[tokio::test]
async fn submit_passes_its_limit_key_and_stats_and_metrics_show_the_limit() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let args = ["submit", "sleep", "60000", "--limit-key", "k", "--deadline", "2m"];
    let submit = || process.command(&args).spawn().unwrap();
    let (_first, _second) = (submit(), submit());
    caller.until(|pool| pool.in_flight == 1 && queued(pool) == 1).await;
    let metrics = ops_pages::metrics(process.ops).await;
    let of_kinds: Vec<_> = metrics.iter().filter(|(name, _)| name.starts_with("waterwheel_kind_")).collect();
    let expected = [
        (r#"waterwheel_kind_jobs_queued{pool="one",kind="sleep"}"#, 1.0),
        (r#"waterwheel_kind_jobs_running_limit{pool="one",kind="sleep"}"#, 3.0),
        (r#"waterwheel_kind_jobs_running{pool="one",kind="sleep"}"#, 1.0),
        (r#"waterwheel_kind_key_jobs_running_limit{pool="one",kind="sleep"}"#, 1.0),
        (r#"waterwheel_kind_limit_keys_limit{pool="one",kind="sleep"}"#, 10_000.0),
        (r#"waterwheel_kind_limit_keys{pool="one",kind="sleep"}"#, 1.0),
        (r#"waterwheel_kind_starts_per_second_limit{pool="one",kind="sleep"}"#, 20.0),
    ];
    let of_kinds: Vec<_> = of_kinds.into_iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(of_kinds, expected);
    let shown = process.run("stats").await.out;
    let line = "limit of sleep  1 running  1 queued  at most 3, 20/s, 2 at once  each of 1 keys: at most 1";
    assert!(shown.lines().any(|shown| shown.trim() == line), "{shown}");
}
