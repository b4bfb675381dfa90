//! Compares the needs of a configuration with the limits of the machine, which `place.rs` reads.

use std::time::Duration;

use serde_json::json;

use super::{
    place::{Given, Limit, Place},
    stop_time::{StopTime, VARIABLE},
};
use crate::{
    cli::output::{bytes, setting},
    config::{Config, Handler, Pool},
    store::SqliteOptions,
};

/// Time that a process needs after its drain: connections are cut, telemetry is flushed, the system cleans up.
const END: Duration = Duration::from_secs(2);

/// Memory of an idle server, with its connections.
const BASE_MEMORY: u64 = 64 << 20;

/// Memory of a `Submit` call besides its payload: stream, headers and timers.
const CALL_MEMORY: u64 = 6 << 10;

/// Listeners, standard streams, timers, and what a runtime for each thread needs.
const BASE_FILES: u64 = 64;
const FILES_OF_THREAD: u64 = 4;

/// Both ends of three pipes while a program starts, the pipe that reports its start, and its pidfd.
const FILES_OF_PROGRAM: u64 = 9;

/// Result of comparing a need with a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Milliseconds,
    Files,
    Bytes,
    Cpus,
}

/// One comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) verdict: Verdict,
    /// The limit, and where it was read.
    pub(super) have: Option<Given>,
    pub(super) need: u64,
    /// The parts of the need.
    pub(super) need_for: String,
    pub(super) help: Option<String>,
}

/// All comparisons, the most important first.
pub(super) fn findings(config: &Config, place: &Place) -> Vec<Finding> {
    vec![stop_time(config, place), memory(config, place), files(config, place), cpus(config, place)]
}

/// Room for the file of detached jobs; `None` if its disk cannot be read.
pub(super) fn disk(options: &SqliteOptions) -> Option<Finding> {
    let file = std::path::absolute(&options.path).ok()?;
    let directory = file.parent()?;
    let disk = rustix::fs::statvfs(directory).ok()?;
    let used = file.metadata().map_or(0, |file| file.len());
    let free = disk.f_bavail.saturating_mul(disk.f_frsize).saturating_add(used);
    let have = Given { limit: Limit::Of(free), source: directory.display().to_string() };
    let (most, reserve) = (options.bounds.max_bytes, options.reserve_bytes);
    let need_for = format!("{} in jobs (store.max_bytes) and {} in reserve", bytes(most), bytes(reserve));
    let found = Finding::new("disk", Unit::Bytes, most.saturating_add(reserve), need_for, Some(&have));
    let verdict = if found.verdict == Verdict::Short && free > reserve { Verdict::Tight } else { found.verdict };
    let help = |_: &Finding| "lower `store.max_bytes` or move `store.path`: a full disk refuses new jobs".to_owned();
    Some(Finding { verdict, ..found }.help(help))
}

impl Finding {
    fn new(name: &'static str, unit: Unit, need: u64, need_for: String, have: Option<&Given>) -> Self {
        let verdict = match have.map(|given| given.limit) {
            None => Verdict::Unknown,
            Some(Limit::Of(limit)) if limit < need => Verdict::Short,
            Some(_) => Verdict::Fits,
        };
        Self { name, unit, verdict, have: have.cloned(), need, need_for, help: None }
    }

    /// Adds help, unless the need fits.
    fn help(mut self, help: impl FnOnce(&Self) -> String) -> Self {
        if self.verdict != Verdict::Fits {
            self.help = Some(help(&self));
        }
        self
    }

    /// The need as text.
    pub(super) fn needed(&self) -> String {
        self.unit.show(self.need)
    }

    /// The limit as text.
    pub(super) fn given(&self) -> String {
        match self.have.as_ref().map(|given| given.limit) {
            None => "unknown".to_owned(),
            Some(Limit::Unlimited) => "unlimited".to_owned(),
            Some(Limit::Of(limit)) => self.unit.show(limit),
        }
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        let have = self.have.as_ref();
        let limit = have.and_then(|given| match given.limit {
            Limit::Of(limit) => Some(limit),
            Limit::Unlimited => None,
        });
        json!({
            "name": self.name,
            "verdict": self.verdict.name(),
            "unit": self.unit.name(),
            "have": limit,
            "unlimited": have.is_some_and(|given| given.limit == Limit::Unlimited),
            "source": have.map(|given| &given.source),
            "need": self.need,
            "need_for": self.need_for,
            "help": self.help,
        })
    }
}

impl Verdict {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Tight => "tight",
            Self::Short => "short",
            Self::Unknown => "unknown",
        }
    }
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Self::Milliseconds => "ms",
            Self::Files => "files",
            Self::Bytes => "bytes",
            Self::Cpus => "cpus",
        }
    }

    fn show(self, figure: u64) -> String {
        match self {
            Self::Milliseconds => setting(Duration::from_millis(figure)),
            Self::Files | Self::Cpus => figure.to_string(),
            Self::Bytes => bytes(figure),
        }
    }
}

