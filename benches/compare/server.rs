//! The servers, each in a process of its own.

use std::{fs, net::SocketAddr, path::PathBuf, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::{Failure, regime::Side};

/// Prefix of the line in which the bare server and the one in Go print their address.
pub(crate) const LISTENING: &str = "listening ";
/// Prefix of the address of waterwheel.
const GRPC: &str = "grpc ";
/// Longest time until a server prints its address.
const START: Duration = Duration::from_secs(30);

/// Capacity for all jobs of a burst, and callers that wait, because no regime tests refusals. `exec` runs a program
/// that ends at once.
const SETTINGS: [&str; 8] = [
    "store.memory=true",
    "pool.cpu.queue.jobs=4096",
    "pool.cpu.when_full=wait",
    "pool.run.queue.jobs=4096",
    "pool.run.when_full=wait",
    "kind.true.pool=run",
    "kind.true.exec=[\"/bin/true\"]",
    "server.connections.max_per_address=4096",
];

/// A server. Dropping it kills its process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) pid: u32,
    _process: Child,
    /// Held open so that the server can write to it.
    _stdout: Lines<BufReader<ChildStdout>>,
}

impl Server {
    pub(crate) async fn start(side: Side, go: Option<&PathBuf>) -> Result<Self, Failure> {
        let (mut command, announcement) = command(side, go)?;
        let mut process = command
            // The environment of this process must not change the settings of the server.
            .env_clear()
            // Never written to. The server ends when it is closed, which happens when this process ends.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = process.id().ok_or("the server ended at once")?;
        let mut stdout = BufReader::new(process.stdout.take().ok_or("standard output is not piped")?).lines();
        let address = async {
            while let Some(line) = stdout.next_line().await? {
                let told = line.strip_prefix(announcement).and_then(|rest| rest.split_whitespace().next());
                if let Some(address) = told.and_then(|told| told.parse().ok()) {
                    return Ok(address);
                }
            }
            Err(Failure::from(format!("{side:?} ended without printing its address")))
        };
        let address = timeout(START, address).await.map_err(|_| format!("{side:?} does not print its address"))??;
        Ok(Self { address, pid, _process: process, _stdout: stdout })
    }

    /// Peak memory of the process, in MiB.
    pub(crate) fn peak_mib(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kibibytes / 1024.0)
    }
}

fn command(side: Side, go: Option<&PathBuf>) -> Result<(Command, &'static str), Failure> {
    match side {
        Side::Waterwheel | Side::Mute | Side::Submit => {
            let mut command = Command::new(env!("CARGO_BIN_EXE_waterwheel"));
            command.args(["dev", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]);
            command.args(SETTINGS.iter().flat_map(|setting| ["--set", setting]));
            let log = if side == Side::Mute { "off" } else { "warn" };
            command.args(["--log", log]);
            Ok((command, GRPC))
        }
        Side::Bare => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("serve-bare");
            Ok((command, LISTENING))
        }
        Side::Go => Ok((Command::new(go.ok_or("there is no server in Go")?), LISTENING)),
    }
}
