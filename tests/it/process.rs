//! Starts the program in a process of its own.

// tidy: real time, because a test polls the log of another process.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::{Instant, timeout},
};

use crate::service::Address;

/// Timeout for operations that take milliseconds on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A running `waterwheel`. Dropping it kills the process.
pub(crate) struct Process {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    dir: TempDir,
    pub(crate) public: Address,
    pub(crate) ops: Address,
    /// Time from the start of the process until it prints its addresses.
    pub(crate) served_after: Duration,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    /// The last line on standard output.
    pub(crate) receipt: Value,
    pub(crate) at: Instant,
}

/// Output and exit code of a command.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Ran {
    fn from(Output { status, stdout, stderr }: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: status.code(), out: text(stdout), err: text(stderr) }
    }
}

impl Ran {
    /// Runs a command to its end.
    pub(crate) async fn of(mut command: Command) -> Self {
        timeout(2 * PATIENCE, command.output()).await.expect("the command ends").unwrap().into()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|_| panic!("no JSON: {:?} {:?}", self.out, self.err))
    }
}

impl Process {
    /// Starts `waterwheel serve` with a configuration, on free ports.
    pub(crate) async fn serve(config: &str) -> Self {
        Self::serve_with(config, &[]).await
    }

    /// As [`serve`](Self::serve), with environment variables.
    pub(crate) async fn serve_with(config: &str, env: &[(&str, &str)]) -> Self {
        Self::serve_logging(config, env, "warn").await
    }

    /// As [`serve_with`](Self::serve_with), with this log filter.
    pub(crate) async fn serve_logging(config: &str, env: &[(&str, &str)], filter: &str) -> Self {
        let (dir, file) = config_file(config);
        let mut command = on_free_ports(&["serve", "--config", file.to_str().unwrap(), "--log", filter]);
        command.envs(env.iter().copied());
        Self::start(dir, command).await
    }

    /// As [`serve`](Self::serve), with the log filter of the configuration.
    pub(crate) async fn serve_as_configured(config: &str) -> Self {
        let (dir, file) = config_file(config);
        let command = on_free_ports(&["serve", "--config", file.to_str().unwrap()]);
        Self::start(dir, command).await
    }

    /// Starts `waterwheel serve` with a configuration file, without a notice period in its drain.
    ///
    /// Relative paths in the file are found beside it.
    pub(crate) async fn serve_file(path: &Path) -> Self {
        let args = ["serve", "--set", "drain.notice=0s", "--config", path.to_str().unwrap()];
        Self::of(on_free_ports(&args)).await
    }

    /// Overwrites the configuration file.
    pub(crate) fn configure(&self, config: &str) {
        std::fs::write(self.dir.path().join("waterwheel.toml"), config).unwrap();
    }

    /// Starts `waterwheel dev` on free ports, in a temporary directory.
    pub(crate) async fn dev(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let command = dev_in(dir.path(), args);
        Self::start(dir, command).await
    }

    /// Starts `waterwheel dev` on free ports, in this directory.
    pub(crate) async fn dev_in(directory: &Path, args: &[&str]) -> Self {
        Self::of(dev_in(directory, args)).await
    }

    /// Starts a command that serves.
    pub(crate) async fn of(command: Command) -> Self {
        Self::start(tempfile::tempdir().unwrap(), command).await
    }

    async fn start(dir: TempDir, mut command: Command) -> Self {
        let log = std::fs::File::create(dir.path().join("stderr")).unwrap();
        let begin = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, stdout.next_line()).await.expect("an announcement").unwrap();
        let served_after = begin.elapsed();
        let Some(line) = line else {
            panic!("it did not start: {}", std::fs::read_to_string(dir.path().join("stderr")).unwrap());
        };
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |name| -> SocketAddr {
            let at = words.iter().position(|word| *word == name).unwrap_or_else(|| panic!("no {name} in {line:?}"));
            words[at + 1].trim_start_matches("http://").parse().unwrap()
        };
        let (public, ops) = (Address(after("grpc")), Address(after("ops")));
        Self { child, stdout, dir, public, ops, served_after }
    }

    /// The program with these arguments, as a client of this server.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = program(args);
        command.env("WATERWHEEL_SERVER", self.public.0.to_string()).env("WATERWHEEL_OPS", self.ops.0.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs the program with the words of a line, as a client of this server.
    pub(crate) async fn run(&self, line: &str) -> Ran {
        Ran::of(self.command(&line.split(' ').collect::<Vec<_>>())).await
    }

    /// The next line on standard output.
    pub(crate) async fn line(&mut self) -> String {
        timeout(PATIENCE, self.stdout.next_line()).await.expect("a line").unwrap().expect("more output")
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Waits until the log holds a text.
    pub(crate) async fn logged(&self, text: &str) {
        let begin = Instant::now();
        while !self.log().contains(text) {
            assert!(begin.elapsed() < PATIENCE, "no {text:?} in {}", self.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The log of the process.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }

    /// Waits for the end of the process, and returns its log.
    pub(crate) async fn last_log(mut self) -> String {
        timeout(PATIENCE, self.child.wait()).await.expect("an end").unwrap();
        self.log()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Kills the process, and waits until it has ended.
    pub(crate) async fn killed(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits for the end of the process, and reads its drain receipt.
    pub(crate) async fn ended(mut self) -> Ended {
        let mut last = String::new();
        while let Some(line) = timeout(PATIENCE, self.stdout.next_line()).await.expect("an end of the output").unwrap()
        {
            last = line;
        }
        let status = timeout(PATIENCE, self.child.wait()).await.expect("an end").unwrap();
        let at = Instant::now();
        let receipt =
            serde_json::from_str(&last).unwrap_or_else(|_| panic!("the last line is not a receipt: {last:?}"));
        Ended { code: status.code(), receipt, at }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default());
        }
    }
}

/// Writes a configuration file into a new directory, in which the server finds relative paths.
pub(crate) fn config_file(config: &str) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("waterwheel.toml");
    std::fs::write(&path, config).unwrap();
    (dir, path)
}

/// Polls until a condition is fulfilled.
pub(crate) async fn until(what: &str, reached: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !reached().await {
        assert!(begin.elapsed() < PATIENCE, "not reached: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The program with these arguments and an empty environment. If `WATERWHEEL_BIN` is set, that executable is tested
/// instead.
pub(crate) fn program(args: &[&str]) -> Command {
    let named = std::env::var_os("WATERWHEEL_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_waterwheel").into());
    let mut command = Command::new(std::path::absolute(named).unwrap());
    command.env_clear().stdin(Stdio::null()).kill_on_drop(true).args(args);
    command
}

/// The server uses two threads on any machine, because most memory of a process is held by its threads.
fn on_free_ports(args: &[&str]) -> Command {
    let mut command = program(args);
    command.args(["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]);
    command.env("WATERWHEEL_SERVER__THREADS", "2");
    command
}

fn dev_in(directory: &Path, args: &[&str]) -> Command {
    let mut command = on_free_ports(&[&["dev"], args].concat());
    command.current_dir(directory);
    command
}
