//! What stands beside a PostgreSQL server: a standby, a pooler, and a host that never answers.

// tidy: real time, because other processes start.

use std::{
    fs,
    io::{Write as _, stderr},
    path::Path,
    process::Stdio,
    time::Duration,
};

use rustix::process::geteuid;
use tempfile::TempDir;
use tokio::{
    net::{UnixListener, UnixStream},
    process::{Child, Command},
};

use super::cluster::{Cluster, USER, directory, host};

const SOCKET: &str = ".s.PGSQL.5432";

impl Cluster {
    /// A server that follows this one.
    pub(super) async fn standby(&self) -> Self {
        let standby = Self { directory: directory(), programs: self.programs.clone() };
        let host = format!("--host={}", self.directory.path().display());
        let options = ["--username=test", "--write-recovery-conf", "--checkpoint=fast", "--no-sync", &host];
        standby.run("pg_basebackup", &options).await;
        standby.resume().await;
        standby
    }

    /// Makes a primary of a standby.
    pub(super) async fn promote(&self) {
        self.run("pg_ctl", &["promote", "--silent", "--wait"]).await;
    }

    /// Its directory, as the host of a URL.
    pub(super) fn host(&self) -> String {
        host(self.directory.path())
    }
}

/// A host that takes connections and never answers.
pub(super) struct Mute {
    directory: TempDir,
    _listener: UnixListener,
}

impl Mute {
    pub(super) fn new() -> Self {
        let directory = directory();
        let listener = UnixListener::bind(directory.path().join(SOCKET)).expect("a socket");
        Self { directory, _listener: listener }
    }

    pub(super) fn host(&self) -> String {
        host(self.directory.path())
    }
}

/// PgBouncer in front of a server. It ends when it is dropped.
pub(super) struct Pooler {
    directory: TempDir,
    _process: Child,
}

impl Pooler {
    /// `mode` is `session` or `transaction`. `None`, and a line that says so, where it is not installed.
    pub(super) async fn start(cluster: &Cluster, mode: &str) -> Option<Self> {
        let program = Path::new("/usr/sbin/pgbouncer");
        if !program.exists() {
            let line = "SKIPPED: PgBouncer is not in /usr/sbin; install Debian's package `pgbouncer`";
            writeln!(stderr(), "{line}").expect("a place for it, which is not the captured output of a test");
            return None;
        }
        let directory = directory();
        let settings = directory.path().join("pgbouncer.ini");
        let (server, own) = (cluster.directory.path().display(), directory.path().display());
        let text = format!(
            "[databases]\n* = host={server} user=test\n[pgbouncer]\nauth_type = any\nunix_socket_dir = {own}\n\
             listen_port = 5432\npool_mode = {mode}\nserver_idle_timeout = 1\n"
        );
        fs::write(&settings, text).expect("its settings");
        let mut command = Command::new(program);
        if geteuid().is_root() {
            // It refuses to run as root.
            command.uid(USER).gid(USER);
        }
        command.arg("--quiet").arg(&settings).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.kill_on_drop(true).spawn().expect("PgBouncer");
        while UnixStream::connect(directory.path().join(SOCKET)).await.is_err() {
            assert!(process.try_wait().expect("its state").is_none(), "it ended: {settings:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Some(Self { directory, _process: process })
    }

    /// The URL of one of the server's databases.
    pub(super) fn url(&self, database: &str) -> String {
        format!("postgres://test@{}/{database}", host(self.directory.path()))
    }
}
