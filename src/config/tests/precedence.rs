//! Which source wins, and which keys a variable or a flag reaches.

use std::num::NonZeroU32;

use super::{Duration, FINE, SocketAddr, ok};
use crate::model::{FailureCode, KindLimits, Limit, Rate, WhenFull};

#[test]
fn flags_beat_variables_beat_the_file_beats_defaults() {
    let file = format!("[drain]\nnotice = \"1s\"\nfinish = \"1s\"\nkill = \"1s\"{FINE}");
    let env = [("WATERWHEEL_DRAIN__FINISH", "2s"), ("WATERWHEEL_DRAIN__KILL", "2s")];
    let flags = [("--set", "drain.kill", "3s")];
    let config = ok(&file, &env, &flags).config;
    assert_eq!(config.drain.notice, Duration::from_secs(1));
    assert_eq!(config.drain.finish, Duration::from_secs(2));
    assert_eq!(config.drain.kill, Duration::from_secs(3));
    assert_eq!(config.deadline.max, Duration::from_secs(600));
}

#[test]
fn the_last_of_two_flags_wins() {
    let flags = [("--set", "server.listen", "127.0.0.1:1"), ("--listen", "server.listen", "127.0.0.1:2")];
    let config = ok(FINE, &[], &flags).config;
    assert_eq!(config.server.listen, [SocketAddr::from(([127, 0, 0, 1], 2)).into()]);
}

#[test]
fn names_match_in_any_case_and_with_either_dash() {
    let file = "
[pool.io-bound]
[kind.call_out]
pool = \"io-bound\"
builtin = \"echo\"
";
    let env = [("WATERWHEEL_POOL__IO_BOUND__WORKERS", "7"), ("WATERWHEEL_pool__Io-Bound__When_Full", "wait")];
    let flags = [("--set", "kind.call-out.run-timeout", "4s")];
    let config = ok(file, &env, &flags).config;
    assert_eq!(config.pools.len(), 1);
    assert_eq!(config.pools[0].workers, 7);
    assert_eq!(config.pools[0].when_full, WhenFull::Wait);
    assert_eq!(config.kinds[0].options.run_timeout, Some(Duration::from_secs(4)));
}

#[test]
fn workers_are_a_number_or_bounds_wherever_they_are_set() {
    let bounds = |file: &str, env: &[(&str, &str)]| {
        let pool = ok(&format!("{file}{FINE}"), env, &[]).config.pools.remove(0);
        (pool.workers, pool.max_workers)
    };
    assert_eq!(bounds("[pool.a]\nworkers = 8\n", &[]), (8, 8));
    assert_eq!(bounds("[pool.a]\nworkers = { min = 2, max = 16 }\n", &[]), (2, 16));
    assert_eq!(bounds("[pool.a]\nworkers.max = \"cpus\"\n", &[]), (1, 3));
    assert_eq!(bounds("[pool.a]\nworkers.min = 2\n", &[]), (2, 3));
    assert_eq!(bounds("[pool.a]\n", &[("WATERWHEEL_POOL__A__WORKERS__MAX", "9")]), (1, 9));
    let fixed = [("WATERWHEEL_POOL__A__WORKERS", "5")];
    assert_eq!(bounds("[pool.a]\nworkers = { min = 2, max = 16 }\n", &fixed), (5, 5));
}

#[test]
fn an_exact_name_beats_a_similar_one() {
    let file = format!("[pool.a-b]\n[pool.a_b]{FINE}");
    let config = ok(&file, &[("WATERWHEEL_POOL__A_B__MAX_STUCK", "1")], &[]).config;
    let stuck = |pool: &super::Pool| (pool.name.clone(), pool.max_stuck);
    let stuck: Vec<_> = config.pools.iter().map(stuck).collect();
    let expected = [("a-b", 4), ("a_b", 1), ("base", 4)];
    assert_eq!(stuck, expected.map(|(name, max)| (name.to_owned(), max)));
}

