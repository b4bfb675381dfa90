//! Each lease has one run, whatever the store, its callers and its notifications do: no job runs twice, none stays
//! leased without a run, and each cancellation arrives.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use waterwheel::{
    Job, Output, Pools,
    detached::{Detached, KindPolicies, wall_clock},
    handler::{Kind, KindOptions},
    model::Reason,
    pool::LostWhile,
    store::{
        Action, Bounds, Change, Extent, JobRecord, JobState, JobStore, NewJob, StoreError, Submission, Submitted,
        Timestamp, open_memory, open_shared_memory,
    },
};

use crate::{
    process::PATIENCE,
    support::{Counter, Fault, FaultyStore, Gate, Operation, echo, gated_counting, kind, polite, pool},
};

// tidy: real time, because the dispatcher looks at its store each second.

/// The detached jobs of a process, over a store with faults.
pub(super) struct Runner {
    pub(super) store: Arc<FaultyStore>,
    pub(super) detached: Detached,
    run: JoinHandle<()>,
}

impl Runner {
    pub(super) fn start(store: FaultyStore, workers: usize, kinds: Vec<Kind>) -> Self {
        let store = Arc::new(store);
        let pool = kinds.into_iter().fold(pool(workers), waterwheel::pool::PoolBuilder::kind).build();
        let pools = Pools::new(vec![pool]);
        let detached = Detached::new(store.clone(), wall_clock(), pools, KindPolicies::default());
        let run = tokio::spawn(detached.clone().run());
        Self { store, detached, run }
    }

    /// Returns once no job of any kind is known to wait, so that a new one is leased when it is created.
    async fn is_clear(&self) {
        for number in 0.. {
            let id = format!("clear-{number}");
            self.create(NewJob::new(&id, "test", Job::new("echo", ""))).await.unwrap();
            let ended = self.ended(&id).await;
            // A job that was leased when it was created started in the same moment.
            if ended.attempts[0].started_at == ended.created_at {
                return;
            }
        }
    }

    pub(super) async fn create(&self, job: NewJob) -> Result<Submitted, StoreError> {
        timeout(PATIENCE, self.detached.create(job)).await.expect("an answer")
    }

    /// Creates a job in a task, as the call of a caller does.
    fn creates(&self, job: NewJob) -> JoinHandle<Result<Submitted, StoreError>> {
        let detached = self.detached.clone();
        tokio::spawn(async move { detached.create(job).await })
    }

    /// Creates a job as another server does.
    async fn create_elsewhere(&self, job: NewJob) {
        self.store.store.submit(Submission { jobs: vec![job], session: None }).await.unwrap();
    }

    /// Creates a job as another server does. The claim that takes it is answered once the returned gate is open.
    async fn created_for_a_late_claim(&self, job: NewJob) -> Gate {
        let (taken, late) = (Gate::new(), Gate::new());
        self.store.fault(Operation::Claim, Fault::WaitsTwice(taken.clone(), late.clone()));
        // Claims come one after another, so no claim before this one can take the job.
        self.store.faulted.reached(1).await;
        self.create_elsewhere(job).await;
        taken.open();
        self.store.faulted.reached(2).await;
        late
    }

    async fn ended(&self, id: &str) -> JobRecord {
        timeout(PATIENCE, self.store.store.wait(id.into())).await.expect("an end").unwrap().expect("the job")
    }

    async fn succeeded_once(&self, id: &str) {
        let job = self.ended(id).await;
        let outcomes: Vec<_> = job.attempts.iter().map(|attempt| attempt.outcome).collect();
        assert_eq!((job.state, outcomes.len()), (JobState::Succeeded, 1), "{job:?}");
    }
}

pub(super) fn memory() -> FaultyStore {
    FaultyStore::new(open_memory(Bounds::default(), wall_clock()).unwrap())
}

pub(super) fn work(id: &str, kind: &str) -> NewJob {
    NewJob::new(id, "test", Job::new(kind, "x"))
}

