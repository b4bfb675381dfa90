//! Servers that the comparison starts and ends.

use std::{
    fs::File,
    io::{Read, Seek},
    net::SocketAddr,
    path::Path,
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use super::{BenchError, bare};

/// Time that a server may take to tell its address.
const START: Duration = Duration::from_secs(10);

/// Which server to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flavour {
    /// A bare tonic echo.
    Bare,
    /// Waterwheel with its defaults.
    Waterwheel,
}

/// A server in a process of its own. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Server {
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// Its process.
    pub(super) pid: u32,
    _process: Child,
    /// Held open so that the server can go on writing.
    _stdout: BufReader<ChildStdout>,
}

impl Flavour {
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Bare => &["bare-echo", "--listen", "127.0.0.1:0"],
            Self::Waterwheel => &["dev", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"],
        }
    }

    /// What stands before the address in the line that tells it.
    fn announcement(self) -> &'static str {
        match self {
            Self::Bare => bare::LISTENING,
            Self::Waterwheel => "grpc ",
        }
    }
}

impl Server {
    /// Starts a server from `executable` and waits for its address.
    ///
    /// # Errors
    /// A process that cannot be started, ends early or does not tell its address.
    pub(super) async fn start(flavour: Flavour, executable: &Path) -> Result<Self, BenchError> {
        Self::start_with(flavour, &[], executable).await
    }

    /// The same with further arguments.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub(super) async fn start_with(
        flavour: Flavour,
        further: &[String],
        executable: &Path,
    ) -> Result<Self, BenchError> {
        let arguments = || flavour.arguments().iter().copied().chain(further.iter().map(String::as_str));
        let command = format!("{} {}", executable.display(), arguments().collect::<Vec<_>>().join(" "));
        let spawned = |cause| BenchError::Spawn { command: command.clone(), cause };
        let mut stderr = tempfile::tempfile().map_err(spawned)?;
        let mut process = Command::new(executable)
            .args(arguments())
            // The settings of the servers are their defaults, whatever this process was started with.
            .env_clear()
            // Never written to: its end tells the bare echo that this process is gone.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().map_err(spawned)?)
            .kill_on_drop(true)
            .spawn()
            .map_err(spawned)?;
        let pid = process.id().expect("a process that nobody waited for has an id");
        let mut stdout = BufReader::new(process.stdout.take().expect("standard output is piped"));
        match timeout(START, announced(flavour.announcement(), &mut stdout)).await {
            Ok(Some(address)) => Ok(Self { address, pid, _process: process, _stdout: stdout }),
            _ => Err(BenchError::Silent { command, last_words: tail(&mut stderr) }),
        }
    }
}

/// The address after `announcement` in the first line that has one.
async fn announced(announcement: &str, stdout: &mut BufReader<ChildStdout>) -> Option<SocketAddr> {
    let mut lines = stdout.lines();
    loop {
        let line = lines.next_line().await.ok()??;
        if let Some(address) = address(announcement, &line) {
            return Some(address);
        }
    }
}

fn address(announcement: &str, line: &str) -> Option<SocketAddr> {
    line.strip_prefix(announcement)?.split_whitespace().next()?.parse().ok()
}

fn tail(stderr: &mut File) -> String {
    let mut text = String::new();
    let read = stderr.rewind().and_then(|()| stderr.read_to_string(&mut text));
    match (read, text.lines().rev().find(|line| !line.trim().is_empty())) {
        (Ok(_), Some(line)) => format!(": {line}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_address_of_either_server() {
        let at = "127.0.0.1:4711".parse().ok();
        assert_eq!(address(bare::LISTENING, "listening 127.0.0.1:4711"), at);
        let first_line = "grpc 127.0.0.1:4711 (reflection on)   ops http://127.0.0.1:4712 (metrics, health)";
        assert_eq!(address(Flavour::Waterwheel.announcement(), first_line), at);
        assert_eq!(address(bare::LISTENING, "pools  cpu 2 workers / 64 queued"), None);
    }

    #[tokio::test]
    async fn a_server_that_ends_is_reported_with_its_last_words() {
        let error = Server::start(Flavour::Bare, Path::new("/bin/false")).await.unwrap_err();
        assert!(error.to_string().contains("did not print its address"), "{error}");
        let error = Server::start(Flavour::Bare, Path::new("/bin/cat")).await.unwrap_err();
        assert!(error.to_string().contains("bare-echo"), "{error}");
        let error = Server::start(Flavour::Bare, Path::new("/nonexistent/waterwheel")).await.unwrap_err();
        assert!(matches!(error, BenchError::Spawn { .. }), "{error}");
    }
}