#[test]
fn other_variables_are_nobodys_business() {
    let env = [
        ("WATERWHEEL_CONFIG", "ww.toml"),
        ("WATERWHEEL_SERVER", "127.0.0.1:1"),
        ("WATERWHEEL_LISTEN", "x"),
        ("SERVER__LISTEN", "x"),
        ("waterwheel_SERVER__LISTEN", "x"),
    ];
    assert_eq!(ok(FINE, &env, &[]).config, ok(FINE, &[], &[]).config);
}

#[test]
fn tables_merge_and_the_more_precise_variable_wins() {
    let file = format!("[pool.cpu]\nqueue = {{ jobs = 1, waiting = 2 }}{FINE}");
    let env =
        [("WATERWHEEL_POOL__CPU__QUEUE__JOBS", "6"), ("WATERWHEEL_POOL__CPU__QUEUE", "{ jobs = 5, bytes = \"9MiB\" }")];
    let queue = &ok(&file, &env, &[]).config.pools[0].queue;
    assert_eq!((queue.jobs, queue.bytes, queue.waiting), (6, 9 << 20, 2));
}

#[test]
fn a_bare_value_takes_the_type_of_its_key() {
    let env = [
        ("WATERWHEEL_TELEMETRY__SERVICE_NAME", "8"),
        ("WATERWHEEL_TELEMETRY__LOG", "warn,waterwheel=debug"),
        ("WATERWHEEL_TELEMETRY__SAMPLE_RATIO", "1"),
        ("WATERWHEEL_SERVER__MAX_PAYLOAD", "1048576"),
        ("WATERWHEEL_SERVER__LISTEN", "\"[::1]:80\""),
        ("WATERWHEEL_KIND__ECHO__IDEMPOTENT", "true"),
        ("WATERWHEEL_POOL__BASE__WORKERS", "cpus"),
    ];
    let config = ok(FINE, &env, &[]).config;
    assert_eq!(config.telemetry.service_name, "8");
    assert_eq!(config.telemetry.log, "warn,waterwheel=debug");
    assert_eq!(config.telemetry.sample_ratio, 1.0);
    assert_eq!(config.server.max_payload, 1 << 20);
    assert_eq!(config.server.listen[0].to_string(), "[::1]:80");
    assert!(config.kinds[0].options.idempotent);
    assert_eq!(config.pools[0].workers, 3);
}

#[test]
fn variables_and_flags_alone_can_declare_a_kind_and_its_pool() {
    let env = [
        ("WATERWHEEL_POOL__GPU__WORKERS", "2"),
        ("WATERWHEEL_KIND__RENDER__POOL", "gpu"),
        ("WATERWHEEL_KIND__RENDER__EXEC", "[\"/bin/sh\", \"-c\", \"true\"]"),
        ("WATERWHEEL_KIND__RENDER__ENV__Mixed_CASE", "a b"),
        ("WATERWHEEL_KIND__RENDER__EXIT_CODES__3", "NOT_FOUND"),
    ];
    let config = ok("", &env, &[]).config;
    assert_eq!(config.pools[0].workers, 2);
    let super::Handler::Exec(exec) = &config.kinds[0].handler else {
        panic!("{:?}", config.kinds[0]);
    };
    assert_eq!(exec.args, ["-c", "true"]);
    assert_eq!(exec.env, [("Mixed_CASE".to_owned(), "a b".to_owned())].into());
    assert_eq!(exec.exit_codes[&3], FailureCode::NotFound);
}

#[test]
fn limits_are_read_as_they_are_written() {
    let file = format!(
        "[pool.own]\n[kind.charge]\npool = \"own\"\nbuiltin = \"echo\"
limit = {{ concurrency = 3, rate = 50, per_key = {{ rate = 0.5, burst = 4, keys = 9 }} }}{FINE}"
    );
    let config = ok(&file, &[], &[]).config;
    let some = |count| NonZeroU32::new(count).expect("some");
    let rate = |ms, burst| Some(Rate { interval: Duration::from_millis(ms), burst: some(burst) });
    let limits = KindLimits {
        all: Limit { concurrency: Some(some(3)), rate: rate(20, 5) },
        per_key: Limit { concurrency: None, rate: rate(2000, 4) },
        keys: 9,
    };
    assert_eq!((config.kinds[0].options.limits, config.kinds[1].options.limits), (limits, KindLimits::default()));
}