#[tokio::test]
async fn a_create_that_its_caller_gives_up_runs_once_and_disturbs_no_other_job() {
    let (gate, begun) = (Gate::new(), Counter::new());
    let runner = Runner::start(memory(), 4, vec![echo(), gated_counting("gated", &gate, &begun)]);
    runner.is_clear().await;
    runner.create(work("runs", "gated")).await.unwrap();
    begun.reached(1).await;
    for (number, fault) in [Fault::Waits, Fault::AnswersLate].into_iter().enumerate() {
        let late = Gate::new();
        runner.store.fault(Operation::Submit, fault(late.clone()));
        let id = format!("given-up-{number}");
        let caller = runner.creates(work(&id, "gated"));
        runner.store.faulted.reached(number + 1).await;
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        late.open();
        begun.reached(number + 2).await;
    }
    gate.open();
    for id in ["runs", "given-up-0", "given-up-1"] {
        runner.succeeded_once(id).await;
    }
    assert_eq!(begun.get(), 3);
}

#[tokio::test]
async fn what_an_operation_without_an_answer_leased_is_given_back_and_nothing_else() {
    let (gate, begun) = (Gate::new(), Counter::new());
    let runner = Runner::start(memory(), 8, vec![echo(), gated_counting("gated", &gate, &begun)]);
    runner.is_clear().await;
    runner.create(work("runs", "gated")).await.unwrap();
    begun.reached(1).await;

    runner.store.fault(Operation::Submit, Fault::FailsAfter);
    runner.create(work("created", "gated")).await.unwrap_err();
    assert_eq!(runner.store.get("created", Extent::Output).await.unwrap().unwrap().state, JobState::Running);
    timeout(PATIENCE, begun.reached(2)).await.expect("it is given back, and runs");
    // Its caller tries again, and another job is created meanwhile.
    assert!(matches!(runner.create(work("created", "gated")).await, Ok(Submitted::Existing(_))));

    for operation in [Operation::Claim, Operation::Release] {
        runner.store.fault(operation, Fault::FailsAfter);
    }
    runner.create_elsewhere(work("claimed", "gated")).await;
    timeout(PATIENCE, begun.reached(3)).await.expect("it is given back, and runs");
    gate.open();
    for id in ["runs", "created", "claimed"] {
        runner.succeeded_once(id).await;
    }
    assert_eq!(begun.get(), 3);
}

#[tokio::test]
async fn a_cancel_reaches_a_job_that_is_created_twice_at_the_same_time() {
    let (begun, stopped) = (Counter::new(), Counter::new());
    let runner = Runner::start(memory(), 4, vec![echo(), polite(&begun, &stopped)]);
    runner.is_clear().await;
    let late = Gate::new();
    runner.store.fault(Operation::Submit, Fault::Waits(late.clone()));
    let second = runner.creates(work("twice", "polite"));
    runner.store.faulted.reached(1).await;
    runner.create_elsewhere(work("twice", "polite")).await;
    timeout(PATIENCE, begun.reached(1)).await.expect("it is claimed, and runs");
    late.open();
    assert!(matches!(second.await.unwrap(), Ok(Submitted::Existing(_))));

    let change = runner.store.change(vec!["twice".into()], Action::Cancel).await.unwrap();
    assert_eq!(change, [Change::Requested]);
    timeout(PATIENCE, stopped.reached(1)).await.expect("the cancellation arrives");
    assert_eq!((runner.ended("twice").await.state, begun.get()), (JobState::Cancelled, 1));
}

#[tokio::test]
async fn a_cancel_does_not_wait_for_a_beat_while_the_answer_of_a_claim_is_on_its_way() {
    let begun = Counter::new();
    let runner = Runner::start(memory(), 4, vec![polite(&begun, &Counter::new())]);
    let late = runner.created_for_a_late_claim(work("claimed", "polite")).await;
    let looked = runner.store.looks.get();
    let change = runner.store.change(vec!["claimed".into()], Action::Cancel).await.unwrap();
    assert_eq!(change, [Change::Requested]);
    timeout(PATIENCE, runner.store.looks.reached(looked + 1)).await.expect("a look for cancellations");
    late.open();
    assert_eq!(runner.ended("claimed").await.state, JobState::Cancelled);
    let is_at_once = begun.get() == 0 || runner.store.looks.get() == looked + 1;
    assert!(is_at_once, "it began, and was stopped by another look");
}

