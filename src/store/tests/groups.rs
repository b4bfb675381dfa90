//! Groups of jobs, for which another one waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tempfile::TempDir;
use tokio::time::Instant;

use super::{
    TestClock,
    cluster::Cluster,
    conformance::Case,
    postgres::{replica, store},
    promises::success,
};
use crate::{
    model::Job,
    store::{
        Action, Bounds, Change, Extent, Filter, GROUP_PREFIX, JobName, JobStore, Members, NewJob, Order, Room,
        SessionId, SqliteOptions, Start, StoreError, Submission, Submitted, open_sqlite,
    },
};

pub(super) const GROUPS: &[Case] = &[
    Case {
        name: "a job starts once the group is closed and all have succeeded",
        script: "
            open S
            submit group/g:after=success a:group=g => created nogroup
            submit a:group=g b:group=g => created created
            submit group/g:after=success a:group=g => existing:scheduled existing:ready
            members g             => open 2/0/0/0/0
            get group/g           => scheduled starts=0 failures=0 crashes=0 kept=0
            claim S k=9           => a b
            end a ok              => succeeded
            submit c:group=g      => created
            claim S k=9           => c
            end b retry=1         => scheduled
            end c ok              => succeeded
            members g             => open 1/2/0/0/0
            close g               => done
            close g               => done
            submit d:group=g a:group=g => groupclosed existing:succeeded
            claim S k=9           =>
            advance 1
            tick                  => promoted=1
            claim S k=9           => b
            end b ok              => succeeded
            members g             => closed complete 0/3/0/0/0
            claim S k=9           => group/g
            end group/g ok        => succeeded
            tick                  =>
            claim S k=9           =>",
    },
    Case {
        name: "a group of which no job succeeds is complete, unless all must",
        script: "
            open S
            submit group/g:after=end group/h:after=success => created created
            submit a:group=g b:group=g:expire=5 c:group=g:delay=9 d:group=h => created created created created
            claim S k=9           => a b d
            end b retry=9         => scheduled
            close g               => done
            close h               => done
            end a fail            => failed
            end d fail            => failed
            cancel c              => done
            members g             => closed 1/0/1/1/0
            claim S k=9           =>
            advance 5
            tick                  => expired=1
            members g             => closed complete 0/0/1/1/1
            members h             => closed 0/0/1/0/0
            claim S k=9           => group/g
            retry d               => done
            members h             => closed 1/0/0/0/0
            claim S k=9           => d
            end d ok              => succeeded
            claim S k=9           => group/h",
    },
    Case {
        name: "an empty group is complete when it is closed",
        script: "
            open S
            submit group/g:after=success:retain=10 => created
            close g               => done
            claim S k=9           => group/g
            end group/g ok        => succeeded
            advance 10
            tick                  => removed=1
            members g             => none
            close g               => notfound
            submit a:group=g      => nogroup",
    },
    Case {
        name: "a job that has started starts no second time, whatever its group does",
        script: "
            open S
            submit group/g:after=end => created
            submit a:group=g      => created
            cancel a              => done
            close g               => done
            claim S k=9           => group/g
            retry a               => done
            claim S k=9           => a
            end a ok              => succeeded
            tick                  =>
            claim S k=9           =>
            end group/g ok        => succeeded
            retry group/g         => done
            claim S k=9           => group/g",
    },
    Case {
        name: "a job that need not wait for its group is cancelled, expires, or is run by hand",
        script: "
            open S
            submit group/g:after=end group/h:after=end:expire=5 => created created
            submit a:group=g b:group=h => created created
            cancel group/g        => done
            advance 5
            tick                  => expired=1
            retry group/g         => done
            claim S k=9           => a b group/g
            close g               => done
            close h               => done
            end a ok              => succeeded
            end b ok              => succeeded
            members h             => closed complete 0/1/0/0/0
            tick                  =>
            claim S k=9           =>",
    },
    Case {
        name: "what was removed still counts, and a later group with the same name is another one",
        script: "
            open S
            submit group/g:after=success => created
            submit a:group=g b:group=g c:group=g => created created created
            list group=g          => c b a
            list group=g limit=2  => c b | a
            cancel-all group=g state=ready limit=9 => 3
            purge group=g         => 3
            members g             => open 0/0/0/3/0
            submit d:group=g      => created
            claim S k=9           => d
            cancel group/g        => done
            delete group/g        => done
            submit group/g:after=success => created
            submit e:group=g      => created
            end d ok              => succeeded
            members g             => open 1/0/0/0/0
            list group=g          => e",
    },
    Case {
        name: "a job that waits is a member of another group from its creation",
        script: "
            open S
            submit group/h:after=success => created
            submit group/g:after=success:group=h:key=x => created
            submit a:group=g x:key=x => created created
            close h               => done
            close g               => done
            members h             => closed 1/0/0/0/0
            claim S k=9           => a x
            end a ok              => succeeded
            claim S k=9           =>
            get group/g           => blocked starts=0 failures=0 crashes=0 kept=0
            end x ok              => succeeded
            claim S k=9           => group/g
            end group/g ok        => succeeded
            claim S k=9           => group/h",
    },
    Case {
        name: "tenants do not see the groups of others, and a group takes room as a job",
        script: "
            submit group/g:after=success:tenant=t => created
            submit a:group=g b:group=g:tenant=u c:group=g:tenant=t => nogroup nogroup created
            size                  => 2 8
            quota t=2/99          =>
            submit d:group=g:tenant=t => over:2/2:8/99
            members g             => open 1/0/0/0/0",
    },
];

