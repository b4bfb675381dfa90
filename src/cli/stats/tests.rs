//! Tests of `waterwheel stats` against a scripted server, and of the text of a snapshot.

use clap::Parser;

use super::*;
use crate::{
    cli::fake::{self, Line, Ran, ReadBy, Script},
    proto::{
        AttachedWorkerStats, Distribution, FactoryStats, JobCounts, KindStats, Phase, PoolStats, Problem, ProcessState,
        ProcessStats, ProgramStats, QueueStats, RejectedCount, SizeStats, WorkerState, WorkerStats,
    },
};

fn in_phase(phase: Phase) -> Stats {
    Stats {
        phase: phase as i32,
        uptime: Some("1.500s".parse().unwrap()),
        pools: vec![PoolStats {
            name: "cpu".to_owned(),
            phase: phase as i32,
            queue: Some(QueueStats::default()),
            jobs: Some(JobCounts {
                rejected: vec![RejectedCount { reason: "SHED".to_owned(), count: 1 }],
                ..JobCounts::default()
            }),
            kinds: vec![KindStats {
                name: "echo".to_owned(),
                queue_wait: Some(Distribution::default()),
                ..KindStats::default()
            }],
            workers: vec![WorkerStats { state: WorkerState::Idle as i32, ..WorkerStats::default() }],
            ..PoolStats::default()
        }],
        ..Stats::default()
    }
}

async fn stats(line: &[&str], read_by: ReadBy, snapshots: Vec<Stats>) -> Ran {
    let line = Line::<StatsArgs>::try_parse_from(["stats"].iter().chain(line)).unwrap();
    let format = line.format;
    let script = Script { snapshots, ..Script::default() };
    fake::run(script, read_by, format, async |address, console| {
        let mut args = line.args;
        args.server.server = Some(address);
        run(args, console).await
    })
    .await
}

#[tokio::test]
async fn one_snapshot_is_shown_as_text() {
    let line = ["--pool", "cpu"];
    let ran = stats(&line, ReadBy::Program, vec![in_phase(Phase::Serving)]).await;
    assert!(ran.text().starts_with("SERVING  up 1.5s\n\npool cpu"));
    assert_eq!(ran.seen.stats, [("cpu".to_owned(), 0)]);
    assert_eq!(ran.exit, Exit::Done);
}

#[tokio::test]
async fn json_uses_the_names_of_the_contract() {
    let line = ["--output", "json"];
    let ran = stats(&line, ReadBy::Program, vec![in_phase(Phase::Serving)]).await;
    let value: serde_json::Value = serde_json::from_str(&ran.text()).unwrap();
    assert_eq!(value["phase"], "PHASE_SERVING");
    assert_eq!(value["uptime"], "1.500s");
    let pool = &value["pools"][0];
    assert_eq!(pool["jobs"]["rejected"][0]["reason"], "SHED");
    assert_eq!(pool["kinds"][0]["queue_wait"]["count"], 0);
    assert_eq!(pool["workers"][0]["state"], "WORKER_STATE_IDLE");
}

#[tokio::test]
async fn watching_prints_snapshot_after_snapshot() {
    let snapshots = vec![in_phase(Phase::Serving), in_phase(Phase::Draining)];
    let line = ["--watch", "--interval", "250ms"];
    let ran = stats(&line, ReadBy::Program, snapshots.clone()).await;
    assert_eq!(ran.seen.stats, [(String::new(), 250)]);
    assert!(ran.text().contains("\n\nDRAINING  up 1.5s\n"), "{}", ran.text());
    assert!(!ran.text().contains('\x1b'));

    let line = ["--watch", "--output", "json"];
    let ran = stats(&line, ReadBy::Person, snapshots).await;
    assert_eq!(ran.text().lines().count(), 2);
}

#[tokio::test]
async fn an_answer_without_a_snapshot_is_reported() {
    let ran = stats(&[], ReadBy::Program, Vec::new()).await;
    assert!(ran.err.contains("has no snapshot"), "{}", ran.err);
    assert_eq!(ran.exit, Exit::Failed);
}

#[test]
fn intervals_are_those_of_the_server() {
    for interval in ["99ms", "61s", "soon"] {
        let line = ["stats", "--watch", "--interval", interval];
        assert!(Line::<StatsArgs>::try_parse_from(line).is_err(), "{interval}");
    }
    assert!(Line::<StatsArgs>::try_parse_from(["stats", "--interval", "1s"]).is_err());
    assert!(Line::<StatsArgs>::try_parse_from(["stats", "--watch", "--interval", "60s"]).is_ok());
}

