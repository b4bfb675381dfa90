//! Starts a server for a load, and ends it afterwards.

use std::{
    fs::File,
    io::{Read, Seek},
    net::SocketAddr,
    process::Stdio,
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::Failure;

/// Longest time until a server prints its address.
const START: Duration = Duration::from_secs(10);

/// A server in a process of its own. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Server {
    /// Its address.
    pub(crate) address: SocketAddr,
    /// Its process id.
    pub(crate) pid: u32,
    _process: Child,
    /// Held open so that the server can write to it.
    _stdout: BufReader<ChildStdout>,
}

impl Server {
    /// Starts waterwheel with these arguments and waits for its address.
    ///
    /// # Errors
    /// If the process cannot be started, ends early or does not print its address.
    pub(crate) async fn start(arguments: &[String]) -> Result<Self, Failure> {
        let mut stderr = tempfile::tempfile()?;
        let mut process = Command::new(env!("CARGO_BIN_EXE_waterwheel"))
            .args(arguments)
            // The environment of this process must not change the settings of the server.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(stderr.try_clone()?)
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().expect("a process that was not waited for has an id");
        let mut stdout = BufReader::new(process.stdout.take().expect("standard output is piped"));
        match timeout(START, announced(&mut stdout)).await {
            Ok(Some(address)) => Ok(Self { address, pid, _process: process, _stdout: stdout }),
            _ => {
                Err(format!("waterwheel {} did not print its address{}", arguments.join(" "), tail(&mut stderr)).into())
            }
        }
    }
}

/// The address in the first line that contains one.
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