/// The members of groups that have not ended are counted, and a job waits only for what is not complete.
pub(super) async fn are_counted(store: &dyn JobStore, groups: &[&str]) {
    for group in groups {
        let job = store.get(&format!("{GROUP_PREFIX}{group}"), Extent::Bare).await.expect("an answer");
        let Some(job) = job else { continue };
        let members = store.members(job.row).await.expect("an answer").expect("the group");
        let filter = Filter { group: Some(job.row), ..Filter::default() };
        let found = store.list(filter, Order::Newest, None, 1000).await.expect("a list").jobs;
        let active = found.iter().filter(|job| !job.state.is_ended()).count();
        assert_eq!(members.active, active as u64, "{members:?}");
        assert!(!(job.waits_for_group() && members.is_complete()), "{members:?}");
    }
}

/// Row of the job that waits for a group.
pub(super) async fn row(store: &dyn JobStore, group: &str) -> i64 {
    let job = store.get(&format!("{GROUP_PREFIX}{group}"), Extent::Bare).await.expect("an answer");
    job.map_or(0, |job| job.row)
}

/// `close g`; `members g`: active/succeeded/failed/cancelled/expired.
pub(super) async fn answer(store: &dyn JobStore, verb: &str, group: &str) -> Result<String, StoreError> {
    if verb == "close" {
        let job = format!("{GROUP_PREFIX}{group}");
        let closed = store.change(vec![(&*job).into()], Action::CloseGroup).await?;
        return Ok(if closed == [Change::Done] { "done" } else { "notfound" }.to_owned());
    }
    let Some(members) = store.members(row(store, group).await).await? else { return Ok("none".to_owned()) };
    let Members { is_closed, active, ended: [succeeded, failed, cancelled, expired], .. } = members;
    let state = match (is_closed, members.is_complete()) {
        (false, _) => "open",
        (true, false) => "closed",
        (true, true) => "closed complete",
    };
    Ok(format!("{state} {active}/{succeeded}/{failed}/{cancelled}/{expired}"))
}

fn job(id: String, group: &str) -> NewJob {
    NewJob { group: group.to_owned(), ..NewJob::new(id, "p", Job::new("k", "x")) }
}

fn waiting(group: &str) -> NewJob {
    let start = Start::Group { must_succeed: true };
    NewJob { start, ..job(format!("{GROUP_PREFIX}{group}"), "") }
}

async fn create(store: &dyn JobStore, jobs: Vec<NewJob>) {
    let answers = store.submit(Submission { jobs, session: None }).await.expect("answers");
    assert!(answers.iter().all(|answer| matches!(answer, Submitted::Created)), "{answers:?}");
}

