//! Faults of the form of the file: syntax, unknown keys, tables, names.

use super::{Case, check};

#[test]
fn bad_syntax_reports_every_place_and_hides_the_rest() {
    check(BAD_SYNTAX_REPORTS_EVERY_PLACE_AND_HIDES_THE_REST);
}

const BAD_SYNTAX_REPORTS_EVERY_PLACE_AND_HIDES_THE_REST: &[Case] = &[
    Case {
        file: r"[server]
listen = 
",
        faults: r"
error: not valid TOML: string values must be quoted, expected literal string
 --> ww.toml:2:10
  |
2 | listen =
  |          ^
  |
  = help: put the string in quotes, on one line
",
        ..Case::NONE
    },
    Case {
        file: r"[server
threads = 0
",
        faults: r"
error: not valid TOML: unclosed table, expected `]`
 --> ww.toml:1:8
  |
1 | [server
  |        ^
  |
  = help: correct the line; `waterwheel config init` prints a file to compare with
",
        ..Case::NONE
    },
    Case {
        file: r#"[drain]
kill = "5s
"#,
        faults: r#"
error: not valid TOML: invalid basic string, expected `"`
 --> ww.toml:2:11
  |
2 | kill = "5s
  |           ^
  |
  = help: put the string in quotes, on one line
"#,
        ..Case::NONE
    },
    Case {
        file: r"[drain]
kill = 5s
",
        faults: r"
error: not valid TOML: string values must be quoted, expected literal string
 --> ww.toml:2:8
  |
2 | kill = 5s
  |        ^^
  |
  = help: put the string in quotes, on one line
",
        ..Case::NONE
    },
    Case {
        file: r#"[drain]
kill = "1s"
finish = "1s"
[drain]
kill = "2s"
finish = "2s"
"#,
        faults: r"
error: not valid TOML: duplicate key
 --> ww.toml:4:2
  |
4 | [drain]
  |  ^^^^^
  |
  = help: merge the two, or remove one
",
        ..Case::NONE
    },
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
];

#[test]
fn an_unknown_key_gets_a_suggestion_or_the_choice() {
    check(AN_UNKNOWN_KEY_GETS_A_SUGGESTION_OR_THE_CHOICE);
}

const AN_UNKNOWN_KEY_GETS_A_SUGGESTION_OR_THE_CHOICE: &[Case] = &[
    Case {
        file: r#"[server]
listne = "127.0.0.1:1""#,
        faults: r#"
error: unknown key `listne` in [server]
 --> ww.toml:2:1
  |
2 | listne = "127.0.0.1:1"
  | ^^^^^^
  |
  = help: did you mean `listen`?
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[drain]
grace = "5s""#,
        faults: r#"
error: unknown key `grace` in [drain]
 --> ww.toml:2:1
  |
2 | grace = "5s"
  | ^^^^^
  |
  = help: choose from notice, finish, kill
"#,
        ..Case::NONE
    },
    Case {
        file: r"[pools.cpu]
workers = 1",
        faults: r"
error: unknown key `pools`
 --> ww.toml:1:2
  |
1 | [pools.cpu]
  |  ^^^^^
  |
  = help: did you mean `pool`?
",
        ..Case::NONE
    },
    Case {
        file: r"[pool.cpu]
queue = { jbos = 1 }",
        faults: r"
error: unknown key `jbos` in [pool.cpu.queue]
 --> ww.toml:2:11
  |
2 | queue = { jbos = 1 }
  |           ^^^^
  |
  = help: did you mean `jobs`?
",
        ..Case::NONE
    },
    Case {
        file: r#"[pool.cpu]
queue.jobs = 1
When-Full = "wait""#,
        faults: r#"
error: unknown key `When-Full` in [pool.cpu]
 --> ww.toml:3:1
  |
3 | When-Full = "wait"
  | ^^^^^^^^^
  |
  = help: did you mean `when_full`?
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "base"
builtin = "echo"
timeout = "5s""#,
        faults: r#"
error: unknown key `timeout` in [kind.k]
 --> ww.toml:4:1
  |
4 | timeout = "5s"
  | ^^^^^^^
  |
  = help: choose from pool, exec, program, remote, builtin, run_timeout, max_output, idempotent, limit, retry, retain_for, retain_dead_for
"#,
        ..Case::NONE
    },
];

#[test]
fn a_value_where_a_table_belongs() {
    check(A_VALUE_WHERE_A_TABLE_BELONGS);
}

const A_VALUE_WHERE_A_TABLE_BELONGS: &[Case] = &[
    Case {
        file: "server = 5",
        faults: r"
error: `server` must be a table, not an integer
 --> ww.toml:1:10
  |
1 | server = 5
  |          ^
  |
  = help: start a section [server]
",
        ..Case::NONE
    },
    Case {
        file: "pool.cpu = 4",
        faults: r"
error: `pool.cpu` must be a table, not an integer
 --> ww.toml:1:12
  |
1 | pool.cpu = 4
  |            ^
  |
  = help: start a section [pool.cpu]
",
        ..Case::NONE
    },
    Case {
        file: r"[[pool.cpu]]
workers = 1",
        faults: r"
error: `pool.cpu` must be a table, not an array
 --> ww.toml:1:1
  |
1 | [[pool.cpu]]
  | ^^^^^^^^^^^^
  |
  = help: start a section [pool.cpu]
",
        ..Case::NONE
    },
    Case {
        file: r"[pool.cpu]
queue = 64",
        faults: r"
error: `pool.cpu.queue` must be a table, not an integer
 --> ww.toml:2:9
  |
2 | queue = 64
  |         ^^
  |
  = help: start a section [pool.cpu.queue]
",
        ..Case::NONE
    },
];

#[test]
fn names_are_simple() {
    check(NAMES_ARE_SIMPLE);
}

const NAMES_ARE_SIMPLE: &[Case] = &[
    Case {
        file: "[pool.CPU]",
        faults: r"
error: `pool.CPU`: `CPU` is not a name
 --> ww.toml:1:7
  |
1 | [pool.CPU]
  |       ^^^
  |
  = help: write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`
",
        ..Case::NONE
    },
    Case {
        file: r#"[pool."a b"]"#,
        faults: r#"
error: `pool.a b`: `a b` is not a name
 --> ww.toml:1:7
  |
1 | [pool."a b"]
  |       ^^^^^
  |
  = help: write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`
"#,
        ..Case::NONE
    },
    Case {
        file: "[pool.1st]",
        faults: r"
error: `pool.1st`: `1st` is not a name
 --> ww.toml:1:7
  |
1 | [pool.1st]
  |       ^^^
  |
  = help: write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`
",
        ..Case::NONE
    },
    Case {
        file: "[pool.abbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb]",
        faults: r"
error: `pool.abbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb`: `abbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb` is not a name
 --> ww.toml:1:7
  |
1 | [pool.abbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb]
  |       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`
",
        ..Case::NONE
    },
    Case {
        file: r#"[kind.Echo]
pool = "base"
builtin = "echo""#,
        faults: r"
error: `kind.Echo`: `Echo` is not a name
 --> ww.toml:1:7
  |
1 | [kind.Echo]
  |       ^^^^
  |
  = help: write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`
",
        ..Case::NONE
    },
];
