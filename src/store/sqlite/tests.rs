//! Faults of the file and of its disk: each is a clear error, and nothing is lost.

mod damage;

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tempfile::TempDir;

use super::{SqliteConnection, SqliteOptions, inspect_sqlite, open_sqlite};
use crate::{
    model::{Job, Output, Reason},
    store::{
        Action, Claimed, Clock, JobName, JobState, JobStore, NewJob, Next, Room, Settle, StoreError, Submission,
        Submitted, Timestamp,
    },
};

fn clock() -> Clock {
    Arc::new(|| Timestamp::from_millis(1_800_000_000_000))
}

fn open(path: &Path) -> Result<Arc<dyn JobStore>, StoreError> {
    open_sqlite(&SqliteOptions::new(path), clock())
}

fn jobs(ids: std::ops::Range<usize>) -> Submission {
    let jobs = ids.map(|id| NewJob::new(id.to_string(), "p", Job::new("k", vec![7; 300])));
    Submission { jobs: jobs.collect(), room: None }
}

async fn claim(store: &Arc<dyn JobStore>, count: usize) -> Vec<Claimed> {
    let session = store.open_session(Duration::from_secs(60)).await.expect("a session");
    store.claim(Room { session, kinds: [("k".to_owned(), count)].into(), bytes: usize::MAX }).await.expect("jobs")
}

fn success(job: Claimed) -> Settle {
    let next = Next::Succeeded(Output::default());
    let (worker, message) = (String::new(), String::new());
    Settle { token: job.token, worker, reason: Reason::Completed, code: 0, message, next }
}

/// A store with 40 commits in its log, copied while it was open, as a kill would leave it.
async fn image(directory: &TempDir) -> PathBuf {
    let path = directory.path().join("live.db");
    let store = open(&path).expect("a store");
    for number in 0..40 {
        store.submit(jobs(number * 5..number * 5 + 5)).await.expect("jobs");
    }
    let copy = directory.path().join("copy.db");
    fs::copy(&path, &copy).expect("a copy");
    fs::copy(directory.path().join("live.db-wal"), log(&copy)).expect("a copy of the log");
    store.close().await;
    copy
}

fn log(path: &Path) -> PathBuf {
    super::beside(path, "-wal")
}

#[tokio::test]
async fn a_damaged_log_is_refused() {
    let directory = TempDir::new().expect("a directory");
    let path = image(&directory).await;
    let intact = fs::read(log(&path)).expect("the log");
    let used = intact.iter().rposition(|byte| *byte != 0).expect("frames") + 1;
    let mut random = StdRng::seed_from_u64(1);
    let (mut found, mut named) = (0, 0);
    for _ in 0..200 {
        let mut damaged = intact[..used].to_vec();
        damaged[random.random_range(0..used)] ^= 1 << random.random_range(0..8);
        fs::write(log(&path), &damaged).expect("a damaged log");
        match super::wal::verify(&path) {
            Err(StoreError::Damaged { .. }) => found += 1,
            // A flip in the last transaction is as a crash within it.
            Ok(Some(_)) => named += 1,
            answer => assert_eq!(answer, Ok(None)),
        }
    }
    assert!(found >= 180 && found + named >= 199, "{found} of 200 flips found, and {named} more named");
    for bit in 0..256 {
        let mut damaged = intact[..used].to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(log(&path), &damaged).expect("a damaged log");
        assert!(matches!(super::wal::verify(&path), Err(StoreError::Damaged { .. })), "bit {bit} of the header");
    }
    let mut damaged = intact.clone();
    damaged[32 + 24 + 10] ^= 1;
    fs::write(log(&path), &damaged).expect("a log whose first frame is damaged");
    assert!(matches!(open(&path), Err(StoreError::Damaged { .. })));
    // A kill cuts the log anywhere. That is no damage.
    for _ in 0..100 {
        fs::write(log(&path), &intact[..random.random_range(0..used)]).expect("a short log");
        assert!(super::wal::verify(&path).is_ok());
    }
    fs::write(log(&path), &intact).expect("the log");
    let store = open(&path).expect("an intact store");
    assert_eq!(store.size().await.expect("a size").jobs, 200);
    store.close().await;
}

