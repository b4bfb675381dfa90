//! Where a process runs: what the system gives it, read from `/proc`, `/sys` and the units of systemd.
//!
//! Everything is read below a root that is a parameter, so that a test lays out a machine of its own. What cannot be
//! read is unknown, never a guess.

use std::path::{Path, PathBuf};

use super::stop_time::{self, StopTime};
use crate::cli::config_args::Process;

/// Limits beyond this are the kernel's way to say none (cgroup v1 has no word for it).
const NO_LIMIT: u64 = 1 << 62;

/// An upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Unlimited,
    Of(u64),
}

/// A figure and what says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) limit: Limit,
    pub(super) source: String,
}

/// What the system gives to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Milliseconds between SIGTERM and SIGKILL.
    pub(super) stop_time: StopTime,
    /// File descriptors.
    pub(super) files: Option<Given>,
    /// Bytes of memory.
    pub(super) memory: Option<Given>,
    /// CPUs that this process may use, whole ones.
    pub(super) cpus: Given,
}

impl Place {
    /// The place of this process on the machine whose files are below `root`.
    pub(super) fn read(root: &Path, process: &Process) -> Self {
        let cgroups = Cgroups::read(root);
        Self {
            stop_time: stop_time::read(root, &process.env, cgroups.service()),
            files: files(root),
            memory: lowest([cgroups.memory(), installed_memory(root)]),
            cpus: Given { limit: Limit::Of(process.cpus as u64), source: "what this process may use".to_owned() },
        }
    }
}

/// The control groups of this process, and where their files are.
struct Cgroups {
    root: PathBuf,
    /// Controllers, separated by commas, and path of each hierarchy; version 2 names no controllers.
    hierarchies: Vec<(String, String)>,
}

impl Cgroups {
    fn read(root: &Path) -> Self {
        let text = text(root, "proc/self/cgroup").unwrap_or_default();
        let hierarchy = |line: &str| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            Some((controllers.to_owned(), path.to_owned()))
        };
        Self { root: root.to_owned(), hierarchies: text.lines().filter_map(hierarchy).collect() }
    }

    /// The systemd unit that this process runs in, where that is a service. What it runs before or beside its main
    /// process may be in a group of its own.
    fn service(&self) -> Option<&str> {
        let systemd = |(controllers, _): &&(String, String)| matches!(&**controllers, "" | "name=systemd");
        let mut units = self.hierarchies.iter().filter(systemd).filter_map(|(_, path)| {
            let path = path.strip_suffix("/.control").unwrap_or(path);
            path.rsplit('/').next()
        });
        units.find(|unit| unit.ends_with(".service"))
    }

    fn memory(&self) -> Option<Given> {
        let limit = |group: &Path, file: &str| {
            let limit: u64 = read(group, file)?.parse().ok()?;
            (limit < NO_LIMIT).then_some(limit)
        };
        lowest([self.least("memory", "memory.max", limit), self.least("memory", "memory.limit_in_bytes", limit)])
    }

    /// The least that `limit` finds in a file of the group or of one above it, for all of them hold.
    fn least(&self, controller: &str, file: &str, limit: impl Fn(&Path, &str) -> Option<u64>) -> Option<Given> {
        lowest(self.groups(controller).into_iter().map(|group| {
            let limit = Limit::Of(limit(&group, file)?);
            let path = group.join(file);
            let path = path.strip_prefix(&self.root).unwrap_or(&path);
            Some(Given { limit, source: format!("/{}", path.display()) })
        }))
    }

    /// The directories of the group and of all above it. A container sees the group by the path that the host knows,
    /// of which it may have only the upper end.
    fn groups(&self, controller: &str) -> Vec<PathBuf> {
        let mounted = self.root.join("sys/fs/cgroup");
        let mut found = Vec::new();
        for (controllers, path) in &self.hierarchies {
            let mounts = match &**controllers {
                "" => [mounted.clone(), mounted.join("unified")],
                named if named.split(',').any(|one| one == controller) => {
                    [mounted.join(controller), mounted.join(named)]
                }
                _ => continue,
            };
            let path = Path::new(path.trim_start_matches('/'));
            found.extend(mounts.iter().flat_map(|mount| path.ancestors().map(|part| mount.join(part))));
        }
        found
    }
}

/// The soft limit of this process, which it does not raise.
fn files(root: &Path) -> Option<Given> {
    let name = "proc/self/limits";
    let text = text(root, name)?;
    let soft = text.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace().next()?;
    let limit = match soft {
        "unlimited" => Limit::Unlimited,
        count => Limit::Of(count.parse().ok()?),
    };
    Some(Given { limit, source: format!("/{name}") })
}

fn installed_memory(root: &Path) -> Option<Given> {
    let name = "proc/meminfo";
    let text = text(root, name)?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.split_whitespace().next()?;
    let kib: u64 = kib.parse().ok()?;
    Some(Given { limit: Limit::Of(kib << 10), source: format!("/{name}") })
}

/// The one that holds first, the nearest of equal ones.
fn lowest(all: impl IntoIterator<Item = Option<Given>>) -> Option<Given> {
    all.into_iter().flatten().min_by_key(|given| match given.limit {
        Limit::Of(limit) => limit,
        Limit::Unlimited => u64::MAX,
    })
}

fn read(directory: &Path, file: &str) -> Option<String> {
    let text = std::fs::read_to_string(directory.join(file)).ok()?;
    Some(text.trim().to_owned())
}

fn text(root: &Path, file: &str) -> Option<String> {
    std::fs::read_to_string(root.join(file)).ok()
}

#[cfg(test)]
mod tests;
