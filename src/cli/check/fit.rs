//! Compares the needs of a configuration with the limits of this machine: the time to stop, memory, open files and the
//! disk of detached jobs. A limit that cannot be read is unknown, never guessed.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use crate::{
    cli::output::setting,
    config::{Config, FILES_OF_PROGRAM, OpenFiles, Pool},
    file::size_text,
    store::SqliteOptions,
};

/// Time that a process needs after its drain to cut connections, flush telemetry and exit.
const END: Duration = Duration::from_secs(2);

/// Memory of an idle server, with its connections.
const BASE_MEMORY: u64 = 64 << 20;

/// Memory of a `Submit` call besides its payload: stream, headers and timers.
const CALL_MEMORY: u64 = 6 << 10;

/// The variable with the time between SIGTERM and SIGKILL, in seconds or as a duration such as `90s`. A process cannot
/// find out that time, so deployments copy it into this variable.
const VARIABLE: &str = "WATERWHEEL_GRACE";

/// The settings of Kubernetes and systemd for the time to stop.
const STOP_SETTINGS: &str = "terminationGracePeriodSeconds or TimeoutStopSec";

/// Keys that determine how much memory a server needs.
const MEMORY_KEYS: &str = "queue.bytes, workers, server.memory.total, server.max_payload or max_output";

/// The limits of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits {
    /// Milliseconds between SIGTERM and SIGKILL, or a value of the variable that is not a duration.
    pub(super) grace: Result<Option<Given>, String>,
    /// Open files: the soft limit, which the process does not raise.
    pub(super) files: Given,
    /// Bytes of memory.
    pub(super) memory: Option<Given>,
}

/// A limit, and where it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Given {
    /// `None` if unlimited.
    pub(super) limit: Option<u64>,
    pub(super) source: String,
}

/// Result of comparing a need with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Fits,
    /// It works, but perhaps not under full load.
    Tight,
    /// A promise would be broken.
    Short,
    /// The limit is unknown.
    Unknown,
}

/// Unit of the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Unit {
    #[serde(rename = "ms")]
    Milliseconds,
    Files,
    Bytes,
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    unit: Unit,
    /// The limit; `None` if it is unknown or unlimited.
    have: Option<u64>,
    unlimited: bool,
    /// Where the limit was read.
    pub(super) source: Option<String>,
    need: u64,
    /// The parts of the need.
    pub(super) need_for: String,
    pub(super) help: Option<String>,
}

/// All comparisons, the most important first.
pub(super) fn findings(config: &Config, limits: &Limits) -> Vec<Finding> {
    vec![stop_time(config, limits), memory(config, limits), files(config, limits)]
}

/// Room for the file of detached jobs; `None` if its disk cannot be read.
pub(super) fn disk(options: &SqliteOptions) -> Option<Finding> {
    let file = std::path::absolute(&options.path).ok()?;
    let directory = file.parent()?;
    let disk = rustix::fs::statvfs(directory).ok()?;
    let used = file.metadata().map_or(0, |file| file.len());
    let free = disk.f_bavail.saturating_mul(disk.f_frsize).saturating_add(used);
    let have = Given { limit: Some(free), source: directory.display().to_string() };
    let (max, reserve) = (options.bounds.max_bytes, options.reserve_bytes);
    let need_for = format!("{} in jobs (store.max_bytes) and {} in reserve", size_text(max), size_text(reserve));
    let help = "lower `store.max_bytes` or move `store.path`: a full disk refuses new jobs".to_owned();
    let need = Need { all: max.saturating_add(reserve), least: reserve.saturating_add(1) };
    Some(Finding::new("disk", Unit::Bytes, Some(&have), need, need_for, help))
}

/// What a configuration needs in full, and what it needs at least to keep its promises.
struct Need {
    all: u64,
    least: u64,
}

impl Given {
    fn holds(&self, need: u64) -> bool {
        self.limit.is_none_or(|limit| need <= limit)
    }
}

