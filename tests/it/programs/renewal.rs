//! A new process is ready before an old one leaves: when processes are due, and at a restart or a reload.

use std::collections::BTreeSet;

use rustix::process::Signal;
use waterwheel::handler::Recycle;

use super::*;

/// Runs short jobs until the processes fulfil the condition. Returns the largest and the smallest number of processes,
/// and of those that accepted jobs.
async fn busy_until(pool: &Pool, wanted: impl Fn(&[ProcessStats]) -> bool) -> [usize; 3] {
    let (mut most, mut least, mut ready) = (0, usize::MAX, usize::MAX);
    let reached = async {
        while !wanted(&processes(pool)) {
            run(pool, "pid").await.expect("no job is lost");
            let all = processes(pool);
            let open = all.iter().filter(|it| matches!(it.state, ProcessState::Idle | ProcessState::Busy)).count();
            (most, least, ready) = (most.max(all.len()), least.min(all.len()), ready.min(open));
        }
    };
    timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("{:?}", pool.stats().programs));
    [most, least, ready]
}

#[tokio::test]
async fn processes_that_are_due_are_replaced_one_by_one_each_by_one_that_is_ready() {
    let recycle = Recycle { jobs: Some(5), ..Recycle::default() };
    let pool = pool_of(WorkerProgram { recycle, ..program(&[]) }, 3);
    until(&pool, all(ProcessState::Idle, 3)).await;
    let starts = || pool.stats().programs[0].starts;
    let seen = busy_until(&pool, |_| starts() >= 9).await;
    assert_eq!(seen, [4, 3, 3], "largest, smallest and ready number of processes");
    assert_eq!(pool.stats().programs[0].failures, 0);
    close(pool).await;
}

#[tokio::test]
async fn a_process_over_its_memory_limit_is_replaced_between_jobs() {
    let recycle = Recycle { memory: Some(250 << 20), ..Recycle::default() };
    let pool = pool_of(WorkerProgram { recycle, ..program(&[]) }, 1);
    let mut pids = BTreeSet::new();
    while pids.len() < 3 {
        pids.insert(run(&pool, "grow").await.expect("no job is lost"));
        // Its successor starts meanwhile.
        until(&pool, |all| all.len() == 1 && all[0].memory < 250 << 20).await;
    }
    assert_eq!(pool.stats().programs[0].failures, 0);
    close(pool).await;
}

#[tokio::test]
async fn an_idle_process_is_replaced_at_its_maximum_age() {
    let recycle = Recycle { age: Some(Duration::from_millis(200)), ..Recycle::default() };
    let pool = pool_of(WorkerProgram { recycle, ..program(&[]) }, 1);
    until(&pool, |_| pool.stats().programs[0].starts > 2).await;
    assert_eq!(pool.stats().programs[0].failures, 0);
    close(pool).await;
}

#[tokio::test]
async fn a_restart_replaces_all_processes_while_jobs_run() {
    let pool = pool_of(program(&["slow=200"]), 3);
    until(&pool, all(ProcessState::Idle, 3)).await;
    let old: BTreeSet<_> = processes(&pool).iter().filter_map(|process| process.pid).collect();
    let gone = |all: &[ProcessStats]| {
        all.len() == 3 && !all.iter().any(|process| process.pid.is_none_or(|pid| old.contains(&pid)))
    };
    let (restarted, seen) = tokio::join!(pool.restart(), busy_until(&pool, gone));
    restarted.expect("it starts");
    assert_eq!(seen, [4, 3, 3], "largest, smallest and ready number of processes");
    assert_eq!(pool.stats().programs[0].failures, 0);
    close(pool).await;
}

/// The program is a file that changes.
fn script(directory: &Path, text: &str) -> WorkerProgram {
    let path = directory.join("worker.py");
    std::fs::write(&path, text).unwrap();
    let args = ["-u".to_owned(), path.display().to_string()];
    let kinds = ["do", "echo"].map(str::to_owned);
    WorkerProgram { start_timeout: PATIENCE, ..WorkerProgram::new("test", "/usr/bin/python3", args, kinds) }
}

const GOOD: &str = include_str!("worker.py");
const BROKEN: &str = "raise SystemExit('no such model')";

#[tokio::test]
async fn a_restart_with_code_that_cannot_start_keeps_the_old_processes() {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool_of(script(directory.path(), GOOD), 2);
    until(&pool, all(ProcessState::Idle, 2)).await;
    let pids = || processes(&pool).iter().filter_map(|process| process.pid).collect::<BTreeSet<_>>();
    let old = pids();
    script(directory.path(), BROKEN);
    let fault = pool.restart().await.expect_err("the code is broken").to_string();
    assert!(
        fault.starts_with("program test cannot start, and replaces nothing: ") && fault.contains("no such model"),
        "{fault}"
    );
    until(&pool, all(ProcessState::Idle, 2)).await;
    assert_eq!(pids(), old);
    assert!(pool.is_serving());
    script(directory.path(), GOOD);
    pool.restart().await.expect("the code is good again");
    until(&pool, |all| all.len() == 2 && all.iter().all(|it| it.pid.is_some_and(|pid| !old.contains(&pid)))).await;
    close(pool).await;
}

#[tokio::test]
async fn a_pool_is_not_serving_while_none_of_its_programs_can_start() {
    let directory = tempfile::tempdir().unwrap();
    let pool = pool_of(script(directory.path(), BROKEN), 1);
    until(&pool, |_| !pool.is_serving()).await;
    script(directory.path(), GOOD);
    until(&pool, all(ProcessState::Idle, 1)).await;
    assert!(pool.is_serving());
    // A crash of a process that started is no reason.
    crash(&run(&pool, "exit 3").await.expect_err("it crashes"));
    assert!(pool.is_serving());
    close(pool).await;
}

