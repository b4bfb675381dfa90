//! The limits of this machine for the process, read from the environment, `/proc` and `/sys`. `fit.rs` compares them.
//!
//! All files are read below a `root` parameter, so that tests can simulate a machine. A value that cannot be read is
//! unknown, never guessed.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::cli::config::Process;

/// The variable with the time between SIGTERM and SIGKILL, in seconds or as a duration such as `90s`. A process cannot
/// find out that time, so deployments copy it into this variable.
pub(super) const VARIABLE: &str = "WATERWHEEL_GRACE";

/// A limit, and where it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    /// `None` if unlimited.
    pub(super) limit: Option<u64>,
    pub(super) source: String,
}

impl Given {
    pub(super) fn holds(&self, need: u64) -> bool {
        self.limit.is_none_or(|limit| need <= limit)
    }
}

/// The time to stop, as far as known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StopTime {
    /// In milliseconds.
    Known(Given),
    /// The variable has a value that is not a duration.
    Malformed(String),
    /// The variable is not set.
    Unknown,
}

/// The limits of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits {
    /// Milliseconds between SIGTERM and SIGKILL.
    pub(super) stop_time: StopTime,
    /// File descriptors.
    pub(super) files: Option<Given>,
    /// Bytes of memory.
    pub(super) memory: Option<Given>,
    /// Whole CPUs that this process may use.
    pub(super) cpus: Given,
}

impl Limits {
    /// Reads the limits on the machine whose files are below `root`.
    pub(super) fn read(root: &Path, process: &Process) -> Self {
        Self {
            stop_time: stop_time(&process.env),
            files: files(root),
            memory: lowest(cgroup_limits(root).into_iter().chain([installed_memory(root)])),
            cpus: Given { limit: Some(process.cpus as u64), source: "the CPUs of this process".to_owned() },
        }
    }
}

/// The memory limits of this process's control group and of those above it, which all apply. A container may see the
/// path of its group on the host, of which only the last part exists.
fn cgroup_limits(root: &Path) -> Vec<Option<Given>> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let Some(group) = groups.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    let limit = |group: &Path| {
        let file = PathBuf::from("sys/fs/cgroup").join(group).join("memory.max");
        let limit = std::fs::read_to_string(root.join(&file)).ok()?.trim().parse().ok()?;
        Some(Given { limit: Some(limit), source: format!("/{}", file.display()) })
    };
    Path::new(group).ancestors().map(limit).collect()
}

/// The soft limit, which the process does not raise.
fn files(root: &Path) -> Option<Given> {
    let name = "proc/self/limits";
    let limit = match &*figure(root, name, "Max open files")? {
        "unlimited" => None,
        count => Some(count.parse().ok()?),
    };
    Some(Given { limit, source: format!("/{name}") })
}

fn installed_memory(root: &Path) -> Option<Given> {
    let name = "proc/meminfo";
    let kib: u64 = figure(root, name, "MemTotal:")?.parse().ok()?;
    Some(Given { limit: Some(kib << 10), source: format!("/{name}") })
}

/// The first word after `title` in a file.
fn figure(root: &Path, file: &str, title: &str) -> Option<String> {
    let text = std::fs::read_to_string(root.join(file)).ok()?;
    let figures = text.lines().find_map(|line| line.strip_prefix(title))?;
    Some(figures.split_whitespace().next()?.to_owned())
}

/// The lowest limit; the nearest of equal ones.
fn lowest(all: impl IntoIterator<Item = Option<Given>>) -> Option<Given> {
    all.into_iter().flatten().min_by_key(|given| given.limit.unwrap_or(u64::MAX))
}

/// The time to stop in the variables `env`.
fn stop_time(env: &[(String, String)]) -> StopTime {
    let Some((_, value)) = env.iter().find(|(name, _)| name == VARIABLE) else { return StopTime::Unknown };
    let seconds = || value.trim().parse::<u32>().ok().map(|seconds| Duration::from_secs(seconds.into()));
    let limit = match seconds().or_else(|| humantime::parse_duration(value).ok()) {
        Some(time) => Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        None if value == "infinity" => None,
        None => return StopTime::Malformed(value.clone()),
    };
    StopTime::Known(Given { limit, source: VARIABLE.to_owned() })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