impl Limits {
    /// Reads the limits of this process, which has the variables `env`.
    pub(super) fn read(env: &[(String, String)]) -> Self {
        Self {
            grace: grace(env),
            files: Given { limit: getrlimit(Resource::Nofile).current, source: "RLIMIT_NOFILE".to_owned() },
            memory: memory_limit(Path::new("/")),
        }
    }
}

/// The time to stop in the variables `env`.
fn grace(env: &[(String, String)]) -> Result<Option<Given>, String> {
    let Some((_, value)) = env.iter().find(|(name, _)| name == VARIABLE) else { return Ok(None) };
    let seconds = || value.trim().parse::<u32>().ok().map(|seconds| Duration::from_secs(seconds.into()));
    let limit = match seconds().or_else(|| humantime::parse_duration(value).ok()) {
        Some(time) => Some(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        None if value == "infinity" => None,
        None => return Err(value.clone()),
    };
    Ok(Some(Given { limit, source: VARIABLE.to_owned() }))
}

/// The lowest of the limits that apply to this process: those of its control group, of the groups above it, and the
/// installed memory. A container may see the path of its group on the host, of which it has only the end. Files are
/// read below `root`, so that tests can simulate a machine.
fn memory_limit(root: &Path) -> Option<Given> {
    let text = |file: &str| std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let groups = text("proc/self/cgroup");
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).map(Path::new);
    let of_group = |group: &Path| {
        let file = PathBuf::from("sys/fs/cgroup").join(group).join("memory.max").display().to_string();
        let limit = text(&file).trim().parse().ok()?;
        Some(Given { limit: Some(limit), source: format!("/{file}") })
    };
    let installed = || {
        let file = text("proc/meminfo");
        let kib: u64 = file.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse().ok()?;
        Some(Given { limit: Some(kib << 10), source: "/proc/meminfo".to_owned() })
    };
    let groups = group.into_iter().flat_map(Path::ancestors).filter_map(of_group);
    groups.chain(installed()).min_by_key(|given| given.limit)
}

impl Finding {
    /// Compares a need with a limit. `help` is kept unless the need fits.
    fn new(name: &'static str, unit: Unit, have: Option<&Given>, need: Need, need_for: String, help: String) -> Self {
        let verdict = match have {
            None => Verdict::Unknown,
            Some(given) if given.holds(need.all) => Verdict::Fits,
            Some(given) if given.holds(need.least) => Verdict::Tight,
            Some(_) => Verdict::Short,
        };
        Self {
            name,
            verdict,
            unit,
            have: have.and_then(|given| given.limit),
            unlimited: have.is_some_and(|given| given.limit.is_none()),
            source: have.map(|given| given.source.clone()),
            need: need.all,
            need_for,
            help: (verdict != Verdict::Fits).then_some(help),
        }
    }

    /// The limit and the need as text.
    pub(super) fn compared(&self) -> String {
        let given = match self.have {
            Some(limit) => self.unit.show(limit),
            None if self.unlimited => "unlimited".to_owned(),
            None => "unknown".to_owned(),
        };
        format!("{given} of {} needed", self.unit.show(self.need))
    }
}

impl Unit {
    fn show(self, figure: u64) -> String {
        match self {
            Self::Milliseconds => setting(Duration::from_millis(figure)),
            Self::Files => figure.to_string(),
            Self::Bytes => size_text(figure),
        }
    }
}