#[tokio::test]
async fn a_claim_that_is_answered_after_its_session_is_lost_starts_nothing() {
    let (ahead, gate, begun) = (Arc::new(AtomicI64::new(0)), Gate::new(), Counter::new());
    let (wall, added) = (wall_clock(), ahead.clone());
    let clock = Arc::new(move || Timestamp::from_millis(wall().as_millis() + added.load(Relaxed)));
    let store = FaultyStore::new(open_shared_memory(Bounds::default(), clock).unwrap());
    let runner = Runner::start(store, 4, vec![gated_counting("gated", &gate, &begun)]);
    let late = runner.created_for_a_late_claim(work("claimed", "gated")).await;
    // Another server ends the leases of this one, whose next beat finds that.
    ahead.store(60_000, Relaxed);
    assert_eq!(runner.store.store.tick(true).await.unwrap().returned, 1);
    timeout(PATIENCE, runner.store.losses.reached(1)).await.expect("a beat");
    late.open();
    timeout(PATIENCE, begun.reached(1)).await.expect("a claim of the next session");
    gate.open();
    let ended = runner.ended("claimed").await;
    let outcomes: Vec<_> = ended.attempts.iter().map(|attempt| (attempt.number, attempt.outcome)).collect();
    assert_eq!(outcomes, [(1, None), (2, Some(Reason::Completed))], "{ended:?}");
    assert_eq!(begun.get(), 1, "it also began under the lost session");
}

#[tokio::test]
async fn the_late_end_of_a_removed_job_leaves_a_new_job_with_its_id_alone() {
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let seen = tokens.clone();
    let named = kind("named", move |job, cx| {
        seen.lock().push(cx.attempt().unwrap().to_string());
        async { Ok(Output::new(job.payload)) }
    });
    let runner = Runner::start(memory(), 4, vec![named]);
    let late = Gate::new();
    for fault in [Fault::FailsAfter, Fault::Waits(late.clone())] {
        runner.store.fault(Operation::Settle, fault);
    }
    let again = |payload: &'static str| NewJob::new("again", "test", Job::new("named", payload));
    runner.create(again("first")).await.unwrap();
    timeout(PATIENCE, runner.store.faulted.reached(2)).await.expect("the end is sent again");
    assert_eq!(runner.ended("again").await.output.bytes, "first");
    let change = runner.store.change(vec!["again".into()], Action::Delete).await.unwrap();
    assert_eq!(change, [Change::Done]);
    runner.create(again("second")).await.unwrap();
    let has_begun = async {
        while tokens.lock().len() < 2 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, has_begun).await.expect("the second job runs");
    late.open();
    assert_eq!(runner.ended("again").await.output.bytes, "second");
    let tokens = tokens.lock();
    assert_ne!(tokens[0], tokens[1]);
}

#[tokio::test]
async fn a_job_is_found_without_notifications_while_others_keep_the_server_busy() {
    let store = FaultyStore::muted(open_memory(Bounds::default(), wall_clock()).unwrap());
    let runner = Arc::new(Runner::start(store, 1, vec![echo(), kind("other", |_, _| async { Ok(Output::default()) })]));
    runner.is_clear().await;
    let (busy, created) = (runner.clone(), Counter::new());
    let counter = created.clone();
    let stream = tokio::spawn(async move {
        loop {
            busy.create(work(&format!("busy-{}", counter.get()), "echo")).await.unwrap();
            counter.add();
            sleep(Duration::from_millis(1)).await;
        }
    });
    created.reached(10).await;
    runner.create_elsewhere(work("unannounced", "other")).await;
    runner.succeeded_once("unannounced").await;
    stream.abort();
}

