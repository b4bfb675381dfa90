//! Faults of kinds: their pool and their handler.

use super::{Duration, Handler, check_files, ok};
use crate::handler::Recycle;

#[test]
fn pool_and_handler_of_a_kind() {
    check_files(POOL_AND_HANDLER_OF_A_KIND);
}

const POOL_AND_HANDLER_OF_A_KIND: &[(&str, &str)] = &[
    (
        r#"[kind.k]
builtin = "echo""#,
        r#"1:7 kind `k` names no pool
  = add `pool = "NAME"`, one of the [pool.NAME] sections"#,
    ),
    (
        r#"[pool.thumbs]
[kind.k]
pool = "thumb"
builtin = "echo""#,
        "3:8 kind `k` runs in pool `thumb`, which is not declared
  = did you mean `thumbs`? else add [pool.thumb]",
    ),
    (
        r#"[pool.far]
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
        "2:11 5:10 `pool.far.workers` has no effect: the workers of the pool attach from elsewhere
  = remove `pool.far.workers`
6:1 `kind.a.kill_grace` works only with `exec`
  = remove it: an attached worker has its own settings
7:7 5:10 pool `far` has attached workers, but its kind `b` is not remote
  = give [kind.b] another pool, or `remote = true`
12:10 kind `c` has `remote = false`, and nothing else that runs its jobs
  = set it to true, or replace it by `exec` or `program`",
    ),
    // The kind has no pool because of it, which is the same fault.
    (
        r#"[pools.cpu]
[kind.k]
pool = "cpu"
builtin = "echo""#,
        "1:2 unknown key `pools`
  = did you mean `pool`?",
    ),
    (
        r#"[kind.k]
pool = "gpu"
builtin = "echo""#,
        "2:8 kind `k` runs in pool `gpu`, which is not declared
  = add [pool.gpu]",
    ),
    (
        r#"[kind.k]
pool = "base"
env = { A = "b" }"#,
        r#"1:7 kind `k` needs one of `exec`, `program`, `remote`, `builtin`
  = add `exec = ["/path/to/program"]` or `builtin = "echo"`"#,
    ),
    (
        r#"[kind.k]
pool = "base"
builtin = "echo"
exec = ["/bin/sh"]"#,
        "4:8 3:11 kind `k` has both `exec` and `builtin`
  = keep one of the two",
    ),
    (
        r#"[kind.k]
pool = "base"
builtin = "ehco""#,
        "3:11 `kind.k.builtin`: `ehco` is not one of its values
  = did you mean `echo`?",
    ),
    (
        r#"[kind.k]
pool = "base"
builtin = "echo"
kill_grace = "1s"
pass_env = []"#,
        "4:1 `kind.k.kill_grace` works only with `exec`
  = remove it, or replace `builtin` by `exec`
5:1 `kind.k.pass_env` works only with `exec`
  = remove it, or replace `builtin` by `exec`",
    ),
    (
        "[kind.k]",
        r#"1:7 kind `k` needs one of `exec`, `program`, `remote`, `builtin`
  = add `exec = ["/path/to/program"]` or `builtin = "echo"`
1:7 kind `k` names no pool
  = add `pool = "NAME"`, one of the [pool.NAME] sections"#,
    ),
];

#[test]
fn programs_and_their_kinds() {
    check_files(&[
        (
            r#"[program.thumbs]
command = ["/bin/sh"]
[kind.k]
pool = "base"
program = "thumb"
[kind.l]
pool = "base"
program = "thumbs"
exec = ["/bin/sh"]"#,
            "5:11 kind `k` is run by program `thumb`, which is not declared
  = did you mean `thumbs`? else add [program.thumb] with its `command`
9:8 8:11 kind `l` has both `exec` and `program`
  = keep one of the two",
        ),
        (
            r#"[program.p]
pass_env = ["MISSING"]
[kind.k]
pool = "base"
program = "p"
workspace = true"#,
            r#"1:10 `program.p.command` is not set
  = add `program.p.command = ["/usr/bin/python3", "{config_dir}/worker.py"]`
2:13 `MISSING` is not set in the server's environment
  = set `MISSING` before the start, or give it a value in `env`, or remove it
6:1 `kind.k.workspace` works only with `exec`
  = remove it, or use the keys of [program.NAME]"#,
        ),
        (
            r#"[program.p]
command = ["/bin/sh"]
recycle = { jobs = 0 }"#,
            r#"1:10 program `p` runs no kind
  = add `program = "p"` to a [kind.NAME], or remove it
3:20 `program.p.recycle.jobs` is 0, outside of 1 to 1000000000
  = give a value from 1 to 1000000000"#,
        ),
    ]);
}

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
