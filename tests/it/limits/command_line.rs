use crate::{
    process::{Process, program},
    service::{Caller, queued},
};

const CONFIG: &str = r#"
    [pool.one]
    workers = 4
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
    limit = { concurrency = 3, per_key.concurrency = 1 }
"#;

#[tokio::test]
async fn a_limit_key_reaches_the_limit_and_stats_show_it() {
    let process = Process::serve(CONFIG).await;
    let caller = Caller::of(process.public).await;
    let address = process.public.0.to_string();
    let submit = || {
        let args = ["submit", "sleep", "60000", "--limit-key", "k", "--deadline", "2m", "--server", &address];
        program(&args).kill_on_drop(true).spawn().unwrap()
    };
    let (_first, _second) = (submit(), submit());
    caller.until(|pool| pool.in_flight == 1 && queued(pool) == 1).await;
    let shown = program(&["stats", "--server", &address]).output().await.unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let line = "limit of sleep  1 running  1 queued  at most 3  each of 1 keys: at most 1";
    assert!(shown.lines().any(|shown| shown.trim() == line), "{shown}");
}
