//! A server that is started for a load and ends with it.

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

use super::BenchError;

/// Time that a server may take to tell its address.
const START: Duration = Duration::from_secs(10);

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

impl Server {
    /// Starts `executable` with these arguments and waits for its address.
    ///
    /// # Errors
    /// A process that cannot be started, ends early or does not tell its address.
    pub(super) async fn start(executable: &Path, arguments: &[String]) -> Result<Self, BenchError> {
        let command = format!("{} {}", executable.display(), arguments.join(" "));
        let spawned = |cause| BenchError::Spawn { command: command.clone(), cause };
        let mut stderr = tempfile::tempfile().map_err(spawned)?;
        let mut process = Command::new(executable)
            .args(arguments)
            // Its settings are its defaults, whatever this process was started with.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone().map_err(spawned)?)
            .kill_on_drop(true)
            .spawn()
            .map_err(spawned)?;
        let pid = process.id().expect("a process that nobody waited for has an id");
        let mut stdout = BufReader::new(process.stdout.take().expect("standard output is piped"));
        match timeout(START, announced(&mut stdout)).await {
            Ok(Some(address)) => Ok(Self { address, pid, _process: process, _stdout: stdout }),
            _ => Err(BenchError::Silent { command, last_words: tail(&mut stderr) }),
        }
    }
}

/// The address in the first line that tells it.
async fn announced(stdout: &mut BufReader<ChildStdout>) -> Option<SocketAddr> {
    let mut lines = stdout.lines();
    loop {
        let line = lines.next_line().await.ok()??;
        if let Some(address) = address(&line) {
            return Some(address);
        }
    }
}

fn address(line: &str) -> Option<SocketAddr> {
    line.strip_prefix("grpc ")?.split_whitespace().next()?.parse().ok()
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
    fn reads_the_address_of_the_first_line() {
        let at = "127.0.0.1:4711".parse().ok();
        assert_eq!(address("grpc 127.0.0.1:4711 (reflection on)   ops http://127.0.0.1:4712 (metrics, health)"), at);
        assert_eq!(address("pools  cpu 2 workers / 64 queued"), None);
    }

    #[tokio::test]
    async fn a_server_that_ends_is_reported_with_its_last_words() {
        let error = Server::start(Path::new("/bin/false"), &[]).await.unwrap_err();
        assert!(error.to_string().contains("did not print its address"), "{error}");
        let error = Server::start(Path::new("/bin/cat"), &["/nonexistent".to_owned()]).await.unwrap_err();
        assert!(error.to_string().contains("/nonexistent: "), "{error}");
        let error = Server::start(Path::new("/nonexistent/waterwheel"), &[]).await.unwrap_err();
        assert!(matches!(error, BenchError::Spawn { .. }), "{error}");
    }
}
