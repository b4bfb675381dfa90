//! Faults of variables and flags.

use serde_json::json;

use super::{Case, check};

#[test]
fn a_bad_value_of_a_variable() {
    check(&[
        Case {
            env: &[("WATERWHEEL_POOL__BASE__WORKERS", "eight")],
            faults: r#"
error: `pool.base.workers`: `eight` is not a whole number or "cpus"
--> environment:1:32
 |
 | WATERWHEEL_POOL__BASE__WORKERS=eight
 |                                ^^^^^
 |
 = help: write it like `8`
"#,
            ..Case::NONE
        },
        Case {
            env: &[("WATERWHEEL_POOL__BASE__WORKERS", "0")],
            faults: r"
error: `pool.base.workers` is 0, outside of 1 to 65536
--> environment:1:32
 |
 | WATERWHEEL_POOL__BASE__WORKERS=0
 |                                ^
 |
 = help: give a value from 1 to 65536
",
            ..Case::NONE
        },
        Case {
            env: &[("WATERWHEEL_DRAIN__KILL", "")],
            faults: r#"
error: `drain.kill`: `` is not a duration
--> environment:1:24
 |
 | WATERWHEEL_DRAIN__KILL=
 |                        ^
 |
 = help: write it like `"5s"`
"#,
            ..Case::NONE
        },
        Case {
            env: &[("WATERWHEEL_KIND__ECHO__IDEMPOTENT", "yes")],
            faults: r"
error: `kind.echo.idempotent`: `yes` is not a boolean
--> environment:1:35
 |
 | WATERWHEEL_KIND__ECHO__IDEMPOTENT=yes
 |                                   ^^^
 |
 = help: write it like `false`
",
            ..Case::NONE
        },
    ]);
}

#[test]
fn a_variable_that_maps_to_no_key() {
    check(A_VARIABLE_THAT_MAPS_TO_NO_KEY);
}

const A_VARIABLE_THAT_MAPS_TO_NO_KEY: &[Case] = &[
    Case {
        env: &[("WATERWHEEL_POOL__BASE__WORKRS", "8")],
        faults: r"
error: unknown key `workrs` in [pool.base]
--> environment:1:24
 |
 | WATERWHEEL_POOL__BASE__WORKRS=8
 |                        ^^^^^^
 |
 = help: did you mean `workers`?
",
        ..Case::NONE
    },
    Case {
        env: &[("WATERWHEEL_SRVER__LISTEN", "127.0.0.1:1")],
        faults: r"
error: unknown key `srver`
--> environment:1:12
 |
 | WATERWHEEL_SRVER__LISTEN=127.0.0.1:1
 |            ^^^^^
 |
 = help: did you mean `server`?
",
        ..Case::NONE
    },
    Case {
        env: &[("WATERWHEEL_SERVER__LISTEN__X", "1")],
        faults: r#"
error: `server.listen` must be a string or an array of strings, not a table
--> environment:1:20
 |
 | WATERWHEEL_SERVER__LISTEN__X=1
 |                    ^^^^^^
 |
 = help: write it like `"127.0.0.1:7070"`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[server]
listen = "127.0.0.1:1""#,
        env: &[("WATERWHEEL_SERVER__LISTEN__X", "1")],
        faults: r#"
error: `listen` is both a value and a table
 --> environment:1:20
  |
  | WATERWHEEL_SERVER__LISTEN__X=1
  |                    ^^^^^^
  |
 ::: ww.toml:2:1
  |
2 | listen = "127.0.0.1:1"
  | ------
  |
  = help: remove one of the two
"#,
        ..Case::NONE
    },
    Case {
        env: &[("WATERWHEEL_POOL__BSAE__WORKERS", "8")],
        faults: r"
error: pool `bsae` is not in the file, and no kind uses it
--> environment:1:18
 |
 | WATERWHEEL_POOL__BSAE__WORKERS=8
 |                  ^^^^
 |
 = help: did you mean `base`? else add [pool.bsae] to the file
",
        ..Case::NONE
    },
    Case {
        env: &[("WATERWHEEL_KIND__ECO__RUN_TIMEOUT", "8s")],
        faults: r"
error: kind `eco` is not in the file
--> environment:1:18
 |
 | WATERWHEEL_KIND__ECO__RUN_TIMEOUT=8s
 |                  ^^^
 |
 = help: did you mean `echo`? else give it `exec` or `builtin`
",
        ..Case::NONE
    },
    Case {
        env: &[("WATERWHEEL_POOL__GPU__WORKERS", "8"), ("WATERWHEEL_KIND__RENDER__POOL", "base")],
        faults: r"
error: kind `render` is not in the file
--> environment:1:18
 |
 | WATERWHEEL_KIND__RENDER__POOL=base
 |                  ^^^^^^
 |
 = help: add [kind.render] to the file, or set its `exec` or `builtin` too

error: pool `gpu` is not in the file, and no kind uses it
--> environment:1:18
 |
 | WATERWHEEL_POOL__GPU__WORKERS=8
 |                  ^^^
 |
 = help: add [pool.gpu] to the file, or a kind that uses it
",
        ..Case::NONE
    },
    Case {
        env: &[("WATERWHEEL_POOL__BASE", "8")],
        faults: r"
error: `pool.base` must be a table, not an integer
--> environment:1:23
 |
 | WATERWHEEL_POOL__BASE=8
 |                       ^
 |
 = help: start a section [pool.base]
",
        ..Case::NONE
    },
];