#[tokio::test]
async fn what_is_no_store_of_ours_is_refused() {
    let directory = TempDir::new().expect("a directory");
    let newer = directory.path().join("newer.db");
    open(&newer).expect("a store").close().await;
    rusqlite::Connection::open(&newer)
        .and_then(|file| file.pragma_update(None, "user_version", 99))
        .expect("a version");
    let foreign = directory.path().join("foreign.db");
    rusqlite::Connection::open(&foreign).and_then(|file| file.execute_batch("create table t (x)")).expect("a table");
    let text = directory.path().join("text.db");
    fs::write(&text, "not a database at all, but long enough to have a header".repeat(20)).expect("a file");
    let read_only = directory.path().join("read_only.db");
    open(&read_only).expect("a store").close().await;
    fs::set_permissions(&read_only, Permissions::from_mode(0o444)).expect("a mode");
    let used = directory.path().join("used.db");
    let _user = open(&used).expect("a store");
    let orphan = directory.path().join("orphan.db");
    fs::write(log(&orphan), [1; 100]).expect("a log");

    let name = |path: &Path| match open(path).map(|_| ()) {
        Ok(()) => "opened",
        Err(StoreError::Newer { found: 99, known: 1 }) => "newer",
        Err(StoreError::Damaged { .. }) => "damaged",
        Err(StoreError::ReadOnly { .. }) => "read only",
        Err(StoreError::InUse { .. }) => "in use",
        Err(StoreError::File { .. }) => "unusable",
        Err(_) => "other",
    };
    // Root may write to a file whose mode forbids it, and to no file of the kernel's.
    let may_write = if rustix::process::geteuid().is_root() { "opened" } else { "read only" };
    let cases: [(&Path, &str); 7] = [
        (&newer, "newer"),
        (&foreign, "unusable"),
        (&text, "damaged"),
        (&read_only, may_write),
        (&used, "in use"),
        (&orphan, "unusable"),
        (Path::new("/sys/jobs.db"), "read only"),
    ];
    for (path, expected) in cases {
        assert_eq!(name(path), expected, "{}", path.display());
    }
}

#[tokio::test]
async fn a_full_disk_refuses_new_jobs_and_finishes_old_ones() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("jobs.db");
    let store = open(&path).expect("a store");
    store.submit(jobs(0..20)).await.expect("jobs");
    store.close().await;
    // No disk has as much room.
    let options = SqliteOptions { reserve_bytes: u64::MAX, ..SqliteOptions::new(&path) };
    let store = open_sqlite(&options, clock()).expect("a store");
    let claimed = claim(&store, 10).await;
    let (new, old) =
        tokio::join!(store.submit(jobs(20..30)), store.settle(claimed.into_iter().map(success).collect()),);
    assert_eq!(new.expect_err("no room"), StoreError::NoRoom);
    assert_eq!(old.expect("answers"), vec![Some(JobState::Succeeded); 10]);
    assert_eq!(store.size().await.expect("a size").jobs, 10);
    store.close().await;
    let answers = open(&path).expect("a store").submit(jobs(20..30)).await.expect("answers");
    assert!(answers.iter().all(|answer| matches!(answer, Submitted::Created)), "{answers:?}");
}

#[tokio::test]
async fn only_the_owner_may_read_the_files() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("jobs.db");
    let modes = || ["", "-wal", "-shm", ".lock"].map(|suffix| mode(&super::beside(&path, suffix)));
    let store = open(&path).expect("a store");
    assert_eq!(modes(), [0o600; 4]);
    store.close().await;
    // As a backup that was copied back.
    for file in [&path, &super::beside(&path, ".lock")] {
        fs::set_permissions(file, Permissions::from_mode(0o644)).expect("a mode");
    }
    let store = open(&path).expect("a store");
    assert_eq!(modes(), [0o600; 4]);
    store.close().await;
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).expect("a file").permissions().mode() & 0o777
}

