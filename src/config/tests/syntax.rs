//! Errors in the structure of the file: syntax, unknown keys, tables, names.

use super::{Case, check, check_files};

#[test]
fn syntax_errors_are_all_reported_and_other_errors_are_not() {
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
fn an_unknown_key_gets_a_suggestion_or_the_list_of_keys() {
    check_files(&[
        (
            r#"[server]
listne = "127.0.0.1:1""#,
            "2:1 unknown key `listne` in [server]
  = did you mean `listen`?",
        ),
        (
            r#"[drain]
grace = "5s""#,
            "2:1 unknown key `grace` in [drain]
  = choose from notice, finish, kill",
        ),
        (
            "[pools.cpu]
workers = 1",
            "1:2 unknown key `pools`
  = did you mean `pool`?",
        ),
        (
            "[pool.cpu]
queue = { jbos = 1 }",
            "2:11 unknown key `jbos` in [pool.cpu.queue]
  = did you mean `jobs`?",
        ),
        (
            r#"[pool.cpu]
queue.jobs = 1
When-Full = "wait""#,
            "3:1 unknown key `When-Full` in [pool.cpu]
  = did you mean `when_full`?",
        ),
        (
            r#"[kind.k]
pool = "base"
builtin = "echo"
timeout = "5s""#,
            "4:1 unknown key `timeout` in [kind.k]
  = choose from pool, exec, program, remote, builtin, run_timeout, max_output, idempotent, limit, retry, retain_for, retain_dead_for",
        ),
    ]);
}

#[test]
fn a_value_where_a_table_belongs() {
    check_files(&[
        (
            "server = 5",
            "1:10 `server` must be a table, not an integer
  = start a section [server]",
        ),
        (
            "pool.cpu = 4",
            "1:12 `pool.cpu` must be a table, not an integer
  = start a section [pool.cpu]",
        ),
        (
            "[[pool.cpu]]
workers = 1",
            "1:1 `pool.cpu` must be a table, not an array
  = start a section [pool.cpu]",
        ),
        (
            "[pool.cpu]
queue = 64",
            "2:9 `pool.cpu.queue` must be a table, not an integer
  = start a section [pool.cpu.queue]",
        ),
    ]);
}

#[test]
fn invalid_names_are_rejected() {
    check_files(&[
        (
            "[pool.CPU]",
            "1:7 `pool.CPU`: `CPU` is not a name
  = write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`",
        ),
        (
            r#"[pool."a b"]"#,
            "1:7 `pool.a b`: `a b` is not a name
  = write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`",
        ),
        (
            "[pool.1st]",
            "1:7 `pool.1st`: `1st` is not a name
  = write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`",
        ),
        (
            "[pool.abbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb]",
            "1:7 `pool.abbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb`: `abbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb` is not a name
  = write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`",
        ),
        (
            r#"[kind.Echo]
pool = "base"
builtin = "echo""#,
            "1:7 `kind.Echo`: `Echo` is not a name
  = write a lower-case letter, then up to 62 of a-z, 0-9, `_` and `-`",
        ),
    ]);
}