#[test]
fn q_escape_and_control_c_leave() {
    let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
    let none = KeyModifiers::NONE;
    for (code, modifiers, expected) in [
        (KeyCode::Char('q'), none, true),
        (KeyCode::Esc, none, true),
        (KeyCode::Char('c'), KeyModifiers::CONTROL, true),
        (KeyCode::Char('c'), none, false),
        (KeyCode::Enter, none, false),
    ] {
        assert_eq!(leaves(&key(code, modifiers)), expected, "{code:?}");
    }
    assert!(!leaves(&Event::Resize(80, 24)));
}

fn us(micros: u64) -> Option<prost_types::Duration> {
    Some(Duration::from_micros(micros).try_into().unwrap())
}

fn worker(id: u32, state: WorkerState) -> WorkerStats {
    WorkerStats {
        id,
        state: state as i32,
        completed: 5,
        failed: 1,
        mean_run_time: us(2_400),
        since_progress: us(300_000),
        ..WorkerStats::default()
    }
}

fn busy_pool() -> PoolStats {
    PoolStats {
        name: "cpu".to_owned(),
        phase: Phase::Serving as i32,
        queue: Some(QueueStats {
            jobs: 3,
            jobs_capacity: 64,
            bytes: 12_288,
            bytes_capacity: 64 << 20,
            waiting: 2,
            waiting_capacity: 64,
            oldest_age: us(4_100),
            expected_wait: us(12_000),
        }),
        in_flight: 1,
        utilization: 0.5,
        slow_polls: 2,
        jobs: Some(JobCounts {
            accepted: 120,
            completed: 110,
            failed: 2,
            rejected: vec![RejectedCount { reason: "QUEUE_FULL".to_owned(), count: 12 }],
            ..JobCounts::default()
        }),
        kinds: vec![KindStats {
            name: "sha256".to_owned(),
            queue_wait: Some(Distribution {
                count: 110,
                p50: us(20),
                p90: us(400),
                p99: us(9_000),
                max: us(1_503_000),
            }),
            ..KindStats::default()
        }],
        workers: vec![
            WorkerStats { job_id: "0193a".to_owned(), job_age: us(1_200_000), ..worker(0, WorkerState::Busy) },
            worker(1, WorkerState::Idle),
            WorkerStats { completed: 0, failed: 0, ..worker(2, WorkerState::Stuck) },
        ],
        ..PoolStats::default()
    }
}

fn sanitized(stats: &Stats) -> String {
    anstream::adapter::strip_str(&snapshot(stats)).to_string()
}

#[test]
fn a_busy_pool_shows_everything() {
    let stats =
        Stats { phase: Phase::Serving as i32, uptime: us(123_000_000), pools: vec![busy_pool()], ..Stats::default() };
    assert_eq!(
        sanitized(&stats),
        "\
SERVING  up 2m 3s

pool cpu  SERVING  1 of 2 workers busy, 50%
  queue    3/64 jobs  12KiB/64MiB  2/64 waiting  oldest 4.1ms  expected wait 12ms
  jobs     120 accepted  110 completed  2 failed  0 cancelled  0 expired  0 panicked  0 shed
  refused  12 QUEUE_FULL
  slow     2 handler polls blocked their thread for too long
  kind    time   count     p50    p90    p99   max
  sha256  queue    110  0.02ms  0.4ms  9.0ms  1.5s
          run        0       -      -      -     -
  worker  state  completed  failed   mean   progress  job
       0  busy           5       1  2.4ms  300ms ago  0193a for 1.2s
       1  idle           5       1  2.4ms  300ms ago
       2  stuck          0       0      -  300ms ago
"
    );
}

#[test]
fn problems_come_first_and_the_last_minute_is_beside_the_usual_one() {
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    let mut stats = Stats { uptime: us(1), now: at(1000), ..Stats::default() };
    assert_eq!(snapshot(&stats).lines().count(), 1, "the listener of callers does not judge");
    stats.judge_time = at(999);
    assert!(sanitized(&stats).contains("\nAll pools keep up\n"));
    stats.judge_time = at(900);
    assert!(sanitized(&stats).contains("\nNot judged for 1m 40s\n"));
    stats.judge_time = at(1000);
    stats.problems.push(Problem {
        title: "charge runs 14 times as long as usual".into(),
        detail: "415 ms".into(),
        todo: "look".into(),
        since: at(940),
        ..Problem::default()
    });
    assert!(
        sanitized(&stats).contains(
            "\n1 thing needs attention\n  charge runs 14 times as long as usual  for 1m 0s\n    415 ms\n    look\n"
        ),
        "{}",
        sanitized(&stats)
    );
    let run = |millis: u64| Some(Distribution { count: 9, p50: us(millis * 1000), ..Distribution::default() });
    let mut pool = busy_pool();
    pool.kinds[0] = KindStats { recent_run: run(415), usual_run: run(39), run_time: run(40), ..pool.kinds[0].clone() };
    stats.pools.push(pool);
    let text = sanitized(&stats);
    let rows: Vec<_> = text.lines().skip_while(|line| !line.contains("last minute queue")).take(5).collect();
    let cells = |row: &str| {
        row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).take(3).collect::<Vec<_>>().join(" ")
    };
    let rows: Vec<_> = rows.into_iter().map(cells).collect();
    assert_eq!(rows[1..4], ["last minute run 9 415ms", "usual run 9 39ms", "since start queue 110 0.02ms"], "{text}");
}

