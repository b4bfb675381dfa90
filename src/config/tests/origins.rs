//! Which source wins, and the origin of each value as `config show` has it.

use std::num::NonZeroU32;

use serde_json::json;

use super::{Duration, FINE, Handler, Server, SocketAddr, ok, to_json, to_toml, to_toml_with_origins};
use crate::{
    memory::MemoryLimits,
    model::{DeadlinePolicy, FailureCode, KindLimits, Limit, Rate, Share, WhenFull},
    net::{ConnectionLimits, Http2},
    pool,
    store::{Bounds, KindPolicy},
    telemetry,
};

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
    assert_eq!(config.pools[0].settings.workers.get(), 7);
    assert_eq!(config.pools[0].settings.when_full, WhenFull::Wait);
    assert_eq!(config.kinds[0].options.run_timeout, Some(Duration::from_secs(4)));
}

#[test]
fn workers_are_a_number_or_bounds_wherever_they_are_set() {
    let bounds = |file: &str, env: &[(&str, &str)]| {
        let pool = ok(&format!("{file}{FINE}"), env, &[]).config.pools.remove(0);
        (pool.settings.workers.get(), pool.settings.most_workers())
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
    let stuck = |pool: &super::Pool| (pool.name.clone(), pool.settings.max_stuck);
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
    let pool = &ok(&file, &env, &[]).config.pools[0].settings;
    assert_eq!((pool.queue_jobs, pool.queue_bytes, pool.queue_waiting), (6, 9 << 20, 2));
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
    assert_eq!(config.pools[0].settings.workers.get(), 3);
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
    assert_eq!(config.pools[0].settings.workers.get(), 2);
    let Handler::Exec(exec) = &config.kinds[0].handler else {
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
    limit = {{ concurrency = 3, rate = 50, share = \"divide\", per_key = {{ rate = 0.5, burst = 4, keys = 9 }} }}{FINE}"
    );
    let config = ok(&format!("store.url = \"postgres://u@localhost/jobs\"\n{file}"), &[], &[]).config;
    let some = |count| NonZeroU32::new(count).expect("some");
    let rate = |ms, burst| Some(Rate { interval: Duration::from_millis(ms), burst: some(burst) });
    let limits = KindLimits {
        all: Limit { concurrency: Some(some(3)), rate: rate(20, 5) },
        per_key: Limit { concurrency: None, rate: rate(2000, 4) },
        keys: 9,
        share: Share::Divide,
    };
    assert_eq!((config.kinds[0].options.limits, config.kinds[1].options.limits), (limits, KindLimits::default()));
}

/// A file with everything that can be shown.
const FILE: &str = r#"
[drain]
notice = "1s"
[pool.cpu]
queue = { jobs = 64 }
[kind.thumbnail]
pool = "cpu"
exec = ["/bin/sh", "-c",
        "cat \"$0\""]
env = { A = "1" }
pass_env = ["HOME"]
exit_codes = { 3 = "NOT_FOUND" }
kill_grace = "1500ms"
"#;

const ENV: &[(&str, &str)] =
    &[("HOME", "/root"), ("WATERWHEEL_SERVER__MAX_OUTPUT", "1MiB"), ("WATERWHEEL_KIND__THUMBNAIL__ENV__B", "2")];

const FLAGS: &[(&str, &str, &str)] =
    &[("--listen", "server.listen", "127.0.0.1:0"), ("--set", "pool.cpu.queue.bytes", "8MiB")];

/// The sections with values of each origin, as they are shown.
const SHOWN: &str = r##"
[drain]
notice = "1s"   # ww.toml:3
finish = "30s"  # default
kill = "5s"     # default

[pool.cpu]
workers = 3                       # default, one per CPU
queue.jobs = 64                   # ww.toml:5
queue.bytes = "8MiB"              # flag --set
queue.waiting = 1024              # default
when_full = "reject"              # default
cancel_grace = "1s"               # default
max_stuck = 4                     # default
tenant_share = 0.25               # default
ended_jobs = 1024                 # default
recorded_jobs = 65536             # default
# stale_after is not set
# attached.idle_leave is not set
# attached.min is not set

[kind.thumbnail]
pool = "cpu"                            # ww.toml:7
exec = ["/bin/sh", "-c", 'cat "$0"']    # ww.toml:8
# run_timeout is not set
# max_output is not set
idempotent = false                      # default
# limit.concurrency is not set
# limit.rate is not set
# limit.burst is not set
# limit.per_key.concurrency is not set
# limit.per_key.rate is not set
# limit.per_key.burst is not set
# limit.per_key.keys is not set
# limit.share is not set
retry.max_attempts = 5                  # default
retry.initial = "1s"                    # default
retry.max = "10m"                       # default
retain_for = "1day"                     # default
retain_dead_for = "7days"               # default
workspace = false                       # default
env.A = "(withheld)"                    # ww.toml:10
env.B = "(withheld)"                    # env WATERWHEEL_KIND__THUMBNAIL__ENV__B
pass_env = ["HOME"]                     # ww.toml:11
exit_codes.3 = "NOT_FOUND"              # ww.toml:12
stderr_tail = "2KiB"                    # default
kill_grace = "1s 500ms"                 # ww.toml:13
"##;

#[test]
fn every_value_names_its_origin() {
    let shown = to_toml_with_origins(&ok(FILE, ENV, FLAGS).settings);
    let sections: Vec<_> = shown.split("\n[").collect();
    for section in SHOWN.trim().split("\n\n[") {
        let section = section.trim_start_matches('[');
        assert!(sections.iter().any(|found| found.trim() == section), "no [{section} in\n{shown}");
    }
    let names: Vec<_> = sections.iter().filter_map(|section| section.split_once(']')).map(|(name, _)| name).collect();
    let of_all = ["[server", "ops", "deadline", "drain", "auth", "quota", "store", "telemetry"];
    assert_eq!(names, [&of_all[..], &["pool.cpu", "kind.thumbnail"]].concat());
    for line in ["listen = \"127.0.0.1:0\"              # flag --listen\n", "# tls.cert is not set\n"] {
        assert!(sections[0].contains(line), "no {line} in {shown}");
    }
}

#[test]
fn what_is_shown_reads_as_the_same_configuration() {
    let loaded = ok(FILE, ENV, FLAGS);
    for shown in [to_toml(&loaded.settings), to_toml_with_origins(&loaded.settings)] {
        let whole = shown.replace("A = \"(withheld)\"", "A = \"1\"").replace("B = \"(withheld)\"", "B = \"2\"");
        let again = ok(&whole, &[("HOME", "/root")], &[]);
        assert_eq!(again.config, loaded.config, "{shown}");
    }
}

#[test]
fn without_origins_there_are_no_comments_behind_values() {
    let shown = to_toml(&ok(FILE, ENV, FLAGS).settings);
    let server = "[server]\nlisten = \"127.0.0.1:0\"\nops_listen = \"127.0.0.1:7071\"\n";
    assert!(shown.starts_with(server), "{shown}");
    assert!(!shown.contains("  #"), "{shown}");
}

#[test]
fn json_has_key_value_and_origin() {
    let shown = to_json(&ok(FILE, ENV, FLAGS).settings);
    let of = |key: &str| {
        let settings = shown["settings"].as_array().unwrap();
        let found = settings.iter().find(|setting| setting["key"] == key);
        found.unwrap_or_else(|| panic!("no {key} in {shown}")).clone()
    };
    for (key, value, origin) in [
        ("server.threads", json!(3), json!({ "source": "default" })),
        ("telemetry.otlp", json!(null), json!({ "source": "default" })),
        ("kind.thumbnail.max_output", json!(null), json!({ "source": "default" })),
        ("pool.cpu.queue.jobs", json!(64), json!({ "source": "file", "file": "ww.toml", "line": 5 })),
        ("kind.thumbnail.pass_env", json!(["HOME"]), json!({ "source": "file", "file": "ww.toml", "line": 11 })),
        ("server.max_output", json!("1MiB"), json!({ "source": "env", "name": "WATERWHEEL_SERVER__MAX_OUTPUT" })),
        ("server.listen", json!("127.0.0.1:0"), json!({ "source": "flag", "name": "--listen" })),
    ] {
        assert_eq!(of(key), json!({ "key": key, "value": value, "origin": origin }));
    }
}

#[test]
fn values_of_copied_variables_are_not_shown() {
    let env = [("HOME", "a secret")];
    let loaded = ok(FILE, &env, &[]);
    let Handler::Exec(exec) = &loaded.config.kinds[0].handler else {
        panic!("{:?}", loaded.config.kinds);
    };
    assert_eq!(exec.env["HOME"], "a secret");
    assert!(!to_toml_with_origins(&loaded.settings).contains("a secret"));
}

#[test]
fn bounds_of_workers_are_shown_as_bounds_and_read_as_the_same() {
    let file = FILE.replace("[pool.cpu]", "[pool.cpu]\nworkers = { min = 2, max = \"cpus\" }");
    let loaded = ok(&file, ENV, FLAGS);
    let shown = to_toml_with_origins(&loaded.settings);
    for line in [
        "workers.min = 2                   # ww.toml:5\n",
        "workers.max = 3                   # ww.toml:5, one per CPU\n",
    ] {
        assert!(shown.contains(line), "no {line:?} in\n{shown}");
    }
    let whole = shown.replace("A = \"(withheld)\"", "A = \"1\"").replace("B = \"(withheld)\"", "B = \"2\"");
    assert_eq!(ok(&whole, &[("HOME", "/root")], &[]).config, loaded.config);
}

#[test]
fn defaults_in_rust_are_those_of_the_table() {
    let config = ok(&format!("[pool.cpu]{FINE}"), &[], &[]).config;
    let settings = &config.pools[0].settings;
    let of_the_machine = pool::Settings { workers: settings.workers, shards: settings.shards, ..Default::default() };
    assert_eq!(*settings, of_the_machine);
    assert_eq!(config.deadline, DeadlinePolicy::default());
    assert_eq!(config.telemetry, telemetry::Config::default());
    assert_eq!((config.store.bounds, config.kinds[0].policy), (Bounds::default(), KindPolicy::default()));
    let Server { http2, connections, memory, .. } = config.server;
    assert_eq!((http2, connections, memory), (Http2::default(), ConnectionLimits::default(), MemoryLimits::default()));
}
