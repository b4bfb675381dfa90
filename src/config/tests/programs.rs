//! Faults of the programs of kinds.

use super::{Case, check, check_files};
use crate::config::handler::EXEC_KEYS;

#[test]
fn every_key_of_a_program_is_documented() {
    let documented = include_str!("../../../docs/exec.md");
    for key in EXEC_KEYS {
        assert!(documented.contains(&format!("\n{key} = ")), "docs/exec.md does not tell of {key}");
    }
}

#[test]
fn programs_that_cannot_start() {
    check_files(&[
        (
            r#"[kind.k]
pool = "base"
exec = []"#,
            r#"3:8 `kind.k.exec` must be an array of strings, not an empty array
  = write it like `["/usr/bin/convert", "-"]`"#,
        ),
        (
            r#"[kind.k]
pool = "base"
exec = "/bin/sh -c true""#,
            r#"3:8 `kind.k.exec` must be an array of strings, not a string
  = write it like `["/usr/bin/convert", "-"]`"#,
        ),
        (
            r#"[kind.k]
pool = "base"
exec = ["/bin/sh", 1]"#,
            r#"3:20 `kind.k.exec` must be an array of strings, not an integer
  = write it like `["/usr/bin/convert", "-"]`"#,
        ),
        (
            r#"[kind.k]
pool = "base"
exec = ["sh", "-c", "true"]"#,
            "3:9 `kind.k.exec`: `sh` is not an absolute path
  = there is no shell and no search path; `command -v NAME` prints the whole path",
        ),
        (
            r#"[kind.k]
pool = "base"
exec = ["/no/such/program"]"#,
            "3:9 `kind.k.exec`: `/no/such/program` is not the path of a file
  = install it, or correct the path",
        ),
        (
            r#"[kind.k]
pool = "base"
exec = ["/"]"#,
            "3:9 `kind.k.exec`: `/` is not a file
  = name the program itself",
        ),
        (
            r#"[kind.k]
pool = "base"
exec = ["/etc/passwd"]"#,
            "3:9 `kind.k.exec`: `/etc/passwd` is not executable for this user
  = `chmod +x /etc/passwd`, or run the server as a user with that permission",
        ),
    ]);
}

#[test]
fn keys_of_a_program() {
    check(KEYS_OF_A_PROGRAM);
}