fn stop_time(config: &Config, limits: &Limits) -> Finding {
    let drain = config.drain.notice + config.drain.finish + config.drain.kill;
    let all = u64::try_from((drain + END).as_millis()).unwrap_or(u64::MAX);
    let needed = Unit::Milliseconds.show(all);
    let (have, help) = match &limits.grace {
        Ok(Some(given)) => {
            (Some(given), format!("raise {STOP_SETTINGS} and {VARIABLE} to {needed}, or lower drain.finish"))
        }
        Ok(None) => {
            let time = format!("set {VARIABLE} to the time between SIGTERM and SIGKILL ({STOP_SETTINGS})");
            (None, format!("{time}; it needs {needed}"))
        }
        Err(value) => (None, format!("{VARIABLE} is {value:?}, which is not a duration; write it like 45 or 45s")),
    };
    let need_for = format!("drain {} and {} to end", setting(drain), setting(END));
    let finding = Finding::new("grace", Unit::Milliseconds, have, Need { all, least: all }, need_for, help);
    if limits.grace.is_err() { Finding { verdict: Verdict::Short, ..finding } } else { finding }
}

fn memory(config: &Config, limits: &Limits) -> Finding {
    let pools = &config.pools;
    let payloads = sum(pools.iter().map(|pool| payloads(config, pool)));
    let outputs = sum(pools.iter().map(|pool| outputs(config, pool)));
    let calls = sum(pools.iter().map(calls)).saturating_mul(CALL_MEMORY);
    let uploads = config.server.memory.total as u64;
    // Messages and answers may each use all of it. Received but unread bytes may use a quarter more.
    let edges = uploads.saturating_mul(2).saturating_add(uploads / 4);
    let parts = [
        (payloads, "of payloads"),
        (calls, "of calls that wait or run"),
        (edges, "of unfinished messages and unread answers"),
        (outputs, "of results in the making"),
        (BASE_MEMORY, "besides"),
    ];
    let all = sum(parts.map(|(size, _)| size));
    let need_for = parts.map(|(size, what)| format!("{} {what}", size_text(size))).join(", ");
    let (have, needed) = (limits.memory.as_ref(), size_text(all));
    let help = match have {
        None => format!("give it {needed}"),
        Some(_) => format!("raise the limit to {needed}, or lower {MEMORY_KEYS}"),
    };
    Finding::new("memory", Unit::Bytes, have, Need { all, least: all - outputs }, need_for, help)
}

fn sum(parts: impl IntoIterator<Item = u64>) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

/// Maximum payload bytes in a pool: of its queue, of running jobs, and of waiting callers, because each call may choose
/// to wait.
fn payloads(config: &Config, pool: &Pool) -> u64 {
    let (queued, each) = (pool.settings.queue_bytes as u64, config.server.max_payload as u64);
    let of = |jobs: usize| each.saturating_mul(jobs as u64);
    let waiting = of(pool.settings.queue_waiting).min(queued);
    queued.saturating_add(of(pool.settings.most_workers())).saturating_add(waiting)
}

/// Maximum number of calls that wait for a pool or run in it.
fn calls(pool: &Pool) -> u64 {
    let settings = &pool.settings;
    sum([settings.queue_jobs, settings.queue_waiting, settings.most_workers()].map(|calls| calls as u64))
}

/// Maximum result bytes that the workers of a pool hold at once.
fn outputs(config: &Config, pool: &Pool) -> u64 {
    let kinds = config.kinds.iter().filter(|kind| kind.pool == pool.name);
    let largest = kinds.map(|kind| kind.options.max_output.unwrap_or(config.server.max_output)).max();
    (largest.unwrap_or(0) as u64).saturating_mul(pool.settings.most_workers() as u64)
}

fn files(config: &Config, limits: &Limits) -> Finding {
    let needed = OpenFiles::of(config);
    let OpenFiles { own, programs } = needed;
    let connections = config.server.connections.max as u64;
    let all = connections + needed.all();
    let mut need_for = format!("{connections} connections, {own} of its own");
    if programs > 0 {
        need_for.push_str(&format!(", {FILES_OF_PROGRAM} for each of {programs} programs"));
    }
    let help = format!("raise LimitNOFILE or `ulimit -n` to {all}, or lower server.connections.max");
    Finding::new("files", Unit::Files, Some(&limits.files), Need { all, least: all }, need_for, help)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
