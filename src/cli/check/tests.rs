//! Tests of reading the limits of a machine, and of comparing them with a configuration.

use tempfile::TempDir;

use super::*;
use crate::config::{SourceFile, Sources, load, starter};

/// The starter configuration with more lines: a drain of 40 s, pools for 4 × 64 + 8 + 256 MiB of payloads and 8 + 256
/// MiB of results, 256 MiB of unfinished messages, and 4096 connections.
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
    let grace = Ok(Some(Given { limit: None, source: VARIABLE.into() }));
    Limits { grace, files: given(1 << 20), memory: of(1 << 40) }
}

/// The verdict and the help of one comparison with limits that have room for everything else.
fn found(name: &str, config: &Config, limits: Limits) -> (Verdict, Option<String>) {
    let findings = findings(config, &limits);
    let fitting = |finding: &&Finding| finding.name != name;
    assert!(findings.iter().filter(fitting).all(|finding| finding.verdict == Verdict::Fits), "{findings:?}");
    let finding = findings.into_iter().find(|finding| finding.name == name).expect("every comparison is made");
    (finding.verdict, finding.help)
}

fn known(milliseconds: u64) -> Limits {
    let limit = Some(milliseconds);
    Limits { grace: Ok(Some(Given { limit, source: VARIABLE.into() })), ..roomy() }
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
    let limits = |grace| Limits { grace, ..roomy() };
    let help = "set WATERWHEEL_GRACE to the time between SIGTERM and SIGKILL (terminationGracePeriodSeconds or TimeoutStopSec); it needs 42s";
    assert_eq!(found("grace", &config, limits(Ok(None))), (Verdict::Unknown, Some(help.into())));
    let malformed = Err("soon".into());
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
    let verdict = |limit| found("files", &config, Limits { files: given(limit), ..roomy() });
    assert_eq!(verdict(4_096 + 72 + 900), (Verdict::Fits, None));
    let help = "raise LimitNOFILE or `ulimit -n` to 5068, or lower server.connections.max";
    assert_eq!(verdict(4_096 + 72 + 899), (Verdict::Short, Some(help.into())));
}

#[test]
fn json_has_both_figures_and_what_to_do() {
    let findings = findings(&config(""), &known(30_000));
    let expected = serde_json::json!({
        "name": "grace", "verdict": "short", "unit": "ms",
        "have": 30_000, "unlimited": false, "source": "WATERWHEEL_GRACE",
        "need": 42_000, "need_for": "drain 40s and 2s to end",
        "help": "raise terminationGracePeriodSeconds or TimeoutStopSec and WATERWHEEL_GRACE to 42s, or lower drain.finish",
    });
    assert_eq!(serde_json::to_value(&findings[0]).unwrap(), expected);
}

/// A machine whose only files are these.
fn machine(files: &[(&str, &str)]) -> TempDir {
    let root = TempDir::new().unwrap();
    for (path, text) in files {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    root
}

fn memory_of(files: &[(&str, &str)]) -> Option<Given> {
    memory_limit(machine(files).path())
}

fn read(limit: u64, source: &str) -> Option<Given> {
    Some(Given { limit: Some(limit), source: source.to_owned() })
}

#[test]
fn memory_that_cannot_be_read_is_unknown() {
    assert_eq!(memory_of(&[]), None);
    let damaged = [("proc/self/cgroup", "\n:\n0:\n4:memory\n"), ("proc/meminfo", "MemTotal: lots kB\n")];
    assert_eq!(memory_of(&damaged), None);
}

#[test]
fn the_lowest_memory_limit_of_the_group_and_those_above_it_applies() {
    let found = memory_of(&[
        ("proc/self/cgroup", "0::/kubepods/pod1/box\n"),
        ("sys/fs/cgroup/kubepods/pod1/box/memory.max", "max\n"),
        ("sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"),
        ("sys/fs/cgroup/kubepods/memory.max", "8589934592\n"),
        ("proc/meminfo", "MemTotal:       16384 kB\nMemFree: 1 kB\n"),
    ]);
    assert_eq!(found, read(16 << 20, "/proc/meminfo"), "there is not even as much as the limit");

    let found = memory_of(&[
        ("proc/self/cgroup", "0::/kubepods/pod1/box\n"),
        ("sys/fs/cgroup/kubepods/pod1/memory.max", "536870912\n"),
        ("proc/meminfo", "MemTotal:       16777216 kB\n"),
    ]);
    assert_eq!(found, read(512 << 20, "/sys/fs/cgroup/kubepods/pod1/memory.max"));
}

#[test]
fn a_container_sees_its_group_at_the_top() {
    let found = memory_of(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "1048576\n")]);
    assert_eq!(found, read(1 << 20, "/sys/fs/cgroup/memory.max"));
}

#[test]
fn this_machine_can_be_read() {
    let Some(Given { limit: Some(memory), .. }) = memory_limit(Path::new("/")) else { panic!("it has memory") };
    assert!(memory > 64 << 20, "{memory}");
}

#[test]
fn the_variable_is_seconds_or_a_duration() {
    let variable = |value: &str| grace(&[(VARIABLE.to_owned(), value.to_owned())]);
    let known = |limit| Ok(Some(Given { limit, source: VARIABLE.to_owned() }));
    for value in ["90", " 90 ", "90s", "1m 30s", "90000ms"] {
        assert_eq!(variable(value), known(Some(90_000)), "{value:?}");
    }
    assert_eq!(variable("0"), known(Some(0)), "no time at all, as in a pod");
    assert_eq!(variable("infinity"), known(None));
    for value in ["", "soon", "-1", "1.5"] {
        assert_eq!(variable(value), Err(value.into()));
    }
    assert_eq!(grace(&[("HOME".to_owned(), "/".to_owned())]), Ok(None));
}