#[test]
fn a_fault_of_a_flag_shows_the_flag() {
    check(A_FAULT_OF_A_FLAG_SHOWS_THE_FLAG);
}

const A_FAULT_OF_A_FLAG_SHOWS_THE_FLAG: &[Case] = &[
    Case {
        flags: &[("--set", "pool.base.workers", "0")],
        faults: r"
error: `pool.base.workers` is 0, outside of 1 to 65536
--> command line:1:25
 |
 | --set pool.base.workers=0
 |                         ^
 |
 = help: give a value from 1 to 65536
",
        ..Case::NONE
    },
    Case {
        flags: &[("--set", "pool.base.wrokers", "1")],
        faults: r"
error: unknown key `wrokers` in [pool.base]
--> command line:1:17
 |
 | --set pool.base.wrokers=1
 |                 ^^^^^^^
 |
 = help: did you mean `workers`?
",
        ..Case::NONE
    },
    Case {
        flags: &[("--listen", "server.listen", "7070")],
        faults: r#"
error: `server.listen`: `7070` is not an address: IP:PORT, unix:/path or systemd:N
--> command line:1:10
 |
 | --listen 7070
 |          ^^^^
 |
 = help: write it like `"127.0.0.1:7070"`
"#,
        ..Case::NONE
    },
    Case {
        flags: &[("--set", "drain", "5s")],
        faults: r"
error: `drain` must be a table, not a string
--> command line:1:13
 |
 | --set drain=5s
 |             ^^
 |
 = help: start a section [drain]
",
        ..Case::NONE
    },
    Case {
        flags: &[("--set", "kind.echo.exec", r#"["/bin/sh""#)],
        faults: r#"
error: `kind.echo.exec`: `["/bin/sh"` is not an array of strings
--> command line:1:22
 |
 | --set kind.echo.exec=["/bin/sh"
 |                      ^^^^^^^^^^
 |
 = help: write it like `["/usr/bin/convert", "-"]`
"#,
        ..Case::NONE
    },
    Case {
        flags: &[("--set", "pool..workers", "1")],
        faults: r"
error: `pool.`: `` is not a name
--> command line:1:12
 |
 | --set pool..workers=1
 |            ^
 |
 = help: write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`
",
        ..Case::NONE
    },
    Case {
        file: r#"[server]
listen = "127.0.0.1:1""#,
        flags: &[("--ops-listen", "server.ops_listen", "127.0.0.1:1")],
        faults: r#"
error: two listeners claim 127.0.0.1:1
 --> command line:1:14
  |
  | --ops-listen 127.0.0.1:1
  |              ^^^^^^^^^^^
  |
 ::: ww.toml:2:10
  |
2 | listen = "127.0.0.1:1"
  |          -------------
  |
  = help: give each listener an address of its own
"#,
        ..Case::NONE
    },
];

#[test]
fn faults_of_all_sources_come_in_one_report_in_their_order() {
    let case = Case {
        file: "[drain]\nkill = 5",
        env: &[("WATERWHEEL_DRAIN__FINISH", "x")],
        flags: &[("--listen", "server.listen", "x")],
        ..Case::NONE
    };
    let faults = case.load().unwrap_err().to_json();
    let faults = faults.as_array().unwrap();
    let places: Vec<_> = faults.iter().map(|fault| fault["places"].clone()).collect();
    let expected = json!([
        [{ "source": "file", "file": "ww.toml", "line": 2, "column": 8 }],
        [{ "source": "env", "name": "WATERWHEEL_DRAIN__FINISH", "column": 26 }],
        [{ "source": "flag", "name": "--listen", "column": 10 }],
    ]);
    assert_eq!(json!(places), expected);
    let help = "write it like `\"127.0.0.1:7070\"`";
    assert_eq!(faults[2]["help"], help);
}