/// The names of fields are damaged as by a single bit.
#[tokio::test]
async fn a_check_names_each_job_that_no_server_runs() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("jobs.db");
    let damages = [
        ("spec", r#"spec = replace(spec, 'retain', 'retaif')"#),
        ("spec", r#"spec = json_insert(spec, '$.rtn_timeout', json('{"secs":1,"nanos":0}'))"#),
        ("attempts", r#"attempts = '[{}]'"#),
        ("losses", "losses = -1"),
        ("its payload is damaged", "digest = zeroblob(32)"),
        ("digest", "digest = zeroblob(31)"),
    ];
    let store = open(&path).expect("a store");
    store.submit(jobs(0..damages.len() + 1)).await.expect("jobs");
    store.close().await;
    let file = rusqlite::Connection::open(&path).expect("the file");
    for (id, (_, change)) in damages.iter().enumerate() {
        file.execute(&format!("update jobs set {change} where id = '{id}'"), ()).expect("a damage");
    }
    file.close().expect("an end");
    let named = |(id, (fault, _)): (usize, &(&str, _))| format!("job {id} is unreadable: {fault}");
    let found = inspect_sqlite(&path).expect("facts").damage;
    let found: Vec<_> = found.iter().map(|line| line.split_once(", ").map_or("", |(_, named)| named)).collect();
    assert_eq!(found, damages.iter().enumerate().map(named).collect::<Vec<_>>());
    let store = open(&path).expect("a store");
    let claimed = claim(&store, 10).await;
    assert_eq!(claimed.iter().map(|job| &*job.token.id).collect::<Vec<_>>(), [damages.len().to_string()]);
    store.close().await;
}

/// The files of a directory with their bytes.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    paths.map(|path| (path.clone(), fs::read(path).expect("a file"))).collect()
}

#[tokio::test]
async fn a_check_changes_no_file_and_finds_the_same_again() {
    let (made, directory) = (TempDir::new().expect("a directory"), TempDir::new().expect("a directory"));
    let killed = image(&made).await;
    let log_of_killed = fs::read(log(&killed)).expect("the log");
    let used = log_of_killed.iter().rposition(|byte| *byte != 0).expect("frames") + 1;
    let damaged = |at: usize| {
        let mut log = log_of_killed.clone();
        log[at] ^= 1;
        Some(log)
    };
    let (closed, killed) = (made.path().join("live.db"), Some(&killed));
    let path = directory.path().join("a 100%? #1.db");
    for (case, file, log_bytes, expected) in [
        ("closed", Some(&closed), None, Ok((200, 0))),
        ("killed", killed, Some(log_of_killed.clone()), Ok((200, 0))),
        ("reserved log", Some(&closed), Some(vec![0; 1 << 20]), Ok((200, 0))),
        ("power cut", killed, damaged(used - 1), Ok((195, 1))),
        ("damaged log", killed, damaged(5000), Err("frame 2 of its log is broken")),
        ("empty file", None, Some(log_of_killed.clone()), Err("its log exists, but the file does not, or is empty")),
    ] {
        let file = file.map(|file| fs::read(file).expect("a file"));
        fs::write(&path, file.unwrap_or_default()).expect("the file");
        match log_bytes {
            Some(bytes) => fs::write(log(&path), bytes).expect("the log"),
            None => assert!(!log(&path).exists()),
        }
        let before = contents(directory.path());
        let check = || {
            let facts = inspect_sqlite(&path).map(|facts| (facts.jobs, facts.damage.len()));
            facts.map_err(|error| error.to_string())
        };
        let found = check();
        let is_as_expected = match (&found, expected) {
            (Ok(found), Ok(expected)) => *found == expected,
            (Err(found), Err(expected)) => found.contains(expected),
            _ => false,
        };
        assert!(is_as_expected, "{case}: {found:?}");
        assert_eq!(check(), found, "{case}");
        assert!(contents(directory.path()) == before, "{case}: {:?}", contents(directory.path()).keys());
    }
    assert!(
        matches!(open(&path), Err(StoreError::File { .. })) && log(&path).exists(),
        "the log of an empty file stays"
    );
}

#[tokio::test]
async fn removed_jobs_leave_room_on_a_full_disk() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("jobs.db");
    let store = open(&path).expect("a store");
    store.submit(jobs(0..2000)).await.expect("jobs");
    let ids = || (0..2000).map(|id| JobName::from(&*id.to_string())).collect();
    for action in [Action::Cancel, Action::Delete] {
        store.change(ids(), action).await.expect("changes");
    }
    store.close().await;
    let connection = SqliteConnection::new(rusqlite::Connection::open(&path).expect("the file"), clock());
    assert!(connection.room(0).expect("room") > 2000 * 300, "{:?}", connection.room(0));
}