#[tokio::test]
async fn a_drain_waits_until_results_are_stored_and_names_those_that_are_not() {
    let runner = Runner::start(memory(), 2, vec![echo()]);
    let late = Gate::new();
    for fault in [Fault::FailsAfter, Fault::Waits(late.clone())] {
        runner.store.fault(Operation::Settle, fault);
    }
    let job = NewJob { request_id: "request".into(), ..work("kept", "echo") };
    runner.create(job).await.unwrap();
    let settled = async {
        while runner.detached.unfinished().first().is_none_or(|lost| lost.lost_while != LostWhile::Storing) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, settled).await.expect("the run ends");
    runner.detached.stop();
    assert!(timeout(Duration::from_millis(50), runner.detached.ended()).await.is_err(), "a result is not stored");
    let [lost] = &runner.detached.unfinished()[..] else { panic!("{:?}", runner.detached.unfinished()) };
    let told = [&lost.job, &lost.request_id, &lost.kind, &lost.pool].map(String::as_str);
    assert_eq!(told, ["kept", "request", "echo", "test"]);
    late.open();
    timeout(PATIENCE, runner.run).await.expect("the end").unwrap();
    assert_eq!(runner.detached.unfinished(), []);
}

#[tokio::test]
async fn nothing_more_is_taken_while_too_many_bytes_of_results_wait() {
    const OUTPUT: usize = 8 << 20;
    let begun = Counter::new();
    let counter = begun.clone();
    let large = kind("large", move |_, _| {
        counter.add();
        async { Ok(Output::new(vec![0; OUTPUT])) }
    });
    let large = large.options(KindOptions { max_output: Some(2 * OUTPUT), ..KindOptions::default() });
    let runner = Runner::start(memory(), 1, vec![echo(), large]);
    let late = Gate::new();
    runner.store.fault(Operation::Settle, Fault::Waits(late.clone()));
    for number in 0..40 {
        runner.create_elsewhere(work(&format!("large-{number}"), "large")).await;
    }
    timeout(PATIENCE, begun.reached(8)).await.expect("they run");
    // A look for more jobs, which the bound must stop.
    sleep(Duration::from_millis(2500)).await;
    assert!(begun.get() <= 24, "{} jobs began, though 64 MiB of results wait", begun.get());
    late.open();
    for number in 0..40 {
        runner.succeeded_once(&format!("large-{number}")).await;
    }
}

#[tokio::test]
async fn jobs_on_their_way_into_the_store_are_bounded_for_each_tenant() {
    const PAYLOAD: usize = 1 << 20;
    let runner = Runner::start(memory(), 2, vec![echo()]);
    let late = Gate::new();
    let job = |tenant: &str, number: usize| {
        let job = Job::new("echo", vec![0; PAYLOAD]).tenant(tenant);
        NewJob::new(format!("{tenant}-{number}"), "test", job)
    };
    let mut waiting = Vec::new();
    for number in 0..3 {
        runner.store.fault(Operation::Submit, Fault::Waits(late.clone()));
        waiting.push(runner.creates(job("greedy", number)));
    }
    runner.store.faulted.reached(3).await;
    assert_eq!(runner.create(job("greedy", 3)).await.unwrap_err(), StoreError::Busy);
    assert!(matches!(runner.create(job("other", 0)).await, Ok(Submitted::Created)));
    late.open();
    for caller in waiting {
        assert!(matches!(caller.await.unwrap(), Ok(Submitted::Created)));
    }
    assert!(matches!(runner.create(job("greedy", 3)).await, Ok(Submitted::Created)));
}

/// What a count of many jobs costs must stay a small part of the time.
#[tokio::test]
async fn a_store_that_counts_slowly_is_seldom_asked_to() {
    const TOOK: Duration = Duration::from_secs(1);
    let (slow, open) = (Gate::new(), Gate::new());
    open.open();
    let store = memory();
    for (operation, gate) in [
        (Operation::Depths, &slow),
        (Operation::Depths, &open),
        (Operation::Tick, &open),
        (Operation::Tick, &open),
        (Operation::Tick, &open),
    ] {
        store.fault(operation, Fault::Waits(gate.clone()));
    }
    let runner = Runner::start(store, 1, vec![echo()]);
    let begin = Instant::now();
    runner.store.faulted.reached(2).await;
    sleep(TOOK).await;
    slow.open();
    // Two further ticks, without a count between them.
    timeout(PATIENCE, runner.store.faulted.reached(4)).await.expect("it ticks");
    let is_due = begin.elapsed() > 50 * TOOK;
    assert!(runner.store.faults_left(Operation::Depths) == 1 || is_due, "the second count comes 50 s later");
}
