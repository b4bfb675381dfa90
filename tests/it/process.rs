//! The program in a process of its own, as its operators and callers meet it.

// tidy: real time, because the log of another process is looked at until it is as wanted.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Stdio,
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

/// Longest wait for something that takes milliseconds on an idle machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A running `waterwheel`. Dropping it kills the process.
pub(crate) struct Process {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    dir: TempDir,
    pub(crate) public: Address,
    pub(crate) ops: Address,
    /// Time from the start of the process to the line that says where it serves.
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

impl Process {
    /// Starts `waterwheel serve` with a configuration, on ports that are free.
    pub(crate) async fn serve(config: &str) -> Self {
        Self::serve_with(config, &[]).await
    }

    /// As [`serve`](Self::serve), with variables of the environment.
    pub(crate) async fn serve_with(config: &str, env: &[(&str, &str)]) -> Self {
        Self::serve_logging(config, env, "warn").await
    }

    /// The same, with this filter of its log.
    pub(crate) async fn serve_logging(config: &str, env: &[(&str, &str)], filter: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("waterwheel.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = on_free_ports(&["serve", "--config", file.to_str().unwrap(), "--log", filter]);
        command.envs(env.iter().copied());
        Self::start(dir, command).await
    }

    /// As [`serve`](Self::serve), with the filter of the configuration.
    pub(crate) async fn serve_as_configured(config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("waterwheel.toml");
        std::fs::write(&file, config).unwrap();
        let command = on_free_ports(&["serve", "--config", file.to_str().unwrap()]);
        Self::start(dir, command).await
    }

    /// The same with a file, beside which are those that it names. Its drain gives no notice.
    pub(crate) async fn serve_file(path: &Path) -> Self {
        let args = ["serve", "--set", "drain.notice=0s", "--config", path.to_str().unwrap()];
        Self::start(tempfile::tempdir().unwrap(), on_free_ports(&args)).await
    }

    /// Replaces the file of the configuration.
    pub(crate) fn configure(&self, config: &str) {
        std::fs::write(self.dir.path().join("waterwheel.toml"), config).unwrap();
    }

    /// Starts `waterwheel dev` on ports that are free.
    pub(crate) async fn dev(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let command = dev_in(dir.path(), args);
        Self::start(dir, command).await
    }

    /// The same in a directory that outlives it.
    pub(crate) async fn dev_in(directory: &Path, args: &[&str]) -> Self {
        Self::start(tempfile::tempdir().unwrap(), dev_in(directory, args)).await
    }

    /// Starts this binary again to run the one test `name`, which sees `value` in the environment variable `variable`
    /// and then serves: the way to a process with handlers in Rust.
    pub(crate) async fn test(name: &str, variable: &str, value: &Path) -> Self {
        let mut command = clean(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(variable, value);
        Self::start(tempfile::tempdir().unwrap(), command).await
    }

    async fn start(dir: TempDir, mut command: Command) -> Self {
        let log = std::fs::File::create(dir.path().join("stderr")).unwrap();
        let begin = Instant::now();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(PATIENCE, announcement(&mut stdout)).await.expect("an announcement");
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

    /// What the process has logged.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }

    /// Waits for the end, and returns all that was logged.
    pub(crate) async fn last_log(mut self) -> String {
        timeout(PATIENCE, self.child.wait()).await.expect("an end").unwrap();
        self.log()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// Kills it, and returns when it is gone with all that it held.
    pub(crate) async fn killed(mut self) {
        self.child.kill().await.unwrap();
    }

    /// Waits for the end.
    pub(crate) async fn ended(mut self) -> Ended {
        let mut last = String::new();
        while let Some(line) = timeout(PATIENCE, self.stdout.next_line()).await.expect("an end of the output").unwrap()
        {
            last = line;
        }
        let status = timeout(PATIENCE, self.child.wait()).await.expect("an end").unwrap();
        let at = Instant::now();
        let receipt = serde_json::from_str(&last).unwrap_or_else(|_| panic!("the last line is no receipt: {last:?}"));
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

/// The line that says where it serves; the harness of a test says something before. `None` where there is none.
async fn announcement(stdout: &mut Lines<BufReader<ChildStdout>>) -> Option<String> {
    loop {
        match stdout.next_line().await.unwrap() {
            Some(line) if line.split_whitespace().any(|word| word == "grpc") => return Some(line),
            Some(_) => {}
            None => return None,
        }
    }
}

/// The program with these arguments, and none of the variables of this process. `WATERWHEEL_BIN` names another build.
pub(crate) fn program(args: &[&str]) -> Command {
    let named = std::env::var_os("WATERWHEEL_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_waterwheel").into());
    let mut command = clean(std::path::absolute(named).unwrap());
    command.args(args);
    command
}

/// On two threads, whatever the machine has: what its threads hold for the next time is most of what a process holds.
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

fn clean(executable: PathBuf) -> Command {
    let mut command = Command::new(executable);
    command.env_clear().stdin(Stdio::null()).kill_on_drop(true);
    command
}
