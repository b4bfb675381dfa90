//! Every command's help ends in examples that work. Each runs against a new `waterwheel dev`.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use clap::CommandFactory;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, ChildStdout, Command},
};
use waterwheel::{cli::Cli, config::starter};

/// Time limit of each example, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
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
        let store = rusqlite::Connection::open(directory.path().join("waterwheel.db")).unwrap();
        store.execute_batch(include_str!("../../src/store/sqlite/0001.sql")).unwrap();
        store.pragma_update(None, "user_version", 1).unwrap();
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

/// A running server.
struct Server {
    process: Child,
    address: String,
    ops_address: String,
    out: BufReader<ChildStdout>,
}

impl Server {
    /// Starts `line`, and reads the addresses from its first line of output.
    async fn start(shell: &Shell, line: &str) -> Self {
        let mut process = shell.command(line).spawn().unwrap();
        let mut out = BufReader::new(process.stdout.take().unwrap());
        let mut first = String::new();
        out.read_line(&mut first).await.unwrap();
        let words: Vec<&str> = first.split_whitespace().collect();
        let after = |name| words.iter().skip_while(|word| **word != name).nth(1).map(ToString::to_string);
        let (Some(address), Some(ops_address)) = (after("grpc"), after("ops")) else {
            let mut errors = String::new();
            process.stderr.take().unwrap().read_to_string(&mut errors).await.unwrap();
            panic!("{line}: {first}{errors}");
        };
        Self { process, address, ops_address, out }
    }

    /// Starts a job that runs for a minute, and returns its id.
    async fn running_job(&self, shell: &Shell) -> (Option<Child>, String) {
        let command = |line: &str| {
            let mut command = shell.command(line);
            command.env("WATERWHEEL_SERVER", &self.address);
            command
        };
        let sleeper = command("waterwheel submit sleep '{\"ms\":60000}' --deadline 2m").spawn().unwrap();
        loop {
            let shown = command("waterwheel stats --output json").output().await.unwrap();
            let stats: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
            let pools = stats["pools"].as_array().unwrap();
            let workers = pools.iter().flat_map(|pool| pool["workers"].as_array().unwrap());
            if let Some(job) = workers.filter_map(|worker| worker["job_id"].as_str()).find(|id| !id.is_empty()) {
                return (Some(sleeper), job.to_owned());
            }
        }
    }

    /// Creates a detached job and returns its id, if `line` uses this variable.
    async fn detached_job(&self, shell: &Shell, variable: &str, line: &str, job: &str) -> String {
        if !line.contains(&format!("${variable}")) {
            return String::new();
        }
        let mut create = shell.command(&format!("waterwheel jobs create {job} --output json"));
        let shown = create.env("WATERWHEEL_SERVER", &self.address).output().await.unwrap();
        let job: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
        job["job_id"].as_str().unwrap().to_owned()
    }

    /// Drains the server with SIGTERM, and checks that no job was lost.
    async fn stop(mut self) {
        let id = self.process.id().expect("the server runs");
        kill_process(Pid::from_raw(id.cast_signed()).unwrap(), Signal::TERM).unwrap();
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).await.unwrap();
        let status = self.process.wait().await.unwrap();
        assert!(status.success(), "{status}: {rest}");
    }
}

async fn assert_works(shell: &Shell, Example { command, line }: Example) {
    if SERVERS.contains(&command.as_str()) {
        return Server::start(shell, &line).await.stop().await;
    }
    // The store is in memory, because some examples work on the store file, which `dev` would lock.
    let dev = Server::start(shell, "waterwheel dev --set store.memory=true").await;
    let (sleeper, job) = if line.contains("$JOB") { dev.running_job(shell).await } else { (None, String::new()) };
    let ended = shell
        .command(&line)
        .env("JOB", job)
        .env("ENDED", dev.detached_job(shell, "ENDED", &line, "echo hi --wait").await)
        .env("DETACHED", dev.detached_job(shell, "DETACHED", &line, "echo hi --delay 1h").await)
        .env("WATERWHEEL_SERVER", &dev.address)
        .env("WATERWHEEL_OPS", &dev.ops_address)
        .output()
        .await
        .unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{line}: {}\n{errors}", ended.status);
    // Killing the caller cancels its job.
    drop(sleeper);
    if command != "drain" {
        dev.stop().await;
    }
}

#[tokio::test]
async fn every_example_works() {
    let shell = Shell::new();
    for example in all_examples() {
        let line = example.line.clone();
        let worked = tokio::time::timeout(PATIENCE, assert_works(&shell, example)).await;
        worked.unwrap_or_else(|_| panic!("{line}: the command does not end"));
    }
}
