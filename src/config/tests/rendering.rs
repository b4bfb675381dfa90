//! Reports of faults as a terminal and as JSON show them.

use serde_json::json;

use super::{Case, check};

#[test]
fn a_report_shows_each_place_in_its_source() {
    check(CASES);
}

const CASES: &[Case] = &[
    Case {
        file: r#"[drain]
kill = "1s"
kill = "2s"
[drain]
"#,
        faults: r#"
error: not valid TOML: duplicate key
 --> ww.toml:3:1
  |
3 | kill = "2s"
  | ^^^^
  |
  = help: merge the two, or remove one

error: not valid TOML: duplicate key
 --> ww.toml:4:2
  |
4 | [drain]
  |  ^^^^^
  |
  = help: merge the two, or remove one
"#,
        ..Case::NONE
    },
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
