//! Kills a process that works on a SQLite store, again and again. What it acknowledged must be there.

use std::{
    collections::{HashMap, HashSet},
    io::{BufRead as _, Write as _, stdin, stdout},
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::Command,
};

use super::TestClock;
use crate::{
    model::{Job, Output, Reason},
    store::{
        BATCH, Filter, JobState, JobStore, NewJob, Next, Room, Settle, SqliteOptions, Submission, Submitted,
        inspect_sqlite, open_sqlite,
    },
    task::Tasks,
};

const ROUNDS: u64 = 24;
const CHILD: &str = "store::tests::crash::works_until_it_is_killed";

#[tokio::test]
async fn a_killed_process_loses_nothing() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("jobs.db");
    let mut random = StdRng::seed_from_u64(7);
    let (mut accepted, mut settled) = (HashSet::new(), HashSet::new());
    for round in 0..ROUNDS {
        let lines = random.random_range(1..600);
        for line in run_and_kill(&path, round, lines).await {
            match line.split_once(' ') {
                Some(("accepted", id)) => assert!(accepted.insert(id.to_owned()), "{id} was accepted twice"),
                Some(("settled", id)) => assert!(settled.insert(id.to_owned()), "{id} was settled twice"),
                _ => {}
            }
        }
        let store = open_sqlite(&SqliteOptions::new(&path), TestClock::new().clock()).expect("a store after a kill");
        let states = states(&*store).await;
        for id in &accepted {
            assert!(states.contains_key(id), "{id} is lost");
        }
        for id in &settled {
            assert_eq!(states[id], JobState::Succeeded, "{id}");
        }
        if let Some(id) = accepted.iter().next() {
            let job = store.get(id, true).await.expect("an answer").expect("the job");
            assert_eq!(&job.request.job.payload, id.as_bytes());
        }
        store.close().await;
        inspect_sqlite(&path).expect("an intact store");
    }
    assert!(settled.len() > 100, "only {} jobs ended", settled.len());
}

/// The states of all jobs.
async fn states(store: &dyn JobStore) -> HashMap<String, JobState> {
    let (mut states, mut next) = (HashMap::new(), None);
    loop {
        let page = store.list(Filter::default(), next, BATCH).await.expect("a page");
        states.extend(page.jobs.into_iter().map(|job| (job.request.id, job.state)));
        next = page.next;
        if next.is_none() {
            return states;
        }
    }
}

/// The lines of a child that is killed after some.
async fn run_and_kill(path: &Path, round: u64, lines: usize) -> Vec<String> {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program)
        .args(["--exact", CHILD, "--ignored", "--nocapture", "--test-threads=1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a child");
    let order = format!("{}\n{round}\n", path.display());
    child.stdin.take().expect("its input").write_all(order.as_bytes()).await.expect("it reads");
    let mut output = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut told = Vec::new();
    while let Some(line) = output.next_line().await.expect("its output") {
        told.push(line);
        if told.len() == lines {
            // SIGKILL. What is in the pipe was acknowledged before.
            child.start_kill().expect("a kill");
        }
    }
    child.wait().await.expect("its end");
    assert!(told.len() >= lines, "it ended by itself: {}", told.join("\n"));
    // The last line may be cut.
    told.pop();
    told
}

#[test]
#[ignore = "the test above starts it"]
fn works_until_it_is_killed() {
    let mut lines = stdin().lock().lines().map_while(Result::ok);
    let (path, round) = (PathBuf::from(lines.next().expect("a path")), lines.next().expect("a round"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let store = open_sqlite(&SqliteOptions::new(path), TestClock::new().clock()).expect("a store");
        let tasks = Tasks::new();
        for creator in 0..8 {
            tasks.spawn(create(store.clone(), format!("{round}-{creator}")));
        }
        tasks.spawn(finish(store));
        tasks.wait().await;
    });
}

fn tell(lines: &str) {
    stdout().lock().write_all(lines.as_bytes()).expect("the parent reads");
}

async fn create(store: Arc<dyn JobStore>, name: String) {
    for number in 0..u64::MAX {
        let jobs = (0..number % 7 + 1).map(|index| {
            let id = format!("{name}-{number}-{index}");
            let mut job = Job::new("k", id.clone());
            if index % 3 == 2 {
                job.ordering_key.clone_from(&name);
            }
            NewJob::new(id, "p", job)
        });
        let submission = Submission { jobs: jobs.collect(), room: None };
        let ids: Vec<_> = submission.jobs.iter().map(|job| job.id.clone()).collect();
        let answers = store.submit(submission).await.expect("answers");
        for (id, answer) in ids.iter().zip(answers) {
            assert!(matches!(answer, Submitted::Created), "{id}: {answer:?}");
            tell(&format!("accepted {id}\n"));
        }
    }
}

async fn finish(store: Arc<dyn JobStore>) {
    let session = store.open_session(Duration::from_secs(60)).await.expect("a session");
    loop {
        let claimed =
            store.claim(Room { session, kinds: [("k".to_owned(), 20)].into(), bytes: usize::MAX }).await.expect("jobs");
        if claimed.is_empty() {
            store.wakes().ready().await;
        }
        let end = |job: crate::store::Claimed| Settle {
            token: job.token,
            worker: "w".to_owned(),
            reason: Reason::Completed,
            code: 0,
            message: String::new(),
            next: Next::Succeeded(Output { bytes: job.request.job.payload, content_type: String::new() }),
        };
        let ends: Vec<_> = claimed.into_iter().map(end).collect();
        let ids: Vec<_> = ends.iter().map(|end| end.token.id.clone()).collect();
        let states = store.settle(ends).await.expect("answers");
        for (id, state) in ids.iter().zip(states) {
            assert_eq!(state, Some(JobState::Succeeded));
            tell(&format!("settled {id}\n"));
        }
    }
}
