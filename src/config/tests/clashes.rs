//! Values that are valid alone, but not together; schedules that cannot run.

use super::{Case, FINE, check, check_files, check_lines, ok};

#[test]
fn listeners_that_claim_one_port() {
    check_files(&[
        (
            r#"[server]
listen = "127.0.0.1:9000"
ops_listen = "127.0.0.1:9000""#,
            "3:14 2:10 two listeners claim 127.0.0.1:9000
  = give each listener an address of its own",
        ),
        (
            r#"[server]
listen = "0.0.0.0:7071"
allow_plaintext = true"#,
            "2:10 two listeners claim 127.0.0.1:7071
  = give each listener an address of its own",
        ),
        (
            r#"[server]
listen = ["127.0.0.1:9000", "unix:/run/ww.sock", "unix:/run/ww.sock?mode=600"]"#,
            "2:10 two listeners claim unix:/run/ww.sock
  = give each listener an address of its own",
        ),
    ]);
}

#[test]
fn plaintext_for_other_machines() {
    check(PLAINTEXT_FOR_OTHER_MACHINES);
    let allowed = r#"server = { listen = ["0.0.0.0:1", "unix:/a"], ops_listen = "[::]:2", allow_plaintext = true }"#;
    let (loaded, shown) = (ok(&format!("{allowed}{FINE}"), &[], &[]), "[\"0.0.0.0:1\", \"unix:/a\"]");
    assert_eq!(loaded.config.server.listen.len(), 2);
    assert_eq!(loaded.settings[0].value.as_ref().map(ToString::to_string).as_deref(), Some(shown));
    let ops = r#"server = { ops_listen = "[::]:2", ops_allow_plaintext = true }"#;
    assert!(ok(&format!("{ops}{FINE}"), &[], &[]).config.server.ops_allow_plaintext);
}

const PLAINTEXT_FOR_OTHER_MACHINES: &[Case] = &[
    Case {
        file: r#"[server]
listen = ["127.0.0.1:9000", "10.0.0.1:9000"]"#,
        faults: r#"
error: `server.listen` is 10.0.0.1:9000, which would serve other machines in plaintext
 --> ww.toml:2:10
  |
2 | listen = ["127.0.0.1:9000", "10.0.0.1:9000"]
  |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: listen on a loopback address or a Unix socket, add [server.tls], or set `server.allow_plaintext = true`
"#,
        ..Case::NONE
    },
    Case {
        flags: &[("--ops-listen", "server.ops_listen", "[::]:7071")],
        faults: r#"
error: `server.ops_listen` is [::]:7071, which would serve other machines in plaintext
--> command line:1:14
 |
 | --ops-listen [::]:7071
 |              ^^^^^^^^^
 |
 = help: listen on a loopback address or a Unix socket, or set `server.ops_allow_plaintext = true`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[server]
listen = "10.0.0.1:9000"
ops_allow_plaintext = true"#,
        faults: r#"
error: `server.listen` is 10.0.0.1:9000, which would serve other machines in plaintext
 --> ww.toml:2:10
  |
2 | listen = "10.0.0.1:9000"
  |          ^^^^^^^^^^^^^^^
  |
  = help: listen on a loopback address or a Unix socket, add [server.tls], or set `server.allow_plaintext = true`
"#,
        ..Case::NONE
    },
];

#[test]
fn memory_that_does_not_fit() {
    check_files(&[
        (
            r#"[server]
memory = { per_connection = "1MiB" }"#,
            "2:29 the largest payload is 4MiB, and `server.memory.per_connection` is 1MiB
  = raise `server.memory.per_connection` or lower `server.max_payload`",
        ),
        (
            r#"[server]
memory = { total = "8MiB" }"#,
            "2:20 `server.memory.per_connection` is more than `server.memory.total`
  = raise `server.memory.total` or lower `server.memory.per_connection`",
        ),
    ]);
}

#[test]
fn workers_out_of_bounds() {
    check(&[
        Case {
            file: "[pool.cpu]
workers = { min = 16, max = 2 }",
            faults: r#"
error: `pool.cpu.workers.min` is more than `pool.cpu.workers.max`
 --> ww.toml:2:19
  |
2 | workers = { min = 16, max = 2 }
  |                   ^^        -
  |
  = help: lower `pool.cpu.workers.min` or raise `pool.cpu.workers.max`
"#,
            ..Case::NONE
        },
        Case {
            file: "[pool.cpu]
workers = { min = 0, most = 2 }",
            faults: r#"
error: `pool.cpu.workers.min` is 0, outside of 1 to 65536
 --> ww.toml:2:19
  |
2 | workers = { min = 0, most = 2 }
  |                   ^
  |
  = help: give a value from 1 to 65536

error: unknown key `most` in [pool.cpu.workers]
 --> ww.toml:2:22
  |
2 | workers = { min = 0, most = 2 }
  |                      ^^^^
  |
  = help: choose from min, max
"#,
            ..Case::NONE
        },
    ]);
}

