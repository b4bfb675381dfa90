//! The limits of this machine for the process, read from `/proc`, `/sys` and systemd's unit files. `fit.rs` compares
//! them.
//!
//! All files are read below a root that is a parameter, so that a test can lay out a machine. What cannot be read is
//! unknown, never guessed.

use std::path::{Path, PathBuf};

use super::stop_time::{self, StopTime};
use crate::cli::config_args::Process;

/// Limits from here on mean unlimited: cgroup v1 has no other way to express it.
const NO_LIMIT: u64 = 1 << 62;

/// An upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Unlimited,
    Of(u64),
}

/// A limit, and where it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) limit: Limit,
    pub(super) source: String,
}

/// The limits of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// Milliseconds between SIGTERM and SIGKILL.
    pub(super) stop_time: StopTime,
    /// File descriptors.
    pub(super) files: Option<Given>,
    /// Bytes of memory.
    pub(super) memory: Option<Given>,
    /// Whole CPUs that this process may use.
    pub(super) cpus: Given,
}

impl Place {
    /// Reads the limits on the machine whose files are below `root`.
    pub(super) fn read(root: &Path, process: &Process) -> Self {
        let cgroups = Cgroups::read(root);
        Self {
            stop_time: stop_time::read(root, &process.env, cgroups.service()),
            files: files(root),
            memory: lowest([cgroups.memory(), installed_memory(root)]),
            cpus: Given { limit: Limit::Of(process.cpus as u64), source: "the CPUs of this process".to_owned() },
        }
    }
}

/// The control groups of this process, and their directories.
struct Cgroups {
    root: PathBuf,
    /// Controllers, separated by commas, and path of each hierarchy; version 2 lists no controllers.
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

    /// The systemd service that this process runs in, if any. Processes beside the main one may be in a group of their
    /// own.
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

    /// The lowest value in this file of the group and of those above it: all of them apply.
    fn least(&self, controller: &str, file: &str, limit: impl Fn(&Path, &str) -> Option<u64>) -> Option<Given> {
        lowest(self.groups(controller).into_iter().map(|group| {
            let limit = Limit::Of(limit(&group, file)?);
            let path = group.join(file);
            let path = path.strip_prefix(&self.root).unwrap_or(&path);
            Some(Given { limit, source: format!("/{}", path.display()) })
        }))
    }

    /// The directories of the group and of all above it. A container sees the host's path of the group, of which it may
    /// have only the upper end.
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

/// The soft limit, which the process does not raise.
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

/// The lowest limit; the nearest of equal ones.
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
