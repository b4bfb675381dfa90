//! Kinds of one program, and schedules.

use super::{Duration, FINE, Handler, ok};
use crate::handler::Recycle;

#[test]
fn a_variable_finds_a_schedule_by_its_name() {
    let file = format!("store.memory = true\nschedule.night-run = {{ cron = \"0 3 * * *\", kind = \"echo\" }}{FINE}");
    let schedules = ok(&file, &[("WATERWHEEL_SCHEDULE__NIGHT_RUN__CRON", "0 4 * * *")], &[]).config.schedules;
    let found: Vec<_> = schedules.iter().map(|it| (it.name.as_str(), it.cron.as_str())).collect();
    assert_eq!(found, [("night-run", "0 4 * * *")]);
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
