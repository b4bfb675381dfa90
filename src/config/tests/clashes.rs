//! Faults of values that are fine alone and wrong together.

use super::{Case, FINE, check, ok};

#[test]
fn listeners_that_claim_one_port() {
    check(LISTENERS_THAT_CLAIM_ONE_PORT);
}

const LISTENERS_THAT_CLAIM_ONE_PORT: &[Case] = &[
    Case {
        file: r#"[server]
listen = "127.0.0.1:9000"
ops_listen = "127.0.0.1:9000""#,
        faults: r#"
error: two listeners claim 127.0.0.1:9000
 --> ww.toml:3:14
  |
2 | listen = "127.0.0.1:9000"
  |          ----------------
3 | ops_listen = "127.0.0.1:9000"
  |              ^^^^^^^^^^^^^^^^
  |
  = help: give each listener an address of its own
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[server]
listen = "0.0.0.0:7071"
allow_plaintext = true"#,
        faults: r#"
error: two listeners claim 127.0.0.1:7071
 --> ww.toml:2:10
  |
2 | listen = "0.0.0.0:7071"
  |          ^^^^^^^^^^^^^^
  |
  = help: give each listener an address of its own
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[server]
listen = ["127.0.0.1:9000", "unix:/run/ww.sock", "unix:/run/ww.sock?mode=600"]"#,
        faults: r#"
error: two listeners claim unix:/run/ww.sock
 --> ww.toml:2:10
  |
2 | listen = ["127.0.0.1:9000", "unix:/run/ww.sock", "unix:/run/ww.sock?mode=600"]
  |          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: give each listener an address of its own
"#,
        ..Case::NONE
    },
];

#[test]
fn plaintext_for_other_machines() {
    check(PLAINTEXT_FOR_OTHER_MACHINES);
    let allowed = r#"server = { listen = ["0.0.0.0:1", "unix:/a"], ops_listen = "[::]:2", allow_plaintext = true }"#;
    let (loaded, shown) = (ok(&format!("{allowed}{FINE}"), &[], &[]), "[\"0.0.0.0:1\", \"unix:/a\"]");
    assert_eq!(loaded.config.server.listen.len(), 2);
    assert_eq!(loaded.settings[0].value().map(ToString::to_string).as_deref(), Some(shown));
    let ops = r#"server = { ops_listen = "[::]:2", ops_allow_plaintext = true }"#;
    assert!(ok(&format!("{ops}{FINE}"), &[], &[]).config.server.ops_allow_plaintext);
}

const PLAINTEXT_FOR_OTHER_MACHINES: &[Case] = &[
    Case {
        file: r#"[server]
listen = ["127.0.0.1:9000", "10.0.0.1:9000"]"#,
        faults: r#"
error: `server.listen` is 10.0.0.1:9000, where other machines would be served in plaintext
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
error: `server.ops_listen` is [::]:7071, where other machines would be served in plaintext
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
error: `server.listen` is 10.0.0.1:9000, where other machines would be served in plaintext
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
    check(MEMORY_THAT_DOES_NOT_FIT);
}

const MEMORY_THAT_DOES_NOT_FIT: &[Case] = &[
    Case {
        file: r#"[server]
memory = { per_connection = "1MiB" }"#,
        faults: r#"
error: the largest payload is 4MiB, and `server.memory.per_connection` is 1MiB
 --> ww.toml:2:29
  |
2 | memory = { per_connection = "1MiB" }
  |                             ^^^^^^
  |
  = help: raise `server.memory.per_connection` or lower `server.max_payload`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[server]
memory = { total = "8MiB" }"#,
        faults: r#"
error: `server.memory.per_connection` is more than `server.memory.total`
 --> ww.toml:2:20
  |
2 | memory = { total = "8MiB" }
  |                    ^^^^^^
  |
  = help: raise `server.memory.total` or lower `server.memory.per_connection`
"#,
        ..Case::NONE
    },
];

#[test]
fn workers_out_of_bounds() {
    check(WORKERS_OUT_OF_BOUNDS);
}

const WORKERS_OUT_OF_BOUNDS: &[Case] = &[
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
];

#[test]
fn deadlines_that_contradict_each_other() {
    check(DEADLINES_THAT_CONTRADICT_EACH_OTHER);
}

const DEADLINES_THAT_CONTRADICT_EACH_OTHER: &[Case] = &[
    Case {
        file: r#"[deadline]
default = "20m""#,
        faults: r#"
error: `deadline.default` is longer than `deadline.max`
 --> ww.toml:2:11
  |
2 | default = "20m"
  |           ^^^^^
  |
  = help: lower `deadline.default` or raise `deadline.max`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[deadline]
default = "20m"
max = "10m""#,
        faults: r#"
error: `deadline.default` is longer than `deadline.max`
 --> ww.toml:2:11
  |
2 | default = "20m"
  |           ^^^^^
3 | max = "10m"
  |       -----
  |
  = help: lower `deadline.default` or raise `deadline.max`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[deadline]
default = "5ms""#,
        faults: r#"
error: `deadline.reply_margin` leaves nothing of `deadline.default`
 --> ww.toml:2:11
  |
2 | default = "5ms"
  |           ^^^^^
  |
  = help: lower `deadline.reply_margin` or raise `deadline.default`
"#,
        ..Case::NONE
    },
];

#[test]
fn queues_that_hold_too_little() {
    check(QUEUES_THAT_HOLD_TOO_LITTLE);
}

const QUEUES_THAT_HOLD_TOO_LITTLE: &[Case] = &[
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
];

#[test]
fn a_key_that_is_faulty_itself_clashes_with_nothing() {
    check(A_KEY_THAT_IS_FAULTY_ITSELF_CLASHES_WITH_NOTHING);
}

const A_KEY_THAT_IS_FAULTY_ITSELF_CLASHES_WITH_NOTHING: &[Case] = &[
    Case {
        file: r#"[server]
max_payload = "many"
[pool.cpu]
queue = { bytes = "1KiB" }"#,
        faults: r#"
error: `server.max_payload`: `many` is not a size
 --> ww.toml:2:15
  |
2 | max_payload = "many"
  |               ^^^^^^
  |
  = help: write it like `"4MiB"`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[deadline]
default = "1h"
max = "0s""#,
        faults: r#"
error: `deadline.max` is 0s, outside of 1ms to 7days
 --> ww.toml:3:7
  |
3 | max = "0s"
  |       ^^^^
  |
  = help: give a value from 1ms to 7days
"#,
        ..Case::NONE
    },
];
