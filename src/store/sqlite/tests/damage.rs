//! Single bits of a store's files are flipped: no job runs with another payload, each damage that costs a job is named,
//! and only damaged rows are lost. `DAMAGE_SEEDS=200` flips that many bits in each part. Reports name what is lost, and
//! are bounded.

use std::os::unix::fs::FileExt as _;

use super::*;
use crate::store::sqlite::{beside, check::MAGIC, inspect_sqlite, salvage_sqlite};

const JOBS: usize = 300;
/// Jobs of one page of the table, or of one transaction.
const MOST_LOST: usize = 60;

/// A part of the files, and the bits that may be flipped.
struct Part {
    name: &'static str,
    /// The file, and its log if it has one.
    files: [Option<Vec<u8>>; 2],
    /// The file that is damaged, and its bytes that are in use.
    damaged: usize,
    bytes: Vec<usize>,
}

fn payload(id: usize) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(id as u64);
    (0..random.random_range(100..700)).map(|_| random.random()).collect()
}

/// As a kill leaves the files, and as a clean end does.
async fn parts(directory: &TempDir) -> Vec<Part> {
    let path = directory.path().join("live.db");
    let store = open(&path).expect("a store");
    for first in (0..JOBS).step_by(5) {
        let jobs = (first..first + 5).map(|id| NewJob::new(id.to_string(), "p", Job::new("k", payload(id))));
        store.submit(Submission { jobs: jobs.collect(), session: None }).await.expect("jobs");
    }
    let killed = [&path, &log(&path)].map(|file| Some(fs::read(file).expect("a file")));
    store.close().await;
    let closed = [Some(fs::read(&path).expect("the file")), None];
    let used = killed[1].as_ref().and_then(|log| log.iter().rposition(|byte| *byte != 0)).expect("frames") + 1;
    let connection = rusqlite::Connection::open(&path).expect("the file");
    let mut pages = connection
        .prepare("select pageno - 1 from dbstat where name in (select name from pragma_index_list('jobs'))")
        .expect("statistics");
    let pages = pages.query_map((), |row| row.get::<_, i64>(0)).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let in_page = |page: i64| page as usize * 4096..(page as usize + 1) * 4096;
    let indexes: Vec<_> = pages.expect("pages").into_iter().flat_map(in_page).collect();
    let all = (0..closed[0].as_ref().map_or(0, Vec::len)).collect();
    vec![
        Part { name: "log", files: killed, damaged: 1, bytes: (0..used).collect() },
        Part { name: "indexes", files: closed.clone(), damaged: 0, bytes: indexes },
        Part { name: "file", files: closed, damaged: 0, bytes: all },
    ]
}

/// Runs all jobs of a store. Returns their payloads, or the error.
async fn run(path: &Path) -> Result<BTreeMap<usize, Vec<u8>>, StoreError> {
    let store = open(path)?;
    let work = async {
        let session = store.open_session(Duration::from_secs(60)).await?;
        let (mut payloads, mut room) = (BTreeMap::new(), Room { session, kinds: BTreeMap::new(), bytes: usize::MAX });
        room.kinds.insert("k".to_owned(), JOBS);
        loop {
            let jobs = store.claim(room.clone()).await?;
            if jobs.is_empty() {
                return Ok(payloads);
            }
            payloads.extend(
                jobs.iter().map(|job| (job.token.id.parse().unwrap_or(JOBS), job.request.job.payload.to_vec())),
            );
            store.settle(jobs.into_iter().map(success).collect()).await?;
        }
    };
    let ran = work.await;
    store.close().await;
    ran
}

/// What became of a flipped bit.
#[derive(Debug, Default)]
struct Tally {
    named: usize,
    lost: usize,
    /// SQLite cannot read the list of tables.
    hopeless: usize,
    unnamed: Vec<String>,
    wrong: Vec<String>,
}