const KEYS_OF_A_PROGRAM: &[Case] = &[
    Case {
        file: r#"[kind.k]
pool = "base"
exec = ["/bin/sh"]
env = { A = 1, "2B" = "x", "C-D" = "x" }"#,
        faults: r#"
error: `kind.k.env.A` must be a string, not an integer
 --> ww.toml:4:13
  |
4 | env = { A = (withheld), "2B" = (withheld), "C-D" = (withheld) }
  |             ^^^^^^^^^^
  |
  = help: write it like `"text"`

error: `kind.k.env.2B`: `2B` is not a name of a variable
 --> ww.toml:4:25
  |
4 | env = { A = (withheld), "2B" = (withheld), "C-D" = (withheld) }
  |                         ^^^^
  |
  = help: use letters, digits and `_`, and no digit first

error: `kind.k.env.C-D`: `C-D` is not a name of a variable
 --> ww.toml:4:44
  |
4 | env = { A = (withheld), "2B" = (withheld), "C-D" = (withheld) }
  |                                            ^^^^^
  |
  = help: use letters, digits and `_`, and no digit first
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "base"
exec = ["/bin/sh"]
env = { HOME = "/" }
pass_env = ["LANG", "HOME", "PATH", "PATH"]"#,
        env: &[("PATH", "/bin"), ("HOME", "/root")],
        faults: r#"
error: `LANG` is not set in the server's environment
 --> ww.toml:5:13
  |
5 | pass_env = ["LANG", "HOME", "PATH", "PATH"]
  |             ^^^^^^
  |
  = help: set `LANG` before the start, or give it a value in `env`, or remove it

error: variable `HOME` of kind `k` is given twice
 --> ww.toml:5:21
  |
5 | pass_env = ["LANG", "HOME", "PATH", "PATH"]
  |                     ^^^^^^
  |
  = help: name it once, in `env` or in `pass_env`

error: variable `PATH` of kind `k` is given twice
 --> ww.toml:5:37
  |
5 | pass_env = ["LANG", "HOME", "PATH", "PATH"]
  |                                     ^^^^^^
  |
  = help: name it once, in `env` or in `pass_env`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "base"
exec = ["/bin/sh"]
env = { WATERWHEEL_X = "1", WATERWHEEL_2 = "2" }
pass_env = ["WATERWHEEL_"]"#,
        env: &[("WATERWHEEL_", "1")],
        faults: r#"
error: `kind.k.env.WATERWHEEL_X`: `WATERWHEEL_X` is not a name of a variable
 --> ww.toml:4:9
  |
4 | env = { WATERWHEEL_X = (withheld), WATERWHEEL_2 = (withheld) }
  |         ^^^^^^^^^^^^
  |
  = help: choose a name that does not begin with WATERWHEEL_, which is reserved for the variables of each job

error: `kind.k.env.WATERWHEEL_2`: `WATERWHEEL_2` is not a name of a variable
 --> ww.toml:4:36
  |
4 | env = { WATERWHEEL_X = (withheld), WATERWHEEL_2 = (withheld) }
  |                                    ^^^^^^^^^^^^
  |
  = help: choose a name that does not begin with WATERWHEEL_, which is reserved for the variables of each job

error: `kind.k.pass_env`: `WATERWHEEL_` is not a name of a variable that a job may have
 --> ww.toml:5:13
  |
5 | pass_env = ["WATERWHEEL_"]
  |             ^^^^^^^^^^^^^
  |
  = help: choose a name that does not begin with WATERWHEEL_, which is reserved for the variables of each job
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "base"
exec = ["/bin/sh"]
exit_codes = { "0" = "NOT_FOUND", "03" = "NOT_FOUND", "256" = "NOT_FOUND" }"#,
        faults: r#"
error: `kind.k.exit_codes.0`: `0` is not an exit code of a failure
 --> ww.toml:4:16
  |
4 | exit_codes = { "0" = "NOT_FOUND", "03" = "NOT_FOUND", "256" = "NOT_FOUND" }
  |                ^^^
  |
  = help: give a code from 1 to 255, like `"3" = "NOT_FOUND"`

error: `kind.k.exit_codes.03`: `03` is not an exit code of a failure
 --> ww.toml:4:35
  |
4 | exit_codes = { "0" = "NOT_FOUND", "03" = "NOT_FOUND", "256" = "NOT_FOUND" }
  |                                   ^^^^
  |
  = help: give a code from 1 to 255, like `"3" = "NOT_FOUND"`

error: `kind.k.exit_codes.256`: `256` is not an exit code of a failure
 --> ww.toml:4:55
  |
4 | exit_codes = { "0" = "NOT_FOUND", "03" = "NOT_FOUND", "256" = "NOT_FOUND" }
  |                                                       ^^^^^
  |
  = help: give a code from 1 to 255, like `"3" = "NOT_FOUND"`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "base"
exec = ["/bin/sh"]
exit_codes = { "3" = "NOTFOUND", "4" = "DEADLINE_EXCEEDED" }"#,
        faults: r#"
error: `kind.k.exit_codes.3`: `NOTFOUND` is not one of its values
 --> ww.toml:4:22
  |
4 | exit_codes = { "3" = "NOTFOUND", "4" = "DEADLINE_EXCEEDED" }
  |                      ^^^^^^^^^^
  |
  = help: did you mean `NOT_FOUND`?

error: `kind.k.exit_codes.4`: `DEADLINE_EXCEEDED` is not one of its values
 --> ww.toml:4:40
  |
4 | exit_codes = { "3" = "NOTFOUND", "4" = "DEADLINE_EXCEEDED" }
  |                                        ^^^^^^^^^^^^^^^^^^^
  |
  = help: choose from INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED, UNAVAILABLE, DATA_LOSS, UNKNOWN
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "base"
exec = ["/bin/sh"]
stderr_tail = "4KiB"
kill_grace = "soon""#,
        faults: r#"
error: `kind.k.stderr_tail` is 4KiB, outside of 0B to 3KiB
 --> ww.toml:4:15
  |
4 | stderr_tail = "4KiB"
  |               ^^^^^^
  |
  = help: give a value from 0B to 3KiB

error: `kind.k.kill_grace`: `soon` is not a duration
 --> ww.toml:5:14
  |
5 | kill_grace = "soon"
  |              ^^^^^^
  |
  = help: write it like `"1s"`
"#,
        ..Case::NONE
    },
];
