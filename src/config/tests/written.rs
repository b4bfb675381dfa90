//! Misspelled variables, relative arguments, changes between two configurations, and kinds that share a program.

use super::{Duration, FINE, Handler, ok, sources};
use crate::{config::load, handler::Recycle};

#[test]
fn sizes_with_units_and_log_filters_are_valid() {
    for line in [
        r#"server.max_payload = "4B""#,
        "server.max_payload = 1024",
        r#"telemetry.log = "WARN,waterwheel=debug,h2::proto=3""#,
        r#"telemetry.log = "waterwheel""#,
    ] {
        ok(&format!("{line}{}", FINE), &[], &[]);
    }
}

#[test]
fn a_variable_that_lacks_an_underscore_is_a_fault() {
    let cases = [
        ("WATERWHEEL_POOL_CPU_WORKERS", "did you mean `WATERWHEEL_POOL__CPU__WORKERS`?"),
        ("WATERWHEEL_SERVER_LISTEN", "did you mean `WATERWHEEL_SERVER__LISTEN`?"),
        ("WATERWHEEL_DRAIN_KILL", "did you mean `WATERWHEEL_DRAIN__KILL`?"),
        ("WATERWHEEL_STORE_PATH", "did you mean `WATERWHEEL_STORE__PATH`?"),
        (
            "WATERWHEEL_QUOTA_BUT_NO_KEY_THAT_THERE_IS",
            "write two underscores between the parts of a key, as in WATERWHEEL_POOL__CPU__WORKERS",
        ),
    ];
    for (name, help) in cases {
        let file = format!("pool.cpu.workers = 2{}", FINE);
        let faults = load(&sources(&file, &[(name, "1")], &[])).expect_err(name);
        let told: Vec<_> = faults.iter().map(|fault| (fault.message.clone(), fault.help.clone())).collect();
        assert_eq!(told, [(format!("variable `{name}` sets no key"), help.to_owned())]);
    }
    let others = ["WATERWHEEL_SERVER", "WATERWHEEL_OPS", "WATERWHEEL_CONFIG", "WATERWHEEL_BIN", "WATERWHEEL_JOB_ID"];
    let services = ["WATERWHEEL_SERVICE_HOST", "WATERWHEEL_OPS_SERVICE_HOST", "WATERWHEEL_OPS_PORT_7071_TCP_ADDR"];
    for name in others.into_iter().chain(services) {
        ok(FINE, &[(name, "x")], &[]);
    }
}

#[test]
fn arguments_that_name_files_of_another_place_or_no_files_get_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thumb.py"), "").unwrap();
    let loaded = |words: &str| {
        let text = format!("{}[kind.k]\npool = \"base\"\nexec = {words}", FINE);
        let mut sources = sources(&text, &[], &[]);
        sources.file.as_mut().unwrap().name = dir.path().join("ww.toml").display().to_string();
        load(&sources).unwrap_or_else(|faults| panic!("{faults}"))
    };
    let warned = loaded(r#"["/bin/sh", "thumb.py", "other.py", "-c", ""]"#).warnings;
    let messages: Vec<_> = warned.iter().map(ToString::to_string).collect();
    let expected = "warning: `kind.k.exec` has the relative path `thumb.py`, but jobs do not run in the directory of the configuration\n  \
                    help: write `{config_dir}/thumb.py` for the file in the directory of the configuration";
    assert_eq!(messages, [expected]);

    let gone = loaded(r#"["/bin/sh", "{config_dir}/thumbs.py", "{config_dir}", "--to={config_dir}/new"]"#).warnings;
    let messages: Vec<_> = gone.iter().map(|warning| warning.message.as_str()).collect();
    assert_eq!(messages, ["`kind.k.exec` names `{config_dir}/thumbs.py`, which does not exist"]);

    let fixed = loaded(r#"["/bin/sh", "{config_dir}/thumb.py"]"#);
    assert_eq!(fixed.warnings, []);
    let Handler::Exec(command) = &fixed.config.kinds[1].handler else { panic!("it is a program") };
    assert_eq!(command.args, [dir.path().join("thumb.py").display().to_string()]);
}

#[test]
fn changes_list_each_key_and_whether_it_needs_a_restart() {
    let before = ok(&format!("pool.cpu.workers = 2{}env.A = \"1\"", EXEC), &[], &[]);
    let cases: [(&str, &str, &str, &[&str]); 7] = [
        ("pool.cpu.workers = 2", "A = \"1\"", "", &[]),
        ("pool.cpu.workers = 4", "A = \"1\"", "", &["pool.cpu.workers: 2 → 4"]),
        ("pool.cpu.workers = 2", "A = \"2\"", "", &["kind.k.env: (withheld) → (withheld)"]),
        ("pool.cpu = { workers = 2, ended_jobs = 1 }", "A = \"1\"", "", &["pool.cpu.ended_jobs: 1024 → 1 restart"]),
        ("", "A = \"1\"", "", &["pool.cpu.workers: 2 → not set restart"]),
        ("pool.cpu.workers = 2", "A = \"1\"", "[quota]\nrate = 5", &["quota.rate: not set → 5"]),
        ("pool.cpu.workers = 2", "A = \"1\"", "[server]\nthreads = 9", &["server.threads: 3 → 9 restart"]),
    ];
    for (pool, env, more, expected) in cases {
        let after = ok(&format!("{pool}{EXEC}env.{env}\n{more}"), &[], &[]);
        let restart = |needed: bool| if needed { " restart" } else { "" };
        let told = before.changes(&after).into_iter();
        let told = told.map(|it| format!("{}: {} → {}{}", it.key, it.old, it.new, restart(it.needs_restart)));
        assert_eq!(told.collect::<Vec<_>>(), expected, "{pool} {env} {more}");
    }
}

const EXEC: &str = "
[pool.base]
[kind.k]
pool = \"base\"
exec = [\"/bin/sh\"]
";

#[test]
fn a_variable_finds_a_schedule_by_its_name() {
    let file = format!("store.memory = true\nschedule.night-run = {{ cron = \"0 3 * * *\", kind = \"echo\" }}{FINE}");
    let schedules = ok(&file, &[("WATERWHEEL_SCHEDULE__NIGHT_RUN__CRON", "0 4 * * *")], &[]).config.schedules;
    let found: Vec<_> = schedules.iter().map(|it| (it.name.as_str(), it.cron.as_str())).collect();
    assert_eq!(found, [("night-run", "0 4 * * *")]);
}

#[test]
fn kinds_of_one_pool_share_their_program() {
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
    assert_eq!((k.start_timeout, k.required), (Duration::from_secs(10), false));
    assert!(format!("{m:?}").contains("[\"A\", \"PATH\"]"), "{m:?}");
}
