//! Every command's help ends in examples that work. Each runs against a new `waterwheel dev`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
};

use clap::CommandFactory;
use rustix::process::Signal;
use tempfile::TempDir;
use tokio::{process::Command, task::AbortHandle};
use waterwheel::{cli::Cli, config::starter, proto::PoolStats};

use crate::{
    process::{PATIENCE, Process},
    service::{Caller, job},
};

/// Commands that serve until a signal ends them.
const SERVERS: [&str; 2] = ["serve", "dev"];

/// One line of the examples in a command's help.
struct Example {
    /// Full name of the command, as in `config show`.
    command: String,
    line: String,
}

/// Collects the examples of all commands below `command` that can run without a subcommand.
fn examples(command: &clap::Command, path: &str, found: &mut Vec<Example>) {
    for below in command.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help") {
        let name = format!("{path} {}", below.get_name()).trim().to_owned();
        if below.has_subcommands() {
            examples(below, &name, found);
            // A command that can run without a subcommand must have an example too.
            if below.is_subcommand_required_set() {
                continue;
            }
        }
        let help = below.get_after_help().map(ToString::to_string).unwrap_or_default();
        let (_, lines) = help.split_once("Example:\n").unwrap_or_else(|| panic!("{name}: the help has no example"));
        let lines: Vec<&str> = lines.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let own = lines.iter().all(|line| line.starts_with(&format!("waterwheel {name}")));
        assert!(own && !lines.is_empty(), "{name}: the help does not end in its examples: {lines:?}");
        found.extend(lines.into_iter().map(|line| Example { command: name.clone(), line: line.to_owned() }));
    }
}

fn all_examples() -> Vec<Example> {
    let mut found = Vec::new();
    examples(&Cli::command(), "", &mut found);
    found
}

/// The environment of examples: a directory with a user's typical files, and a path with the program.
struct Shell {
    directory: TempDir,
    path: OsString,
}

impl Shell {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("README.md"), "# waterwheel\n".repeat(1000)).unwrap();
        std::fs::write(directory.path().join("waterwheel.toml"), starter::text()).unwrap();
        let worker = include_str!("../../examples/workers/thumbnail.py");
        std::fs::write(directory.path().join("thumb.py"), worker).unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_waterwheel")).parent().unwrap();
        let path = [program, Path::new("/usr/local/bin"), Path::new("/usr/bin"), Path::new("/bin")];
        Self { directory, path: std::env::join_paths(path.map(PathBuf::from)).unwrap() }
    }

    /// A process that runs `line`. Servers listen on free ports.
    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec {line}")])
            .current_dir(self.directory.path())
            .env("PATH", &self.path)
            .env("WATERWHEEL_SERVER__LISTEN", "127.0.0.1:0")
            .env("WATERWHEEL_SERVER__OPS_LISTEN", "127.0.0.1:0")
            .env("WATERWHEEL_DRAIN__NOTICE", "0s")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }
}

/// Starts a job that runs for a minute. Returns its call and its id.
async fn running_job(caller: &Caller) -> (AbortHandle, String) {
    let call = caller.leave(job("sleep", "60000"));
    // Only the pool of this kind counts: `dev` itself runs a first job in another.
    let is_io = |pool: &&PoolStats| pool.name == "io";
    caller.until_all(|pools| pools.iter().filter(is_io).any(|pool| pool.in_flight == 1)).await;
    let pools = caller.stats().await.pools;
    let workers = pools.iter().filter(is_io).flat_map(|pool| &pool.workers);
    let id = workers.map(|worker| worker.job_id.clone()).find(|id| !id.is_empty()).expect("a worker has the job");
    (call.abort_handle(), id)
}

/// Creates a detached job and returns its id, if `line` uses this variable.
async fn detached_job(dev: &Process, variable: &str, line: &str, job: &str) -> String {
    if !line.contains(&format!("${variable}")) {
        return String::new();
    }
    let created = dev.run(&format!("jobs create {job} --output json")).await.json();
    created["job_id"].as_str().unwrap().to_owned()
}

/// Drains the server with SIGTERM, and checks that no job was lost.
async fn stop(server: Process) {
    server.signal(Signal::TERM);
    assert_eq!(server.ended().await.code, Some(0));
}

async fn assert_works(shell: &Shell, Example { command, line }: Example) {
    if SERVERS.contains(&command.as_str()) {
        return stop(Process::of(shell.command(&line)).await).await;
    }
    // The store is in memory, because some examples work on the store file, which `dev` would lock.
    let dev = Process::of(shell.command("waterwheel dev --set store.memory=true")).await;
    if line.contains("$GROUP") {
        assert_eq!(dev.run("jobs group create parts echo done").await.code, Some(0));
    }
    let running = match line.contains("$JOB") {
        true => Some(running_job(&Caller::of(dev.public).await).await),
        false => None,
    };
    let ended = shell
        .command(&line)
        .env("JOB", running.as_ref().map_or("", |(_, id)| id))
        .env("ENDED", detached_job(&dev, "ENDED", &line, "echo hi --wait").await)
        .env("DETACHED", detached_job(&dev, "DETACHED", &line, "echo hi --delay 1h").await)
        .env("GROUP", "parts")
        .env("WATERWHEEL_SERVER", dev.public.0.to_string())
        .env("WATERWHEEL_OPS", dev.ops.0.to_string())
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{line}: {}\n{errors}", ended.status);
    if let Some((call, _)) = running {
        call.abort();
    }
    if command != "drain" {
        stop(dev).await;
    }
}

#[tokio::test]
async fn every_example_works() {
    let shell = Shell::new();
    // The job that an example cancels, in the store file of others.
    let dev = Process::of(shell.command("waterwheel dev")).await;
    let created = dev.run("jobs create echo hi --id nightly-17 --delay 1h").await;
    assert_eq!(created.code, Some(0), "{}", created.err);
    stop(dev).await;
    for example in all_examples() {
        let line = example.line.clone();
        let worked = tokio::time::timeout(2 * PATIENCE, assert_works(&shell, example)).await;
        worked.unwrap_or_else(|_| panic!("{line}: the command does not end"));
    }
}
