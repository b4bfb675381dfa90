//! The lifecycle of a worker process: start, recycling, resizing, and drain.

use std::collections::BTreeSet;

use waterwheel::handler::Recycle;

use super::*;

#[tokio::test]
async fn a_process_is_replaced_after_its_maximum_number_of_jobs() {
    let recycle = Recycle { jobs: Some(3), ..Recycle::default() };
    let pool = pool_of(WorkerProgram { recycle, ..program(&[]) }, 1);
    let mut pids = Vec::new();
    for _ in 0..9 {
        pids.push(pid(&pool).await.as_raw_pid());
    }
    assert!(pids.chunks(3).all(|three| three.iter().all(|pid| *pid == three[0])), "{pids:?}");
    assert_eq!(pids.iter().collect::<BTreeSet<_>>().len(), 3, "{pids:?}");
    assert_eq!(pool.stats().programs[0].failures, 0);
    close(pool).await;
}

#[tokio::test]
async fn a_process_over_its_memory_limit_is_replaced_between_jobs() {
    let recycle = Recycle { memory: Some(250 << 20), ..Recycle::default() };
    let pool = pool_of(WorkerProgram { recycle, ..program(&[]) }, 1);
    let mut pids = BTreeSet::new();
    for _ in 0..9 {
        pids.insert(run(&pool, "grow").await.expect("no job is lost"));
    }
    assert!((3..=5).contains(&pids.len()), "{pids:?}");
    close(pool).await;
}

#[tokio::test]
async fn an_idle_process_is_replaced_at_its_maximum_age() {
    let recycle = Recycle { age: Some(Duration::from_millis(200)), ..Recycle::default() };
    let pool = pool_of(WorkerProgram { recycle, ..program(&[]) }, 1);
    until(&pool, |_| pool.stats().programs[0].starts > 2).await;
    assert_eq!(pool.stats().programs[0].failures, 0);
    close(pool).await;
}

#[tokio::test]
async fn the_number_of_processes_follows_the_number_of_workers() {
    let workers = |count| NonZeroUsize::new(count).unwrap();
    let two = WorkerProgram { jobs_per_process: 2, ..program(&[]) };
    let pool = pool_of(two, 6);
    until(&pool, all(ProcessState::Idle, 3)).await;
    let mut busy = Box::pin(run(&pool, "meet 2"));
    tokio::select! {
        _ = &mut busy => panic!("it waits for a second job"),
        () = until(&pool, |all| all.iter().any(|process| process.running == 1)) => {}
    }
    assert!(pool.resize(workers(1), workers(1)));
    until(&pool, |all| all.len() == 1).await;
    assert!(pool.resize(workers(8), workers(8)));
    until(&pool, |all| all.len() == 4 && all.iter().all(|process| process.state != ProcessState::Starting)).await;
    drop(busy);
    close(pool).await;
}

#[tokio::test]
async fn a_reconfiguration_replaces_the_processes() {
    let pool = pool_of(program(&[]), 2);
    let first = pid(&pool).await;
    let (settings, fresh) =
        (Settings { workers: NonZeroUsize::new(2).unwrap(), ..Settings::default() }, Processes::new(program(&[])));
    pool.reconfigure(settings, vec![fresh.kind("do"), fresh.kind("echo")]);
    assert_ne!(pid(&pool).await, first);
    close(pool).await;
    assert_eq!(test_kill_process(first), Err(rustix::io::Errno::SRCH), "the old process has ended");
}

#[tokio::test]
async fn a_drain_kills_a_process_that_ignores_every_signal() {
    let grace = Duration::from_millis(200);
    let pool = pool_of(WorkerProgram { cancel_grace: grace, ..program(&["stubborn"]) }, 2);
    until(&pool, all(ProcessState::Idle, 2)).await;
    let mut job = Box::pin(run(&pool, "hang"));
    tokio::select! {
        _ = &mut job => panic!("it hangs"),
        () = until(&pool, |all| all.iter().any(|process| process.state == ProcessState::Busy)) => {}
    }
    let pids: Vec<_> = processes(&pool).into_iter().filter_map(|process| process.pid).collect();
    let (failure, report) = tokio::join!(job, pool.close(Duration::ZERO, Duration::from_secs(30)));
    assert_eq!(failure.expect_err("it was stopped").outcome, Outcome::DrainKilled { idempotent: false });
    assert_eq!((report.lost.len(), processes(&pool)), (1, Vec::new()));
    for pid in pids {
        let pid = Pid::from_raw(pid.cast_signed()).unwrap();
        assert_eq!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
    }
}

#[tokio::test]
async fn dropping_a_pool_kills_its_processes() {
    let pool = pool_of(program(&[]), 1);
    let process = pid(&pool).await;
    drop(pool);
    let gone = async {
        while test_kill_process(process).is_ok() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone).await.expect("it is killed and reaped");
}