#[tokio::test]
async fn a_file_that_another_program_locks_is_away_at_once_and_nothing_is_lost() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("jobs.db");
    let store = open(&path).expect("a store");
    store.submit(jobs(0..1)).await.expect("jobs");
    let other = rusqlite::Connection::open(&path).expect("the file");
    other.execute_batch("begin immediate").expect("a lock");
    let refused = tokio::time::timeout(Duration::from_secs(4), store.submit(jobs(1..2))).await.expect("an answer");
    assert!(refused.as_ref().is_err_and(StoreError::is_outage), "{refused:?}");
    other.execute_batch("rollback").expect("an end");
    store.submit(jobs(1..2)).await.expect("jobs");
    assert_eq!(store.size().await.expect("a size").jobs, 2);
    store.close().await;
}

/// Python's SQLite holds the file in a transaction.
#[tokio::test]
async fn an_outside_reader_is_named() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("jobs.db");
    let store = open(&path).expect("a store");
    store.submit(jobs(0..1)).await.expect("jobs");
    let shared_memory = super::beside(&path, "-shm");
    assert_eq!(super::readers::others(&shared_memory), "");
    let script = "import sqlite3, sys\nfile = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                  file.execute('begin')\nfile.execute('select count(*) from jobs').fetchall()\nprint(flush=True)\ninput()";
    let mut python = tokio::process::Command::new("python3");
    python.args(["-c", script]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut reader = python.spawn().expect("python3");
    let mut line = [0];
    let output = reader.stdout.as_mut().expect("an output");
    tokio::io::AsyncReadExt::read_exact(output, &mut line).await.expect("it reads");
    let named = format!("python3 (process {})", reader.id().expect("a process"));
    assert_eq!(super::readers::others(&shared_memory), named);
    reader.kill().await.expect("it ends");
    store.close().await;
}

/// SQLite finds the log by the name of the file, and would remove the log of the store for another file of that name.
#[tokio::test]
async fn no_reader_is_opened_while_another_file_has_the_name() {
    for content in ["", "another file"] {
        let directory = TempDir::new().expect("a directory");
        let (path, away) = (directory.path().join("jobs.db"), directory.path().join("away"));
        let store = open(&path).expect("a store");
        store.submit(jobs(0..1)).await.expect("a job");
        fs::rename(&path, &away).expect("it is moved");
        fs::write(&path, content).expect("another file");
        let refused = store.depths().await.expect_err("another file");
        assert!(matches!(refused, StoreError::File { .. }), "{content:?}: {refused:?}");
        fs::rename(&away, &path).expect("it is back");
        let stored = tokio::time::timeout(Duration::from_secs(20), store.submit(jobs(1..2))).await.expect("an answer");
        assert!(matches!(stored.as_deref(), Ok([Submitted::Created])), "{content:?}: {stored:?}");
        assert_eq!(store.depths().await.expect("an answer")[0].1.ready, 2);
        store.close().await;
    }
}
