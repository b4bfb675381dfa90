//! Steps of the wall clock, which libfaketime makes while a server runs.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::SystemTime,
};

use tempfile::TempDir;
use waterwheel::proto::{CreateJobRequest, DetachedJob, DetachedJobFilter, JobState};

use super::{Jobs, outcomes, work};
use crate::{
    process::{Process, until},
    support::skipped,
};

const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
/// Offsets of the server's clock from the true one, in seconds. Steps follow each other: −1 h, more than +1 h, +10
/// days, back.
const OFFSETS: [i64; 6] = [-3600, 60, 300, 864_000, -5, 0];
const JOBS: usize = 200;
const HELD: usize = 4;
const CONFIG: &str = r#"
    store.path = "jobs.db"
    [pool.one]
    workers = 8
    [kind.held]
    pool = "one"
    exec = ["/bin/sh", "-c", "read fifo; cat $fifo"]
    [kind.sleep]
    pool = "one"
    builtin = "sleep"
    retain_for = "720h"
    [schedule.often]
    cron = "* * * * * *"
    kind = "sleep"
    payload = "0"
    overlap = "queue"
"#;

/// The clock of a server, which differs from the true one by what a file says.
pub(super) struct Clock(TempDir);

impl Clock {
    /// `None`, and a line that says so, where the library is not installed.
    pub(super) fn new() -> Option<Self> {
        if !Path::new(LIBRARY).exists() {
            skipped("libfaketime is not installed; install Debian's package `libfaketime`");
            return None;
        }
        let clock = Self(tempfile::tempdir().unwrap());
        clock.differ(0);
        Some(clock)
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("offset")
    }

    pub(super) fn differ(&self, seconds: i64) {
        let new = self.0.path().join("new");
        std::fs::write(&new, format!("{seconds:+}")).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    pub(super) async fn serve(&self, config: &str) -> Process {
        let file = self.file();
        let env = [
            ("LD_PRELOAD", LIBRARY),
            ("FAKETIME_TIMESTAMP_FILE", file.to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        Process::serve_with(config, &env).await
    }
}

/// A pipe for jobs that run until it is opened.
struct Pipe(PathBuf);

impl Pipe {
    fn new(dir: &TempDir) -> Self {
        let path = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        Self(path)
    }

    fn job(&self, number: usize) -> CreateJobRequest {
        let job = work("held", format!("{}\n", self.0.display()));
        CreateJobRequest { job_id: format!("held-{number}"), ..job }
    }

    async fn open(self) {
        tokio::task::spawn_blocking(|| std::fs::File::options().write(true).open(self.0).unwrap()).await.unwrap();
    }
}

/// The jobs of the schedule.
async fn ticks(jobs: &Jobs) -> BTreeMap<String, i64> {
    let labels = DetachedJobFilter { label_key: "schedule".into(), label_value: "often".into(), ..Default::default() };
    jobs.list_by(100, labels).await.iter().map(|job| (job.job_id.clone(), tick_of(job))).collect()
}

/// The time in the id of a schedule's job.
fn tick_of(job: &DetachedJob) -> i64 {
    let time = job.job_id.rsplit('/').next().unwrap();
    let time = humantime::parse_rfc3339(time).unwrap().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    time.as_secs().cast_signed()
}

fn true_time() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs().cast_signed()
}

async fn assert_each_ran_once(jobs: &Jobs) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for job in jobs.list_by(100, DetachedJobFilter::default()).await {
        // The schedule goes on.
        let is_open = job.state() < JobState::Succeeded && job.job_id.starts_with("schedule/");
        let expected = if is_open { vec![] } else { vec!["COMPLETED"] };
        assert_eq!(outcomes(&job), expected, "{job:?}");
        *kinds.entry(job.job_id.split(['-', '/']).next().unwrap().to_owned()).or_default() += 1;
    }
    kinds
}

#[tokio::test]
async fn no_job_is_stopped_or_runs_twice_when_the_clock_steps_and_schedules_follow_it() {
    let Some(clock) = Clock::new() else { return };
    let (process, pipe) = (clock.serve(CONFIG).await, Pipe::new(&clock.0));
    let jobs = Jobs::of(&process).await;
    for number in 0..HELD {
        jobs.created(pipe.job(number)).await;
    }
    for number in HELD..JOBS {
        jobs.created(CreateJobRequest { job_id: format!("work-{number}"), ..work("sleep", "100") }).await;
    }
    for offset in OFFSETS {
        // Ticks of other offsets may lie in the same minute.
        let earlier = ticks(&jobs).await;
        let since = true_time() + 1 + offset;
        clock.differ(offset);
        let is_new = |(id, time): (&String, &i64)| (since..since + 60).contains(time) && !earlier.contains_key(id);
        until(&format!("a tick at {offset} s"), async || ticks(&jobs).await.iter().any(is_new)).await;
    }
    pipe.open().await;
    for number in 0..JOBS {
        let name = if number < HELD { "held" } else { "work" };
        jobs.ended(&format!("{name}-{number}")).await;
    }
    let kinds = assert_each_ran_once(&jobs).await;
    assert_eq!((kinds["held"], kinds["work"]), (HELD, JOBS - HELD));
    assert!(kinds["schedule"] >= OFFSETS.len(), "{kinds:?}");
    let log = process.log();
    assert!(!log.contains("lease") && !log.contains("was not created"), "{log}");
    assert_eq!(log.matches("the last tick of a schedule is in the future").count(), 2, "{log}");
}
