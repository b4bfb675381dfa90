//! Compares the needs of a configuration with the limits of the machine, which `machine.rs` reads.

use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use super::machine::{Given, Limits, StopTime, VARIABLE};
use crate::{
    cli::output::{bytes, setting},
    config::{Config, Handler, Pool},
    store::SqliteOptions,
};

/// Time that a process needs after its drain to cut connections, flush telemetry and exit.
const END: Duration = Duration::from_secs(2);

/// Memory of an idle server, with its connections.
const BASE_MEMORY: u64 = 64 << 20;

/// Memory of a `Submit` call besides its payload: stream, headers and timers.
const CALL_MEMORY: u64 = 6 << 10;

/// Descriptors of listeners, standard streams and timers, and of a runtime for each thread.
const BASE_FILES: u64 = 64;
const FILES_OF_THREAD: u64 = 4;

/// Both ends of three pipes while a program starts, the pipe that reports its start, and its pidfd.
const FILES_OF_PROGRAM: u64 = 9;

/// The settings of Kubernetes and systemd for the time to stop.
const STOP_SETTINGS: &str = "terminationGracePeriodSeconds or TimeoutStopSec";

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Unit {
    #[serde(rename = "ms")]
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
pub(super) fn findings(config: &Config, limits: &Limits) -> Vec<Finding> {
    vec![stop_time(config, limits), memory(config, limits), files(config, limits), cpus(config, limits)]
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
    let need_for = format!("{} in jobs (store.max_bytes) and {} in reserve", bytes(max), bytes(reserve));
    let found = Finding::new("disk", Unit::Bytes, max.saturating_add(reserve), need_for, Some(&have));
    let verdict = if found.verdict == Verdict::Short && free > reserve { Verdict::Tight } else { found.verdict };
    let help = |_: &str| "lower `store.max_bytes` or move `store.path`: a full disk refuses new jobs".to_owned();
    Some(Finding { verdict, ..found }.help(help))
}

impl Finding {
    fn new(name: &'static str, unit: Unit, need: u64, need_for: String, have: Option<&Given>) -> Self {
        let verdict = match have {
            None => Verdict::Unknown,
            Some(given) if given.holds(need) => Verdict::Fits,
            Some(_) => Verdict::Short,
        };
        Self { name, unit, verdict, have: have.cloned(), need, need_for, help: None }
    }

    /// Adds help that takes the need as text, unless it fits.
    fn help(mut self, help: impl FnOnce(&str) -> String) -> Self {
        if !self.fits() {
            self.help = Some(help(&self.needed()));
        }
        self
    }

    fn fits(&self) -> bool {
        self.verdict == Verdict::Fits
    }

    /// The need as text.
    pub(super) fn needed(&self) -> String {
        self.unit.show(self.need)
    }

    /// The limit as text.
    pub(super) fn given(&self) -> String {
        match &self.have {
            None => "unknown".to_owned(),
            Some(given) => given.limit.map_or_else(|| "unlimited".to_owned(), |limit| self.unit.show(limit)),
        }
    }

    pub(super) fn to_json(&self) -> serde_json::Value {
        let have = self.have.as_ref();
        json!({
            "name": self.name,
            "verdict": self.verdict.name(),
            "unit": self.unit,
            "have": have.and_then(|given| given.limit),
            "unlimited": have.is_some_and(|given| given.limit.is_none()),
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
    fn show(self, figure: u64) -> String {
        match self {
            Self::Milliseconds => setting(Duration::from_millis(figure)),
            Self::Files | Self::Cpus => figure.to_string(),
            Self::Bytes => bytes(figure),
        }
    }
}

fn stop_time(config: &Config, limits: &Limits) -> Finding {
    let drain = config.drain.notice + config.drain.finish + config.drain.kill;
    let need = u64::try_from((drain + END).as_millis()).unwrap_or(u64::MAX);
    let need_for = format!("drain {} and {} to end", setting(drain), setting(END));
    let finding = |have| Finding::new("grace", Unit::Milliseconds, need, need_for, have);
    match &limits.stop_time {
        StopTime::Known(given) => finding(Some(given))
            .help(|needed| format!("raise {STOP_SETTINGS} and {VARIABLE} to {needed}, or lower drain.finish")),
        StopTime::Malformed(value) => Finding {
            verdict: Verdict::Short,
            ..finding(None)
                .help(|_| format!("{VARIABLE} is {value:?}, which is not a duration; write it like 45 or 45s"))
        },
        StopTime::Unknown => finding(None).help(|needed| {
            format!("set {VARIABLE} to the time between SIGTERM and SIGKILL ({STOP_SETTINGS}); it needs {needed}")
        }),
    }
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
    let need = sum(parts.map(|(size, _)| size));
    let need_for = parts.map(|(size, what)| format!("{} {what}", bytes(size))).join(", ");
    let have = limits.memory.as_ref();
    let mut finding = Finding::new("memory", Unit::Bytes, need, need_for, have);
    if finding.verdict == Verdict::Short && have.is_some_and(|given| given.holds(need - outputs)) {
        finding.verdict = Verdict::Tight;
    }
    let is_unknown = finding.verdict == Verdict::Unknown;
    finding.help(|needed| match is_unknown {
        true => format!("give it {needed}"),
        false => format!(
            "raise the limit to {needed}, or lower queue.bytes, workers, server.memory.total, server.max_payload or max_output"
        ),
    })
}

fn sum(parts: impl IntoIterator<Item = u64>) -> u64 {
    parts.into_iter().fold(0, u64::saturating_add)
}

/// Most payload bytes in a pool: of its queue, of running jobs, and of waiting callers, because each call may choose to
/// wait.
fn payloads(config: &Config, pool: &Pool) -> u64 {
    let (queued, each) = (pool.settings.queue_bytes as u64, config.server.max_payload as u64);
    let of = |jobs: usize| each.saturating_mul(jobs as u64);
    let waiting = of(pool.settings.queue_waiting).min(queued);
    queued.saturating_add(of(pool.settings.most_workers())).saturating_add(waiting)
}

/// Most calls that wait for a pool or run in it.
fn calls(pool: &Pool) -> u64 {
    let settings = &pool.settings;
    sum([settings.queue_jobs, settings.queue_waiting, settings.most_workers()].map(|calls| calls as u64))
}

/// Most result bytes that the workers of a pool hold at once.
fn outputs(config: &Config, pool: &Pool) -> u64 {
    let kinds = config.kinds.iter().filter(|kind| kind.pool == pool.name);
    let largest = kinds.map(|kind| kind.options.max_output.unwrap_or(config.server.max_output)).max();
    (largest.unwrap_or(0) as u64).saturating_mul(pool.settings.most_workers() as u64)
}

fn files(config: &Config, limits: &Limits) -> Finding {
    let threads = config.server.threads as u64;
    let runs_programs = |pool: &&Pool| {
        let mut kinds = config.kinds.iter().filter(|kind| kind.pool == pool.name);
        kinds.any(|kind| matches!(kind.handler, Handler::Exec(_) | Handler::Program(_)))
    };
    let programs: u64 = config.pools.iter().filter(runs_programs).map(|pool| pool.settings.most_workers() as u64).sum();
    let connections = config.server.connections.max as u64;
    let own = BASE_FILES + FILES_OF_THREAD * threads;
    let need = connections + own + FILES_OF_PROGRAM * programs;
    let mut need_for = format!("{connections} connections, {own} of its own");
    if programs > 0 {
        need_for.push_str(&format!(", {FILES_OF_PROGRAM} for each of {programs} programs"));
    }
    Finding::new("files", Unit::Files, need, need_for, limits.files.as_ref())
        .help(|needed| format!("raise LimitNOFILE or `ulimit -n` to {needed}, or lower server.connections.max"))
}

/// More threads than CPUs are slower, but work.
fn cpus(config: &Config, limits: &Limits) -> Finding {
    let threads = config.server.threads as u64;
    let mut finding =
        Finding::new("cpus", Unit::Cpus, threads, format!("server.threads {threads}"), Some(&limits.cpus));
    if finding.verdict == Verdict::Short {
        finding.verdict = Verdict::Tight;
    }
    finding.help(|_| "lower server.threads, or leave it out, for one thread per CPU".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{SourceFile, Sources, load, starter};

    /// The starter configuration with more lines: a drain of 40 s, pools for 4 × 64 + 8 + 256 MiB of payloads and 8 + 256 MiB
    /// of results, 256 MiB of unfinished messages, and 4096 connections.
    fn config(more: &str) -> Config {
        let file = SourceFile { name: "ww.toml".into(), text: format!("{}\n{more}", starter::text()) };
        load(&Sources { file: Some(file), cpus: 2, ..Sources::default() })
            .unwrap_or_else(|faults| panic!("{faults}"))
            .config
    }

    fn given(limit: u64) -> Given {
        Given { limit: Some(limit), source: "here".into() }
    }

    fn of(limit: u64) -> Option<Given> {
        Some(given(limit))
    }

    fn roomy() -> Limits {
        Limits {
            stop_time: StopTime::Known(Given { limit: None, source: VARIABLE.into() }),
            files: of(1 << 20),
            memory: of(1 << 40),
            cpus: given(64),
        }
    }

    /// The verdict and the help of one comparison with limits that have room for everything else.
    fn found(name: &str, config: &Config, limits: Limits) -> (Verdict, Option<String>) {
        let findings = findings(config, &limits);
        let fitting = |finding: &&Finding| finding.name != name;
        assert!(findings.iter().filter(fitting).all(Finding::fits), "{findings:?}");
        let finding = findings.into_iter().find(|finding| finding.name == name).expect("every comparison is made");
        (finding.verdict, finding.help)
    }

    fn known(milliseconds: u64) -> Limits {
        let limit = Some(milliseconds);
        Limits { stop_time: StopTime::Known(Given { limit, source: VARIABLE.into() }), ..roomy() }
    }

    #[test]
    fn the_time_to_stop_holds_the_drain_and_the_end() {
        let config = config("");
        assert_eq!(found("grace", &config, known(42_000)), (Verdict::Fits, None));
        let help =
            "raise terminationGracePeriodSeconds or TimeoutStopSec and WATERWHEEL_GRACE to 42s, or lower drain.finish";
        assert_eq!(found("grace", &config, known(41_999)), (Verdict::Short, Some(help.into())));
    }

    #[test]
    fn an_unknown_time_to_stop_is_reported_with_help() {
        let config = config("");
        let limits = |stop_time| Limits { stop_time, ..roomy() };
        let help = "set WATERWHEEL_GRACE to the time between SIGTERM and SIGKILL (terminationGracePeriodSeconds or TimeoutStopSec); it needs 42s";
        assert_eq!(found("grace", &config, limits(StopTime::Unknown)), (Verdict::Unknown, Some(help.into())));
        let malformed = StopTime::Malformed("soon".into());
        let help = "WATERWHEEL_GRACE is \"soon\", which is not a duration; write it like 45 or 45s";
        assert_eq!(found("grace", &config, limits(malformed)), (Verdict::Short, Some(help.into())));
    }

    /// One result of each worker, of the size that a server lets them have.
    const RESULTS: u64 = 66 * (4_032 << 10);
    /// Those that two pools queue, that wait for room in them, and that their workers run.
    const CALLS: u64 = (64 + 1_024 + 2 * 1_024 + 66) * (6 << 10);

    #[test]
    fn memory_holds_payloads_at_least_and_results_under_full_load() {
        let config = config("");
        let verdict = |limit| found("memory", &config, Limits { memory: of(limit), ..roomy() });
        let mib = |count: u64| count << 20;
        assert_eq!(verdict(mib(64 + 576 + 520) + CALLS + RESULTS), (Verdict::Fits, None));
        let help =
            Some("raise the limit to 1.4GiB, or lower queue.bytes, workers, server.memory.total, server.max_payload or max_output".to_owned());
        assert_eq!(verdict(mib(64 + 576 + 520) + CALLS + RESULTS - 1), (Verdict::Tight, help.clone()));
        assert_eq!(verdict(mib(64 + 576 + 520) + CALLS), (Verdict::Tight, help.clone()));
        assert_eq!(verdict(mib(64 + 576 + 520) + CALLS - 1), (Verdict::Short, help));
        let unknown = found("memory", &config, Limits { memory: None, ..roomy() });
        assert_eq!(unknown, (Verdict::Unknown, Some("give it 1.4GiB".into())));
    }

    #[test]
    fn a_kind_bounds_the_results_of_its_pool() {
        let config =
            config("[pool.big]\nworkers = 2\n[kind.big]\npool = \"big\"\nbuiltin = \"gzip\"\nmax_output = \"1GiB\"");
        let need = findings(&config, &roomy())[1].need;
        let big = config.pools.iter().find(|pool| &*pool.name == "big").expect("it was written");
        let calls = CALLS + (big.settings.queue_jobs as u64 + 1_024 + 2) * (6 << 10);
        assert_eq!(need, RESULTS + calls + ((64 + 576 + 520 + (2 * 64 + 8) + 2_048) << 20));
    }

    #[test]
    fn each_program_needs_files() {
        let config = config("[pool.run]\nworkers = 100\n[kind.run]\npool = \"run\"\nexec = [\"/bin/sh\"]");
        let verdict = |limit| found("files", &config, Limits { files: of(limit), ..roomy() });
        assert_eq!(verdict(4_096 + 72 + 900), (Verdict::Fits, None));
        let help = "raise LimitNOFILE or `ulimit -n` to 5068, or lower server.connections.max";
        assert_eq!(verdict(4_096 + 72 + 899), (Verdict::Short, Some(help.into())));
    }

    #[test]
    fn more_threads_than_cpus_are_no_fault() {
        let config = config("");
        let verdict = |limit| found("cpus", &config, Limits { cpus: given(limit), ..roomy() }).0;
        assert_eq!(verdict(2), Verdict::Fits);
        assert_eq!(verdict(1), Verdict::Tight);
    }

    #[test]
    fn json_has_both_figures_and_what_to_do() {
        let findings = findings(&config(""), &known(30_000));
        let expected = json!({
            "name": "grace", "verdict": "short", "unit": "ms",
            "have": 30_000, "unlimited": false, "source": "WATERWHEEL_GRACE",
            "need": 42_000, "need_for": "drain 40s and 2s to end",
            "help": "raise terminationGracePeriodSeconds or TimeoutStopSec and WATERWHEEL_GRACE to 42s, or lower drain.finish",
        });
        assert_eq!(findings[0].to_json(), expected);
    }
}