/// Ends ready jobs, with several settlements at once. Returns their number.
async fn end_some(store: &dyn JobStore, session: SessionId, most: usize) -> usize {
    let room = Room { session, kinds: [("k".to_owned(), most)].into(), bytes: usize::MAX };
    let claimed = store.claim(room).await.expect("jobs");
    let ends: Vec<_> = claimed.into_iter().map(success).collect();
    let answers = join_all(ends.chunks(10).map(|ends| store.settle(ends.to_vec()))).await;
    answers.into_iter().flat_map(|states| states.expect("states")).flatten().count()
}

const MANY: usize = 20;

/// Each server has two writers. PostgreSQL counts the transactions that it ended because they waited for each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_end_jobs_of_many_groups_at_once_do_not_wait_for_each_other() {
    let Some(cluster) = Cluster::start().await else { return };
    let (first, server) = store(&cluster, "groups", Bounds::default()).await;
    let second = replica(&cluster, "groups", Bounds::default());
    let names: Vec<_> = (0..MANY).map(|number| number.to_string()).collect();
    create(&*first, names.iter().map(|name| waiting(name)).collect()).await;
    let jobs = (0..50 * MANY).map(|number| job(format!("job-{number}"), &names[number * 7 % MANY])).collect();
    create(&*first, jobs).await;
    let closed = names.iter().map(|name| JobName::from(&*format!("{GROUP_PREFIX}{name}"))).collect();
    first.change(closed, Action::CloseGroup).await.expect("answers");
    let ended = AtomicUsize::new(0);
    let work = async |store: &dyn JobStore| {
        let session = store.open_session(Duration::from_secs(600)).await.expect("a session");
        while ended.load(Relaxed) < 51 * MANY {
            let count = end_some(store, session, 100).await;
            ended.fetch_add(count, Relaxed);
            // A start that another transaction held up is made up for.
            store.tick(false).await.expect("a tick");
        }
    };
    tokio::join!(work(&*first), work(&*second));
    for name in &names {
        let members = first.members(row(&*first, name).await).await.expect("an answer").expect("the group");
        assert_eq!((members.active, members.ended), (0, [50, 0, 0, 0]), "{name}");
    }
    // A server counts when its sessions end, at the latest.
    first.close().await;
    second.close().await;
    server.until("select deadlocks = 0 from pg_stat_database where datname = current_database()").await;
}

/// Pairs of bursts of a measurement, each of 500 jobs.
const BURSTS: usize = 40;

/// `cargo test --lib -- --ignored --nocapture jobs_of_one_group`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, not a check"]
async fn jobs_of_one_group_are_almost_as_fast_as_others() {
    let directory = TempDir::new().expect("a directory");
    let options = SqliteOptions::new(directory.path().join("jobs.db"));
    let sqlite = open_sqlite(&options, TestClock::new().clock()).expect("a store");
    let mut stores: Vec<(&str, Arc<dyn JobStore>)> = vec![("SQLite", sqlite)];
    let cluster = Cluster::start().await;
    if let Some(cluster) = &cluster {
        stores.push(("PostgreSQL", replica(cluster, "postgres", Bounds::default())));
    }
    for (name, store) in stores {
        let session = store.open_session(Duration::from_secs(36_000)).await.expect("a session");
        create(&*store, vec![waiting("g")]).await;
        let mut ratios = Vec::new();
        for burst in 0..BURSTS {
            let plain = run_burst(&*store, session, format!("plain-{burst}"), "").await;
            let member = run_burst(&*store, session, format!("member-{burst}"), "g").await;
            ratios.push(plain.as_secs_f64() / member.as_secs_f64());
        }
        ratios.sort_by(f64::total_cmp);
        let at = |part: usize| ratios[ratios.len() * part / 4];
        println!("{name}: {:.2} of the rate of others (quartiles {:.2} to {:.2})", at(2), at(1), at(3));
        store.close().await;
    }
}

/// Time to create and to end 500 jobs.
async fn run_burst(store: &dyn JobStore, session: SessionId, name: String, group: &str) -> Duration {
    let begin = Instant::now();
    let jobs = |part| (0..10).map(|number| job(format!("{name}-{part}-{number}"), group)).collect();
    join_all((0..50).map(|part| create(store, jobs(part)))).await;
    let mut ended = 0;
    while ended < 500 {
        ended += end_some(store, session, 500).await;
    }
    begin.elapsed()
}
