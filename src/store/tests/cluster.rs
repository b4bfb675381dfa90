//! A PostgreSQL server of the tests' own: made for them, reached by a Unix socket, and gone with them.

use std::{
    fs,
    io::{Write as _, stderr},
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Stdio,
};

use rustix::process::{Pid, Signal, geteuid, kill_process};
use tempfile::TempDir;
use tokio::process::Command;

/// A user that is not root, as which the server runs if the tests run as root.
pub(super) const USER: u32 = 65_534;
/// No network, and no flush: a server that is killed loses nothing while its machine goes on.
const SETTINGS: &str = "listen_addresses = ''\nfsync = off\n";
/// Over a network, only with TLS and a password.
const ACCESS: &str = "local all all trust\nlocal replication all trust\nhostssl all all all scram-sha-256\n";

/// A server, which runs until it is dropped.
pub(crate) struct Cluster {
    pub(super) directory: TempDir,
    pub(super) programs: PathBuf,
}

impl Cluster {
    /// `None`, and a line that says so, where PostgreSQL is not installed.
    pub(crate) async fn start() -> Option<Self> {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
        let Some(programs) = versions.map(|version| version.path().join("bin")).find(|bin| bin.join("initdb").exists())
        else {
            let line = "SKIPPED: PostgreSQL is not in /usr/lib/postgresql; install Debian's package `postgresql`";
            writeln!(stderr(), "{line}").expect("a place for it, which is not the captured output of a test");
            return None;
        };
        let cluster = Self { directory: directory(), programs };
        let options = ["--auth=trust", "--username=test", "--encoding=UTF8", "--locale=C", "--no-sync"];
        cluster.run("initdb", &options).await;
        cluster.put("postgresql.conf", SETTINGS);
        cluster.put("pg_hba.conf", ACCESS);
        cluster.resume().await;
        Some(cluster)
    }

    /// Ends the server at once, without a checkpoint.
    pub(crate) async fn halt(&self) {
        self.run("pg_ctl", &["stop", "--silent", "--mode=immediate"]).await;
    }

    /// Starts it again, and returns when it answers.
    pub(crate) async fn resume(&self) {
        let directory = self.directory.path().display();
        let (log, options) = (format!("--log={directory}/log"), format!("--options=-k {directory}"));
        self.run("pg_ctl", &["start", "--silent", "--wait", &log, &options]).await;
    }

    /// Stops or continues all its processes, which keep their connections.
    pub(crate) fn signal(&self, signal: Signal) {
        let id = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let Some(id) = id.lines().next() else { return };
        // It starts no further ones while it stands still.
        let send = |id: &str| {
            if let Some(id) = id.parse().ok().and_then(Pid::from_raw) {
                // It may have ended.
                let _ = kill_process(id, signal);
            }
        };
        send(id);
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        children.split_whitespace().for_each(send);
    }

    /// Puts a file beside its data.
    pub(crate) fn put(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        fs::write(&path, text).expect("a file of the server");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode");
        own(&path);
    }

    /// The URL of one of its databases.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("postgres://test@{}/{database}", host(self.directory.path()))
    }

    pub(super) async fn run(&self, program: &str, options: &[&str]) {
        let mut command = Command::new(self.programs.join(program));
        if geteuid().is_root() {
            // PostgreSQL refuses to run as root.
            command.uid(USER).gid(USER);
        }
        command.args(options).arg("-D").arg(self.data()).stdout(Stdio::null());
        let ended = command.status().await.expect("a program of PostgreSQL");
        assert!(ended.success(), "{program} {options:?}: {ended}");
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        let id = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        if let Some(id) = id.lines().next().and_then(|id| Pid::from_raw(id.parse().ok()?)) {
            // It ends its own processes, which a kill would not.
            let _ = kill_process(id, Signal::QUIT);
        }
    }
}

/// A directory with a socket, as the host of a URL.
pub(crate) fn host(directory: &Path) -> String {
    directory.display().to_string().replace('/', "%2F")
}

/// Short enough for a socket, and of the server's user.
pub(super) fn directory() -> TempDir {
    let directory = TempDir::new_in(Path::new("/tmp")).expect("a directory for the server");
    own(directory.path());
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).expect("its mode");
    directory
}

/// PostgreSQL refuses to run as root.
fn own(path: &Path) {
    if geteuid().is_root() {
        chown(path, Some(USER), Some(USER)).expect("its owner");
    }
}
