//! Faults of kinds: their pool and their handler.

use super::{Case, Duration, Handler, check, ok};
use crate::handler::Recycle;

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
    Case {
        file: r#"[pool.far]
workers = 2
[kind.a]
pool = "far"
remote = true
kill_grace = "1s"
[kind.b]
pool = "far"
builtin = "echo"
[kind.c]
pool = "base"
remote = false"#,
        faults: r#"
error: `pool.far.workers` has no effect: the workers of the pool attach from elsewhere
 --> ww.toml:2:11
  |
2 | workers = 2
  |           ^
...
5 | remote = true
  |          ----
  |
  = help: remove `pool.far.workers`

error: `kind.a.kill_grace` works only with `exec`
 --> ww.toml:6:1
  |
6 | kill_grace = "1s"
  | ^^^^^^^^^^
  |
  = help: remove it: what a worker runs is its own matter

error: workers attach for pool `far`, and for its kind `b` none would
 --> ww.toml:7:7
  |
5 | remote = true
  |          ----
6 | kill_grace = "1s"
7 | [kind.b]
  |       ^
  |
  = help: give [kind.b] another pool, or `remote = true`

error: kind `c` has `remote = false`, and nothing else that runs its jobs
  --> ww.toml:12:10
   |
12 | remote = false
   |          ^^^^^
   |
   = help: set it to true, or replace it by `exec` or `program`
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
error: kind `k` has none of `exec`, `program`, `remote` and `builtin`
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
error: kind `k` has none of `exec`, `program`, `remote` and `builtin`
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

#[test]
fn programs_and_their_kinds() {
    check(PROGRAMS_AND_THEIR_KINDS);
}

const PROGRAMS_AND_THEIR_KINDS: &[Case] = &[
    Case {
        file: r#"[program.thumbs]
command = ["/bin/sh"]
[kind.k]
pool = "base"
program = "thumb"
[kind.l]
pool = "base"
program = "thumbs"
exec = ["/bin/sh"]"#,
        faults: r#"
error: kind `k` is run by program `thumb`, which is not declared
 --> ww.toml:5:11
  |
5 | program = "thumb"
  |           ^^^^^^^
  |
  = help: did you mean `thumbs`? else add [program.thumb] with its `command`

error: kind `l` has both `exec` and `program`
 --> ww.toml:9:8
  |
8 | program = "thumbs"
  |           --------
9 | exec = ["/bin/sh"]
  |        ^^^^^^^^^^^
  |
  = help: keep one of the two
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[program.p]
pass_env = ["MISSING"]
[kind.k]
pool = "base"
program = "p"
workspace = true"#,
        faults: r#"
error: `program.p.command` is not set
 --> ww.toml:1:10
  |
1 | [program.p]
  |          ^
  |
  = help: add `program.p.command = ["/usr/bin/python3", "{config_dir}/worker.py"]`

error: `MISSING` is not set in the server's environment
 --> ww.toml:2:13
  |
2 | pass_env = ["MISSING"]
  |             ^^^^^^^^^
  |
  = help: set `MISSING` before the start, or give it a value in `env`, or remove it

error: `kind.k.workspace` works only with `exec`
 --> ww.toml:6:1
  |
6 | workspace = true
  | ^^^^^^^^^
  |
  = help: remove it, or set what the program has in [program.NAME]
"#,
        ..Case::NONE
    },
    Case {
        file: r#"[program.p]
command = ["/bin/sh"]
recycle = { jobs = 0 }"#,
        faults: r#"
error: program `p` runs no kind
 --> ww.toml:1:10
  |
1 | [program.p]
  |          ^
  |
  = help: add `program = "p"` to a [kind.NAME], or remove it

error: `program.p.recycle.jobs` is 0, outside of 1 to 1000000000
 --> ww.toml:3:20
  |
3 | recycle = { jobs = 0 }
  |                    ^
  |
  = help: give a value from 1 to 1000000000
"#,
        ..Case::NONE
    },
];

#[test]
fn kinds_of_one_program_and_pool_have_the_same_one() {
    let file = r#"
        [pool.a]
        cancel_grace = "3s"
        [pool.b]
        [program.p]
        command = ["/bin/sh", "{config_dir}/p.sh"]
        jobs_per_process = 2
        recycle = { age = "1h", memory = "1GiB" }
        env = { A = "b" }
        pass_env = ["PATH"]
        [kind]
        k = { pool = "a", program = "p" }
        l = { pool = "a", program = "p" }
        m = { pool = "b", program = "p" }
    "#;
    let config = ok(file, &[("PATH", "/bin")], &[]).config;
    let [k, l, m] = [0, 1, 2].map(|at| match &config.kinds[at].handler {
        Handler::Program(program) => program.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(k, l);
    assert_eq!((k.kinds.iter().map(String::as_str).collect::<Vec<_>>(), m.kinds.len()), (vec!["k", "l"], 1));
    assert_eq!((k.cancel_grace.as_secs(), m.cancel_grace.as_secs(), k.jobs_per_process), (3, 1, 2));
    let recycle = Recycle { jobs: None, age: Some(Duration::from_secs(3600)), memory: Some(1 << 30) };
    assert_eq!((k.recycle, k.env.len(), k.args.len()), (recycle, 2, 1));
    assert!(format!("{m:?}").contains("[\"A\", \"PATH\"]"), "{m:?}");
}