#[test]
fn deadlines_that_contradict_each_other() {
    check_files(&[
        (
            r#"[deadline]
default = "20m""#,
            "2:11 `deadline.default` is longer than `deadline.max`
  = lower `deadline.default` or raise `deadline.max`",
        ),
        (
            r#"[deadline]
default = "20m"
max = "10m""#,
            "2:11 3:7 `deadline.default` is longer than `deadline.max`
  = lower `deadline.default` or raise `deadline.max`",
        ),
        (
            r#"[deadline]
default = "5ms""#,
            "2:11 `deadline.reply_margin` leaves nothing of `deadline.default`
  = lower `deadline.reply_margin` or raise `deadline.default`",
        ),
    ]);
}

#[test]
fn queues_that_hold_too_little() {
    check(&[
        Case {
            file: r#"[server]
max_payload = "8MiB"
[pool.cpu]
queue = { bytes = "1MiB" }"#,
            faults: r#"
error: the largest payload is 8MiB, and `pool.cpu.queue.bytes` is 1MiB
 --> ww.toml:4:19
  |
2 | max_payload = "8MiB"
  |               ------
3 | [pool.cpu]
4 | queue = { bytes = "1MiB" }
  |                   ^^^^^^
  |
  = help: raise `pool.cpu.queue.bytes` or lower `server.max_payload`
"#,
            ..Case::NONE
        },
        Case {
            file: r#"[pool.cpu]
queue = { bytes = "1MiB" }"#,
            flags: &[("--max-payload", "server.max_payload", "8MiB")],
            faults: r#"
error: the largest payload is 8MiB, and `pool.cpu.queue.bytes` is 1MiB
 --> ww.toml:2:19
  |
2 | queue = { bytes = "1MiB" }
  |                   ^^^^^^
  |
 ::: command line:1:15
  |
  | --max-payload 8MiB
  |               ----
  |
  = help: raise `pool.cpu.queue.bytes` or lower `server.max_payload`
"#,
            ..Case::NONE
        },
        Case {
            file: r#"[pool.cpu]
when_full = "wait"
queue = { waiting = 0 }"#,
            faults: r#"
error: `pool.cpu.when_full` is "wait", and `pool.cpu.queue.waiting` is 0
 --> ww.toml:3:21
  |
2 | when_full = "wait"
  |             ------
3 | queue = { waiting = 0 }
  |                     ^
  |
  = help: raise `pool.cpu.queue.waiting`, or set `pool.cpu.when_full` to "reject" or "shed"
"#,
            ..Case::NONE
        },
    ]);
}

#[test]
fn a_key_that_is_faulty_itself_clashes_with_nothing() {
    check_files(&[
        (
            r#"[server]
max_payload = "many"
[pool.cpu]
queue = { bytes = "1KiB" }"#,
            r#"2:15 `server.max_payload`: `many` is not a size
  = write it like `"4MiB"`"#,
        ),
        (
            r#"[deadline]
default = "1h"
max = "0s""#,
            "3:7 `deadline.max` is 0s, outside of 1ms to 7days
  = give a value from 1ms to 7days",
        ),
    ]);
}

#[test]
fn a_variable_finds_a_schedule_by_its_name() {
    let file = format!("store.memory = true\nschedule.night-run = {{ cron = \"0 3 * * *\", kind = \"echo\" }}{FINE}");
    let schedules = ok(&file, &[("WATERWHEEL_SCHEDULE__NIGHT_RUN__CRON", "0 4 * * *")], &[]).config.schedules;
    let found: Vec<_> = schedules.iter().map(|it| (it.name.as_str(), it.cron.as_str())).collect();
    assert_eq!(found, [("night-run", "0 4 * * *")]);
}

#[test]
fn schedules_that_cannot_run() {
    let zone = "`schedule.a.timezone`: `Mars/Base` is not a time zone of the IANA database";
    check_lines(&[
        (
            "store.memory = true\nschedule.a.kind = \"echo\"",
            "`schedule.a.cron` is missing",
            "add `cron = \"0 3 * * *\"`",
        ),
        (
            "store.memory = true\nschedule.a.cron = \"0 3 * * *\"",
            "`schedule.a.kind` is missing",
            "add `kind = \"NAME\"`",
        ),
        (
            "store.memory = true\nschedule.a = { cron = \"0 3 * * *\", kind = \"ehco\" }",
            "`schedule.a.kind` is `ehco`, which is not declared",
            "did you mean `echo`? else add it",
        ),
        (
            "schedule.a = { cron = \"0 3 * * *\", kind = \"echo\" }",
            "schedule `a` has no store to keep its jobs in",
            "add `store.path = \"waterwheel.db\"`",
        ),
        (
            "store.memory = true\nschedule.a = { cron = \"61 * * * *\", kind = \"echo\" }",
            "`schedule.a.cron`: `61 * * * *` is not a pattern of cron",
            "Component error: Number out of bounds.",
        ),
        (
            "store.memory = true\nschedule.a = { cron = \"* * * * *\", kind = \"echo\", timezone = \"Mars/Base\" }",
            zone,
            "write it like `\"Europe/Berlin\"`",
        ),
    ]);
}
