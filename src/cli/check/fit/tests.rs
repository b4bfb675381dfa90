//! Tests of the comparison of needs and limits.

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
    Given { limit: Limit::Of(limit), source: "here".into() }
}

fn of(limit: u64) -> Option<Given> {
    Some(given(limit))
}

fn roomy() -> Place {
    Place {
        stop_time: StopTime::Known(Given { limit: Limit::Unlimited, source: VARIABLE.into() }),
        files: of(1 << 20),
        memory: of(1 << 40),
        cpus: given(64),
    }
}

/// The verdict and the help of one comparison in a place that has room for everything else.
fn found(name: &str, config: &Config, place: Place) -> (Verdict, Option<String>) {
    let findings = findings(config, &place);
    let fitting = |finding: &&Finding| finding.name != name;
    assert!(findings.iter().filter(fitting).all(Finding::fits), "{findings:?}");
    let finding = findings.into_iter().find(|finding| finding.name == name).expect("every comparison is made");
    (finding.verdict, finding.help)
}

fn known(milliseconds: u64, source: &str) -> Place {
    let limit = Limit::Of(milliseconds);
    Place { stop_time: StopTime::Known(Given { limit, source: source.into() }), ..roomy() }
}

#[test]
fn the_time_to_stop_holds_the_drain_and_the_end() {
    let config = config("");
    assert_eq!(found("grace", &config, known(42_000, VARIABLE)), (Verdict::Fits, None));
    let help = "raise terminationGracePeriodSeconds and WATERWHEEL_GRACE to 42s, or lower drain.finish";
    assert_eq!(found("grace", &config, known(41_999, VARIABLE)), (Verdict::Short, Some(help.into())));
    let help = "raise TimeoutStopSec to 42s, or lower drain.finish";
    assert_eq!(found("grace", &config, known(30_000, "TimeoutStopSec of x.service")).1, Some(help.into()));
}

#[test]
fn a_time_to_stop_that_nobody_knows() {
    let config = config("");
    let place = |stop_time| Place { stop_time, ..roomy() };
    for in_pod in [true, false] {
        let (verdict, help) = found("grace", &config, place(StopTime::Unknown { in_pod }));
        assert_eq!(verdict, Verdict::Unknown);
        let help = help.expect("something to do");
        assert!(help.contains(VARIABLE) && help.contains("terminationGracePeriodSeconds") == in_pod, "{help}");
    }
    let malformed = StopTime::Malformed { value: "soon".into(), source: VARIABLE.into() };
    let help = "WATERWHEEL_GRACE is \"soon\", which is not a duration; write it like 45 or 45s";
    assert_eq!(found("grace", &config, place(malformed)), (Verdict::Short, Some(help.into())));
}

/// One result of each worker, of the size that a server lets them have.
const RESULTS: u64 = 66 * (4_032 << 10);
/// Those that two pools queue, that wait for room in them, and that their workers run.
const CALLS: u64 = (64 + 1_024 + 2 * 1_024 + 66) * (6 << 10);

#[test]
fn memory_holds_payloads_at_least_and_results_under_full_load() {
    let config = config("");
    let verdict = |limit| found("memory", &config, Place { memory: of(limit), ..roomy() });
    let mib = |count: u64| count << 20;
    assert_eq!(verdict(mib(64 + 576 + 520) + CALLS + RESULTS), (Verdict::Fits, None));
    let help =
        Some("raise the limit to 1.4GiB, or lower queue.bytes, workers, server.memory.total, server.max_payload or max_output".to_owned());
    assert_eq!(verdict(mib(64 + 576 + 520) + CALLS + RESULTS - 1), (Verdict::Tight, help.clone()));
    assert_eq!(verdict(mib(64 + 576 + 520) + CALLS), (Verdict::Tight, help.clone()));
    assert_eq!(verdict(mib(64 + 576 + 520) + CALLS - 1), (Verdict::Short, help));
    let unknown = found("memory", &config, Place { memory: None, ..roomy() });
    assert_eq!(unknown, (Verdict::Unknown, Some("give it 1.4GiB".into())));
}

#[test]
fn a_kind_bounds_the_results_of_its_pool() {
    let config =
        config("[pool.big]\nworkers = 2\n[kind.big]\npool = \"big\"\nbuiltin = \"gzip\"\nmax_output = \"1GiB\"");
    let need = findings(&config, &roomy())[1].need;
    let big = config.pools.iter().find(|pool| &*pool.name == "big").expect("it was written");
    let calls = CALLS + (big.queue.jobs as u64 + 1_024 + 2) * (6 << 10);
    assert_eq!(need, RESULTS + calls + ((64 + 576 + 520 + (2 * 64 + 8) + 2_048) << 20));
}

#[test]
fn each_program_needs_files() {
    let config = config("[pool.run]\nworkers = 100\n[kind.run]\npool = \"run\"\nexec = [\"/bin/sh\"]");
    let verdict = |limit| found("files", &config, Place { files: of(limit), ..roomy() });
    assert_eq!(verdict(4_096 + 72 + 900), (Verdict::Fits, None));
    let help = "raise LimitNOFILE or `ulimit -n` to 5068, or lower server.connections.max";
    assert_eq!(verdict(4_096 + 72 + 899), (Verdict::Short, Some(help.into())));
}

#[test]
fn more_threads_than_cpus_are_no_fault() {
    let config = config("");
    let verdict = |limit| found("cpus", &config, Place { cpus: given(limit), ..roomy() }).0;
    assert_eq!(verdict(2), Verdict::Fits);
    assert_eq!(verdict(1), Verdict::Tight);
}

#[test]
fn json_has_both_figures_and_what_to_do() {
    let findings = findings(&config(""), &known(30_000, VARIABLE));
    let expected = json!({
        "name": "grace", "verdict": "short", "unit": "ms",
        "have": 30_000, "unlimited": false, "source": "WATERWHEEL_GRACE",
        "need": 42_000, "need_for": "drain 40s and 2s to end",
        "help": "raise terminationGracePeriodSeconds and WATERWHEEL_GRACE to 42s, or lower drain.finish",
    });
    assert_eq!(findings[0].to_json(), expected);
}
