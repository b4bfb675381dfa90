//! Faults of kinds: their pool and their handler.

use super::{Case, check};

#[test]
fn pool_and_handler_of_a_kind() {
    check(POOL_AND_HANDLER_OF_A_KIND);
}

const POOL_AND_HANDLER_OF_A_KIND: &[Case] = &[
    Case {
        file: r#"[kind.k]
builtin = "echo""#,
        faults: r#"
error: kind `k` names no pool
 --> ww.toml:1:7
  |
1 | [kind.k]
  |       ^
  |
  = help: add `pool = "NAME"`, one of the [pool.NAME] sections
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[pool.thumbs]
[kind.k]
pool = "thumb"
builtin = "echo""#,
        faults: r#"
error: kind `k` runs in pool `thumb`, which is not declared
 --> ww.toml:3:8
  |
3 | pool = "thumb"
  |        ^^^^^^^
  |
  = help: did you mean `thumbs`? else add [pool.thumb]
"#,
        ..Case::NONE
    },
    // The kind has no pool because of it, which is the same fault.
    Case {
        file: r#"[pools.cpu]
[kind.k]
pool = "cpu"
builtin = "echo""#,
        faults: r#"
error: unknown key `pools`
 --> ww.toml:1:2
  |
1 | [pools.cpu]
  |  ^^^^^
  |
  = help: did you mean `pool`?
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "gpu"
builtin = "echo""#,
        faults: r#"
error: kind `k` runs in pool `gpu`, which is not declared
 --> ww.toml:2:8
  |
2 | pool = "gpu"
  |        ^^^^^
  |
  = help: add [pool.gpu]
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "base"
env = { A = "b" }"#,
        faults: r#"
error: kind `k` has neither `exec` nor `builtin`
 --> ww.toml:1:7
  |
1 | [kind.k]
  |       ^
  |
  = help: add `exec = ["/path/to/program"]` or `builtin = "echo"`
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "base"
builtin = "echo"
exec = ["/bin/sh"]"#,
        faults: r#"
error: kind `k` has both `exec` and `builtin`
 --> ww.toml:4:8
  |
3 | builtin = "echo"
  |           ------
4 | exec = ["/bin/sh"]
  |        ^^^^^^^^^^^
  |
  = help: keep one of the two
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "base"
builtin = "ehco""#,
        faults: r#"
error: `kind.k.builtin`: `ehco` is not one of its values
 --> ww.toml:3:11
  |
3 | builtin = "ehco"
  |           ^^^^^^
  |
  = help: did you mean `echo`?
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[kind.k]
pool = "base"
builtin = "echo"
kill_grace = "1s"
pass_env = []"#,
        faults: r#"
error: `kind.k.kill_grace` works only with `exec`
 --> ww.toml:4:1
  |
4 | kill_grace = "1s"
  | ^^^^^^^^^^
  |
  = help: remove it, or replace `builtin` by `exec`

error: `kind.k.pass_env` works only with `exec`
 --> ww.toml:5:1
  |
5 | pass_env = []
  | ^^^^^^^^
  |
  = help: remove it, or replace `builtin` by `exec`
"#,
        ..Case::NONE
    },
    Case {
        file: "[kind.k]",
        faults: r#"
error: kind `k` has neither `exec` nor `builtin`
 --> ww.toml:1:7
  |
1 | [kind.k]
  |       ^
  |
  = help: add `exec = ["/path/to/program"]` or `builtin = "echo"`

error: kind `k` names no pool
 --> ww.toml:1:7
  |
1 | [kind.k]
  |       ^
  |
  = help: add `pool = "NAME"`, one of the [pool.NAME] sections
"#,
        ..Case::NONE
    },
];