#[test]
fn many_idle_workers_share_a_line() {
    let idle = (1..=8).map(|id| worker(id, WorkerState::Idle));
    let stats = Stats {
        phase: Phase::Draining as i32,
        uptime: us(1_000_000),
        pools: vec![PoolStats {
            name: "io".to_owned(),
            phase: Phase::Draining as i32,
            workers: idle.chain([worker(9, WorkerState::Draining)]).collect(),
            in_flight: 1,
            ..PoolStats::default()
        }],
        ..Stats::default()
    };
    assert_eq!(
        sanitized(&stats),
        "\
DRAINING  up 1.0s

pool io  DRAINING  1 of 9 workers busy, 0%
  queue    0/0 jobs  0B/0B  oldest 0ms  expected wait 0ms
  jobs     0 accepted  0 completed  0 failed  0 cancelled  0 expired  0 panicked  0 shed
  worker  state     completed  failed   mean   progress  job
       9  draining          5       1  2.4ms  300ms ago
  8 idle workers  40 completed  8 failed
"
    );
}

#[test]
fn a_snapshot_without_pools_is_one_line() {
    let stats = Stats { phase: Phase::Starting as i32, ..Stats::default() };
    assert_eq!(sanitized(&stats), "STARTING  up 0ms\n");
}

#[test]
fn what_an_operator_did_and_what_fails_stands_out() {
    let size = SizeStats { min: 2, max: 8, workers: 3, retiring: 1, slowdown: 1.0, held_back: false };
    let factory = FactoryStats { failures: 9, in_a_row: 4, retry_in: us(1_500_000) };
    let mut pool = PoolStats { paused: us(12_000_000), size: Some(size), ..busy_pool() };
    pool.kinds[0].factory = Some(factory);
    let text = sanitized(&Stats { phase: Phase::Serving as i32, pools: vec![pool], ..Stats::default() });
    for line in [
        "  paused   for 12s: no job starts until \"waterwheel resume\"\n",
        "  size     3 workers of 2 to 8, 1 more until their jobs end\n",
        "  failing  no handler of sha256 could be made, 4 times in a row; next try in 1.5s\n",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    let fixed = SizeStats { min: 2, max: 2, workers: 2, ..SizeStats::default() };
    let pool = PoolStats { size: Some(fixed), ..busy_pool() };
    assert!(!sanitized(&Stats { pools: vec![pool], ..Stats::default() }).contains("size"));
}

#[test]
fn programs_and_attached_workers_are_shown() {
    let process = |state: ProcessState| ProcessStats {
        state: state.into(),
        jobs: 500,
        memory_bytes: 8 << 20,
        ..ProcessStats::default()
    };
    let thumbs = ProgramStats {
        name: "thumbs".into(),
        processes: vec![process(ProcessState::Idle), process(ProcessState::Failing)],
        starts: 3,
        failures: 1,
        last_failure: "thumbs exited with 1".into(),
        ..ProgramStats::default()
    };
    let far = AttachedWorkerStats {
        name: "far 2".into(),
        peer: "192.0.2.1:9".into(),
        concurrency: 4,
        running: 2,
        abandoned: 1,
        jobs: 7,
        ..AttachedWorkerStats::default()
    };
    let pool = PoolStats { name: "cpu".into(), programs: vec![thumbs], attached: vec![far], ..PoolStats::default() };
    let text = snapshot(&Stats { pools: vec![pool], ..Stats::default() });
    for told in [
        "program thumbs  1 idle  ",
        "  1000 jobs  16MiB  3 started",
        "1 failed, the last one: thumbs exited with 1",
        "far 2     192.0.2.1:9      4        2     7  ",
        "1 ignored a cancel",
    ] {
        assert!(text.contains(told), "{told}: {text}");
    }
}