async fn flip(part: &Part, seed: u64, tally: &mut Tally) {
    let directory = TempDir::new().expect("a directory");
    let mut random = StdRng::seed_from_u64(seed);
    let mut files = part.files.clone();
    let byte = part.bytes[random.random_range(0..part.bytes.len())];
    files[part.damaged].as_mut().expect("a file")[byte] ^= 1 << random.random_range(0..8);
    let copy = |name: &str| {
        let path = directory.path().join(name);
        for (bytes, path) in files.iter().zip([path.clone(), log(&path)]) {
            if let Some(bytes) = bytes {
                fs::write(path, bytes).expect("a file");
            }
        }
        path
    };
    let case = format!("{} {seed}: byte {byte}", part.name);
    let is_named = inspect_sqlite(&copy("checked.db")).map_or(true, |facts| !facts.damage.is_empty());
    let mut check = |ran: &BTreeMap<usize, Vec<u8>>| {
        let wrong = ran.iter().filter(|(id, found)| **found != payload(**id));
        tally.wrong.extend(wrong.map(|(id, _)| format!("{case}: job {id}")));
    };
    let ran = run(&copy("run.db")).await;
    if let Ok(ran) = &ran {
        check(ran);
    }
    let new = directory.path().join("new.db");
    if let Err(error) = salvage_sqlite(&copy("damaged.db"), &new) {
        assert!(is_named && matches!(error, StoreError::Damaged { .. }), "{case}: {error}");
        tally.hopeless += 1;
        return;
    }
    let saved = run(&new).await.unwrap_or_else(|error| panic!("{case}: {error}"));
    check(&saved);
    let lost = JOBS - saved.keys().filter(|id| **id < JOBS).count();
    assert!(lost <= MOST_LOST, "{case}: {lost} jobs are lost");
    tally.lost += lost;
    tally.named += usize::from(is_named);
    let is_whole = lost == 0 && ran.as_ref().is_ok_and(|ran| ran.len() == JOBS);
    if !is_whole && !is_named && ran.is_ok() {
        tally.unnamed.push(case);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flipped_bit_costs_no_more_than_what_it_damages() {
    #[expect(clippy::disallowed_methods, reason = "a longer run is asked for by hand")]
    let seeds = std::env::var("DAMAGE_SEEDS").map_or(4, |seeds| seeds.parse().expect("a number"));
    let (directory, mut faults) = (TempDir::new().expect("a directory"), Vec::new());
    for part in parts(&directory).await {
        let mut tally = Tally::default();
        for seed in 0..seeds {
            flip(&part, seed, &mut tally).await;
        }
        let Tally { named, lost, hopeless, unnamed, wrong } = tally;
        eprintln!("{}: {seeds} flips, {named} named, {lost} jobs lost, {hopeless} files without tables", part.name);
        faults.extend(unnamed.into_iter().map(|case| format!("{case}: nothing names it")));
        faults.extend(wrong);
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[tokio::test]
async fn a_report_names_at_most_100_faults() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("jobs.db");
    let store = open(&path).expect("a store");
    store.submit(jobs(0..150)).await.expect("jobs");
    store.close().await;
    let file = rusqlite::Connection::open(&path).expect("the file");
    assert_eq!(file.execute("update jobs set digest = zeroblob(32)", ()), Ok(150));
    drop(file);
    let facts = inspect_sqlite(&path).expect("what is found");
    let saved = salvage_sqlite(&path, &directory.path().join("new.db")).expect("a copy");
    assert_eq!((facts.damage.len(), saved.damage.len(), saved.jobs), (100, 100, 150));
}

#[tokio::test]
async fn the_rows_of_a_page_that_cannot_be_read_are_named() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("jobs.db");
    let store = open(&path).expect("a store");
    store.submit(jobs(0..150)).await.expect("jobs");
    store.close().await;
    let connection = rusqlite::Connection::open(&path).expect("the file");
    let first: i64 = connection.query_row("select min(row) from jobs", (), |row| row.get(0)).expect("a row");
    let sql = "select ncell, pageno from dbstat where name = 'jobs' and pagetype = 'leaf' order by path";
    let mut pages = connection.prepare(sql).expect("statistics");
    let pages = pages.query_map((), |page| Ok((page.get(0)?, page.get::<_, i64>(1)?)));
    let pages: Vec<(i64, i64)> = pages.and_then(Iterator::collect).expect("pages");
    let (before, (count, page)) = (pages[0].0, pages[1]);
    let file = fs::OpenOptions::new().write(true).open(&path).expect("the file");
    file.write_all_at(&[0], (page as u64 - 1) * 4096).expect("a page of no type");

    let named = format!("rows {} to {} cannot be read", first + before, first + before + count - 1);
    let facts = inspect_sqlite(&path).expect("what is found");
    assert!(facts.damage.contains(&named), "{named}: {:?}", facts.damage);
    let saved = salvage_sqlite(&path, &directory.path().join("new.db")).expect("a copy");
    assert_eq!((saved.jobs, saved.damage), (150 - count as u64, vec![named]));
}

#[test]
fn a_file_shorter_than_a_header_is_no_store() {
    let directory = TempDir::new().expect("a directory");
    let path = directory.path().join("jobs.db");
    for length in 1..MAGIC.len() {
        fs::write(&path, &MAGIC[..length]).expect("a file");
        assert!(matches!(inspect_sqlite(&path), Err(StoreError::File { .. })), "{length} bytes");
        assert!(!beside(&path, ".lock").exists(), "nothing is left beside a file of another program");
    }
}

/// The pages of a table or of an index, with the first one's number 0, in the order of the tree.
fn pages(path: &Path, name: &str) -> Vec<usize> {
    let file = rusqlite::Connection::open(path).expect("the file");
    let mut pages = file.prepare("select pageno - 1 from dbstat where name = ?1 order by path").expect("statistics");
    let pages = pages.query_map([name], |row| row.get::<_, i64>(0)).expect("pages");
    pages.map(|page| page.expect("a page") as usize).collect()
}

#[tokio::test]
async fn a_damaged_page_costs_only_the_rows_that_cannot_be_read() {
    let directory = TempDir::new().expect("a directory");
    let part = parts(&directory).await.pop().expect("the closed file");
    let intact = part.files[0].clone().expect("a file");
    let pages = pages(&directory.path().join("live.db"), "jobs");
    let [root, leaf] = [pages[0] * 4096, pages[3] * 4096];
    let cell = usize::from(u16::from_be_bytes([intact[leaf + 8], intact[leaf + 9]]));
    // Where, what it becomes, and how many jobs are kept at least and at most.
    let cases: [(_, _, &[u8], _); 4] = [
        ("the size of a cell", leaf + cell, &[0xff; 4], JOBS - 3..=JOBS - 1),
        ("the number of cells of a leaf", leaf + 3, &[0xff; 2], JOBS - MOST_LOST..=JOBS - 1),
        ("the type of the root", root, &[0xff; 8], 0..=0),
        ("an empty root", root, &[13, 0, 0, 0, 0, 0, 0, 0], 0..=0),
    ];
    for (case, at, bytes, kept) in cases {
        let (damaged, new) = (directory.path().join("damaged.db"), directory.path().join(format!("{case}.db")));
        let mut file = intact.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(&damaged, file).expect("a file");
        let salvaged = salvage_sqlite(&damaged, &new).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert!(!salvaged.damage.is_empty(), "{case}");
        assert!(kept.contains(&(salvaged.jobs as usize)), "{case}: {} jobs: {:?}", salvaged.jobs, salvaged.damage);
        run(&new).await.unwrap_or_else(|error| panic!("{case}: {error}"));
    }
}

/// Jobs of a damaged leaf of payloads are copied, and fail when their turn comes.
#[tokio::test]
async fn a_damaged_page_of_payloads_costs_no_other_job() {
    let directory = TempDir::new().expect("a directory");
    let part = parts(&directory).await.pop().expect("the closed file");
    let (path, new) = (directory.path().join("live.db"), directory.path().join("new.db"));
    let (mut file, at) = (part.files[0].clone().expect("a file"), pages(&path, "payloads")[2] * 4096);
    file[at..at + 8].fill(0xff);
    fs::write(&path, file).expect("a file");
    assert_eq!(salvage_sqlite(&path, &new).expect("a copy").jobs, JOBS as u64);
    let ran = run(&new).await.expect("a store").len();
    assert!((JOBS - MOST_LOST..JOBS).contains(&ran), "{ran}");
}

#[tokio::test]
async fn damage_that_a_server_meets_names_the_file_at_the_start_and_the_check_later() {
    let directory = TempDir::new().expect("a directory");
    let intact = parts(&directory).await.pop().and_then(|part| part.files[0].clone()).expect("the closed file");
    let live = directory.path().join("live.db");
    let damaged = |table: &str| {
        let (mut file, path) = (intact.clone(), directory.path().join(format!("{table}.db")));
        file[pages(&live, table)[0] * 4096..][..8].fill(0xff);
        fs::write(&path, file).expect("a file");
        path
    };
    let path = damaged("sessions");
    let refused = open(&path).map(|_| ()).expect_err("damage");
    assert!(matches!(&refused, StoreError::Damaged { path: named, .. } if *named == path), "{refused:?}");
    let store = open(&damaged("payloads")).expect("a store");
    let refused = store.submit(jobs(JOBS..JOBS + 1)).await.expect_err("damage");
    assert!(!refused.is_outage() && refused.to_string().contains("`waterwheel store check`"), "{refused}");
    store.close().await;
}