/// It ignores the end of descriptor 3, and writes a file at SIGTERM.
const LINGERS: &str = r#"
import os, signal, sys, time
def leave(*_):
    open(FILE, "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
os.write(4, b'{"ready":{"protocol":1,"kinds":["do","echo"]}}\n')
while True:
    time.sleep(1000)
"#;

#[tokio::test]
async fn a_process_that_does_not_leave_gets_sigterm_before_sigkill() {
    let directory = tempfile::tempdir().unwrap();
    let mark = directory.path().join("asked");
    let lingers = script(directory.path(), &LINGERS.replace("FILE", &format!("{:?}", mark.display().to_string())));
    let pool = pool_of(WorkerProgram { cancel_grace: Duration::from_secs(8), ..lingers }, 1);
    until(&pool, all(ProcessState::Idle, 1)).await;
    close(pool).await;
    assert!(mark.exists(), "it was killed at once");
}

#[test]
fn a_process_has_ten_seconds_to_start() {
    let program = WorkerProgram::new("test", "/bin/sh", [], []);
    assert_eq!((program.start_timeout, program.required), (Duration::from_secs(10), false));
}

const SERVED: &str = r#"
    drain = { notice = "0s", finish = "60s", kill = "1s" }
    pool.one.workers = 2
    kind.do = { pool = "one", program = "test" }
    kind.echo = { pool = "one", program = "test" }
    [program.test]
    command = ["/usr/bin/python3", "-u", "WORKER", "first"]
    start_timeout = "60s"
"#;

fn served(worker: &Path) -> String {
    SERVED.replace("WORKER", &worker.display().to_string())
}

async fn health(process: &Process, path: &str) -> (http::StatusCode, String) {
    ops_pages::get(process.ops, path).await
}

#[tokio::test]
async fn a_reload_to_a_command_that_cannot_start_is_refused_and_the_old_processes_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let worker = directory.path().join("worker.py");
    std::fs::write(&worker, GOOD).unwrap();
    let config = served(&worker);
    let process = Process::serve_as_configured(&config).await;
    let caller = Caller::of(process.public).await;
    let pid = async || {
        let response = caller.leave(job("do", "pid")).await.unwrap().unwrap().into_inner();
        String::from_utf8(response.result.unwrap().output).unwrap()
    };
    let old = BTreeSet::from([pid().await, pid().await]);
    process.configure(&config.replace("\"first\"", "\"broken\""));
    for command in ["reload --dry-run", "reload"] {
        let ran = process.run(command).await;
        let is_named =
            ran.out.contains("program test cannot start, and replaces nothing: ") && ran.out.contains("no model here");
        assert!(ran.code == Some(1) && is_named, "{}", ran.out);
    }
    assert!(old.contains(&pid().await));
    process.configure(&config.replace("\"first\"", "\"slow=500\""));
    let ran = process.run("reload").await;
    assert_eq!(ran.code, Some(0), "{}", ran.out);
    assert!(!old.contains(&pid().await));

    let ran = process.run("restart one").await;
    assert!(ran.code == Some(0) && ran.out.starts_with("pool one  SERVING"), "{} {}", ran.out, ran.err);
    std::fs::write(&worker, BROKEN).unwrap();
    let ran = process.run("restart one").await;
    assert!(ran.code != Some(0) && ran.err.contains("no such model"), "{} {}", ran.out, ran.err);
    pid().await;
}

#[tokio::test]
async fn a_reload_during_a_drain_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let worker = directory.path().join("worker.py");
    std::fs::write(&worker, GOOD).unwrap();
    let config = served(&worker);
    let process = Process::serve_as_configured(&config).await;
    let caller = Caller::of(process.public).await;
    let held = caller.leave(job("do", "later 4000"));
    caller.until(|pool| pool.in_flight == 1).await;
    process.signal(Signal::TERM);
    process.configure(&config.replace("workers = 2", "workers = 3"));
    process.logged("drain").await;
    let ran = process.run("reload").await;
    assert!(ran.code != Some(0) && ran.err.contains("the server is draining"), "{} {}", ran.out, ran.err);
    process.signal(Signal::HUP);
    process.logged("the configuration was not reloaded").await;
    assert!(!process.log().contains("pool.one.workers: 2"), "{}", process.log());
    held.await.unwrap().expect("the drain finishes it");
}

#[tokio::test]
async fn readiness_waits_for_a_required_program() {
    let directory = tempfile::tempdir().unwrap();
    let worker = directory.path().join("worker.py");
    std::fs::write(&worker, BROKEN).unwrap();
    let config = served(&worker).replace("start_timeout", "required = true\nstart_timeout");
    let process = Process::serve_as_configured(&config).await;
    process.logged("a process of a program failed").await;
    let metric = r#"waterwheel_program_failures_total{pool="one",program="test"}"#;
    while ops_pages::metrics(process.ops).await[metric] < 4.0 {}
    assert_eq!(health(&process, "/readyz").await.0, http::StatusCode::SERVICE_UNAVAILABLE);
    std::fs::write(&worker, GOOD).unwrap();
    while health(&process, "/readyz").await.0 != http::StatusCode::OK {}
}

#[tokio::test]
async fn a_reconfiguration_replaces_the_processes() {
    let pool = pool_of(program(&[]), 2);
    let first = pid(&pool).await;
    let (settings, fresh) =
        (Settings { workers: NonZeroUsize::new(2).unwrap(), ..Settings::default() }, Processes::new(program(&[])));
    pool.reconfigure(settings, vec![fresh.kind("do"), fresh.kind("echo")]);
    assert_ne!(pid(&pool).await, first);
    close(pool).await;
    assert_eq!(test_kill_process(first), Err(rustix::io::Errno::SRCH), "the old process has ended");
}