fn stop_time(config: &Config, place: &Place) -> Finding {
    let drain = config.drain.notice + config.drain.finish + config.drain.kill;
    let need = u64::try_from((drain + END).as_millis()).unwrap_or(u64::MAX);
    let need_for = format!("drain {} and {} to end", setting(drain), setting(END));
    let finding = |have| Finding::new("grace", Unit::Milliseconds, need, need_for, have);
    match &place.stop_time {
        StopTime::Known(given) => finding(Some(given)).help(|finding| {
            let needed = finding.needed();
            let raise = match given.source.strip_suffix(VARIABLE) {
                Some(_) => format!("raise terminationGracePeriodSeconds and {VARIABLE} to {needed}"),
                None => format!("raise TimeoutStopSec to {needed}"),
            };
            format!("{raise}, or lower drain.finish")
        }),
        StopTime::Malformed { value, source } => Finding {
            verdict: Verdict::Short,
            ..finding(None).help(|_| format!("{source} is {value:?}, which is not a duration; write it like 45 or 45s"))
        },
        StopTime::Unknown { in_pod: true } => finding(None)
            .help(|_| format!("set {VARIABLE} to the pod's terminationGracePeriodSeconds, which a pod cannot read")),
        StopTime::Unknown { in_pod: false } => finding(None).help(|finding| {
            format!(
                "set {VARIABLE} to the time between SIGTERM and SIGKILL of this process; it needs {}",
                finding.needed()
            )
        }),
    }
}

fn memory(config: &Config, place: &Place) -> Finding {
    let pools = &config.pools;
    let payloads = pools.iter().map(|pool| payloads(config, pool)).fold(0, u64::saturating_add);
    let outputs = pools.iter().map(|pool| outputs(config, pool)).fold(0, u64::saturating_add);
    let calls = pools.iter().map(calls).fold(0, u64::saturating_add).saturating_mul(CALL_MEMORY);
    let uploads = config.server.memory.total as u64;
    // Messages and answers each may use all of it; bytes that were received and not read may use a quarter.
    let edges = uploads.saturating_mul(2).saturating_add(uploads / 4);
    let [least, all] = [0, outputs]
        .map(|outputs| [payloads, calls, edges, outputs, BASE_MEMORY].into_iter().fold(0, u64::saturating_add));
    let have = place.memory.as_ref();
    let need_for = format!(
        "{} of payloads, {} of calls that wait or run, {} of unfinished messages and unread answers, {} of results in the \
         making, {} besides",
        bytes(payloads),
        bytes(calls),
        bytes(edges),
        bytes(outputs),
        bytes(BASE_MEMORY)
    );
    let mut finding = Finding::new("memory", Unit::Bytes, all, need_for, have);
    if finding.verdict == Verdict::Short && Finding::new("", Unit::Bytes, least, String::new(), have).fits() {
        finding.verdict = Verdict::Tight;
    }
    finding.help(|finding| match finding.verdict {
        Verdict::Unknown => format!("give it {}", finding.needed()),
        _ => format!(
            "raise the limit to {}, or lower queue.bytes, workers, server.memory.total, server.max_payload or max_output",
            finding.needed()
        ),
    })
}

impl Finding {
    fn fits(&self) -> bool {
        self.verdict == Verdict::Fits
    }
}

/// Most payload bytes in a pool: of its queue, of running jobs, and of waiting callers, because each call may choose to
/// wait.
fn payloads(config: &Config, pool: &Pool) -> u64 {
    let (queued, each) = (pool.queue.bytes as u64, config.server.max_payload as u64);
    let of = |jobs: usize| each.saturating_mul(jobs as u64);
    let waiting = of(pool.queue.waiting).min(queued);
    queued.saturating_add(of(pool.max_workers)).saturating_add(waiting)
}

/// Most calls that wait for a pool or run in it.
fn calls(pool: &Pool) -> u64 {
    [pool.queue.jobs, pool.queue.waiting, pool.max_workers]
        .map(|calls| calls as u64)
        .into_iter()
        .fold(0, u64::saturating_add)
}

/// Most result bytes that the workers of a pool hold at once.
fn outputs(config: &Config, pool: &Pool) -> u64 {
    let kinds = config.kinds.iter().filter(|kind| kind.pool == pool.name);
    let largest = kinds.map(|kind| kind.options.max_output.unwrap_or(config.server.max_output)).max();
    (largest.unwrap_or(0) as u64).saturating_mul(pool.max_workers as u64)
}

fn files(config: &Config, place: &Place) -> Finding {
    let threads = config.server.threads as u64;
    let runs_programs = |pool: &&Pool| {
        let mut kinds = config.kinds.iter().filter(|kind| kind.pool == pool.name);
        kinds.any(|kind| matches!(kind.handler, Handler::Exec(_) | Handler::Program(_)))
    };
    let programs: u64 = config.pools.iter().filter(runs_programs).map(|pool| pool.max_workers as u64).sum();
    let connections = config.server.connections.max as u64;
    let own = BASE_FILES + FILES_OF_THREAD * threads;
    let need = connections + own + FILES_OF_PROGRAM * programs;
    let mut need_for = format!("{connections} connections, {own} of its own");
    if programs > 0 {
        need_for.push_str(&format!(", {FILES_OF_PROGRAM} for each of {programs} programs"));
    }
    Finding::new("files", Unit::Files, need, need_for, place.files.as_ref()).help(|finding| {
        let needed = finding.needed();
        format!("raise LimitNOFILE or `ulimit -n` to {needed}, or lower server.connections.max")
    })
}

/// More threads than CPUs share them, which is slower, but breaks nothing.
fn cpus(config: &Config, place: &Place) -> Finding {
    let threads = config.server.threads as u64;
    let mut finding = Finding::new("cpus", Unit::Cpus, threads, format!("server.threads {threads}"), Some(&place.cpus));
    if finding.verdict == Verdict::Short {
        finding.verdict = Verdict::Tight;
    }
    finding.help(|_| "lower server.threads, or leave it out, for one thread per CPU".to_owned())
}

#[cfg(test)]
mod tests;
