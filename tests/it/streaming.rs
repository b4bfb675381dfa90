//! Streams deliver output in order and always free their worker. A slow reader delays only its own handler.

use std::time::Duration;

use tokio::{runtime, task::coop, time::Instant};
use waterwheel::{
    Job, JobError, Output,
    handler::{Event, Kind, KindOptions},
    model::{HandlerError, Outcome, Rung},
    pool::{JobStream, Settings, StreamItem, WorkerState},
};

use crate::support::{
    Counter, Gate, assert_idle, blocking_kind, echo, holding_clock, kind, meet, meeting, pass_time, pool, until,
};

/// A kind whose handler writes as many numbered chunks as the job's payload says, and then returns "last".
fn count() -> Kind {
    counting(&Counter::new())
}

fn counting(written: &Counter) -> Kind {
    let written = written.clone();
    kind("count", move |job, cx| {
        let written = written.clone();
        async move {
            for number in 0..chunks(&job) {
                cx.write(number.to_string()).await?;
                written.add();
            }
            Ok(Output::new("last"))
        }
    })
}

fn counting_blocking(written: &Counter) -> Kind {
    let written = written.clone();
    blocking_kind("block", move |job, cx| {
        for number in 0..chunks(&job) {
            cx.write_blocking(number.to_string())?;
            written.add();
        }
        Ok(Output::new("last"))
    })
}

fn chunks(job: &Job) -> usize {
    std::str::from_utf8(&job.payload).expect("digits").parse().expect("a number")
}

fn chunk(text: impl Into<bytes::Bytes>) -> StreamItem {
    StreamItem::Event(Event::Chunk(text.into()))
}

/// Reads to the end, and checks that `expected` numbered chunks arrive in order.
async fn read_all(stream: &mut JobStream, expected: usize) {
    for number in 0..expected {
        assert_eq!(stream.next().await, Ok(Some(chunk(number.to_string()))));
    }
    let last = stream.next().await.expect("it completes");
    assert!(matches!(&last, Some(StreamItem::Completed(done)) if done.output.bytes == "last"), "{last:?}");
    for _ in 0..2 {
        assert_eq!(stream.next().await, Ok(None), "nothing follows the last item");
    }
}

#[tokio::test]
async fn items_arrive_in_order_and_end_once() {
    let written = Counter::new();
    let pool = pool(1).kind(count()).kind(counting_blocking(&written)).build();
    for kind in ["count", "block"] {
        let mut stream = pool.stream(Job::new(kind, "100")).await.expect("accepted");
        read_all(&mut stream, 100).await;
    }
    assert_idle(&pool, 1);
    assert_eq!(pool.stats().counts.completed, 2);
}

#[tokio::test(start_paused = true)]
async fn progress_reaches_the_reader_and_never_blocks_the_handler() {
    let job = kind("steps", |_, cx| async move {
        for step in 0..100 {
            cx.progress(f64::from(step) / 100.0, "step");
        }
        Ok(Output::default())
    });
    let pool = pool(1).kind(job).build();
    let mut stream = pool.stream(Job::new("steps", "")).await.expect("accepted");
    until(|| pool.stats().counts.completed == 1).await;
    let first = stream.next().await.expect("it completes");
    let progress = Event::Progress { fraction: 0.0, message: "step".into() };
    assert_eq!(first, Some(StreamItem::Event(progress)));
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_blocks_only_its_own_handler() {
    let written = Counter::new();
    let pool = pool(2).kind(counting(&written)).kind(echo()).build();
    let mut slow = pool.stream(Job::new("count", "100")).await.expect("accepted");
    pass_time(Duration::from_secs(1)).await;
    let ahead = written.get();
    assert!(ahead < 20, "{ahead} chunks are buffered for a reader that does not read");

    for _ in 0..50 {
        pool.submit(Job::new("echo", "x")).await.expect("other jobs are not affected");
    }
    assert_eq!(written.get(), ahead);
    assert_eq!(slow.next().await, Ok(Some(chunk("0"))));
    written.reached(ahead + 1).await;
    pass_time(Duration::from_secs(1)).await;
    assert_eq!(written.get(), ahead + 1, "one chunk read, one written");
    for number in 1..100 {
        assert_eq!(slow.next().await, Ok(Some(chunk(number.to_string()))));
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_stream_stops_its_handler() {
    let written = Counter::new();
    let pool = pool(1).kind(counting(&written)).kind(counting_blocking(&written)).kind(meeting(1)).build();
    for (round, kind) in ["count", "block"].into_iter().enumerate() {
        let mut stream = pool.stream(Job::new(kind, "1000000")).await.expect("accepted");
        assert_eq!(holding_clock(stream.next()).await, Ok(Some(chunk("0"))));
        let left = Instant::now();
        drop(stream);
        holding_clock(meet(&pool, 1)).await;
        assert!(left.elapsed() < Duration::from_millis(50), "the worker is free at once");
        assert_eq!(pool.stats().counts.cancelled, round as u64 + 1);
    }
    assert_idle(&pool, 1);
}

#[tokio::test(start_paused = true)]
async fn a_failure_discards_unread_chunks() {
    let fails = kind("fails", |_, cx| async move {
        for _ in 0..3 {
            cx.write("chunk").await?;
        }
        Err(HandlerError::invalid("no"))
    });
    let pool = pool(1).kind(fails).build();
    let mut stream = pool.stream(Job::new("fails", "")).await.expect("accepted");
    until(|| pool.stats().counts.failed == 1).await;
    tokio::task::yield_now().await;
    let error = stream.next().await.expect_err("the failure comes first");
    assert!(matches!(error, JobError::Failed(failure) if failure.error == Some(HandlerError::invalid("no"))));
    assert_eq!(stream.next().await, Ok(None), "nothing follows a failure");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_frees_the_worker_of_a_reader_that_stalls() {
    let written = Counter::new();
    let pool = pool(1).kind(counting(&written)).kind(counting_blocking(&written)).kind(meeting(1)).build();
    for (round, kind) in ["count", "block"].into_iter().enumerate() {
        let start = Instant::now();
        let job = Job::new(kind, "1000000").timeout(Duration::from_secs(5));
        let mut stream = pool.stream(job).await.expect("accepted");
        holding_clock(written.reached((round + 1) * 8)).await;
        until(|| pool.stats().workers[0].job.is_some()).await;
        pass_time(Duration::from_secs(5)).await;
        holding_clock(meet(&pool, 1)).await;
        assert!(start.elapsed() < Duration::from_millis(5_100), "the worker is free at the deadline");
        assert!(pool.stats().workers.iter().all(|worker| worker.state == WorkerState::Idle), "{kind} is not stuck");

        let error = stream.next().await.expect_err("late chunks are discarded");
        let JobError::Failed(failure) = error else { panic!("{error}") };
        assert_eq!(failure.outcome, Outcome::DeadlineExceeded, "{failure:?}");
        assert_eq!(failure.rung, Some(Rung::Asked));
    }
}

#[tokio::test]
async fn output_is_limited_in_bytes() {
    let options = KindOptions { max_output: Some(5), ..KindOptions::default() };
    let job = |name| {
        kind(name, |job, cx| async move {
            cx.write("abc").await?;
            cx.write(job.payload).await?;
            Ok(Output::new("f"))
        })
    };
    let settings = Settings { max_output: 5, ..Settings::default() };
    let pool = pool(1).settings(settings).kind(job("own").options(options)).kind(job("default")).build();
    let too_large = Some(HandlerError::OutputTooLarge { limit: 5 });

    for kind in ["own", "default"] {
        assert_eq!(pool.submit(Job::new(kind, "d")).await.expect("fits").output.bytes, "abcdf");
        for payload in ["de", "def"] {
            let error = pool.submit(Job::new(kind, payload)).await.expect_err("one byte too many");
            assert!(matches!(error, JobError::Failed(failure) if failure.error == too_large), "{kind} {payload}");
        }
    }
    let mut stream = pool.stream(Job::new("default", "0123456789")).await.expect("accepted");
    assert_eq!(stream.next().await, Ok(Some(chunk("abc"))));
    assert_eq!(
        stream.next().await,
        Ok(Some(chunk("0123456789"))),
        "the default of the pool limits collected output only"
    );
    drop(stream);
    let mut stream = pool.stream(Job::new("own", "def")).await.expect("accepted");
    let error = loop {
        match stream.next().await {
            Ok(item) => assert_eq!(item, Some(chunk("abc"))),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, JobError::Failed(failure) if failure.error == too_large));
}

#[tokio::test(start_paused = true)]
async fn a_reader_without_cooperative_budget_loses_no_chunk() {
    let pool = pool(1).kind(count()).build();
    let mut stream = pool.stream(Job::new("count", "5")).await.expect("accepted");
    until(|| pool.stats().counts.completed == 1).await;
    tokio::task::yield_now().await;
    assert_eq!(stream.next().await, Ok(Some(chunk("0"))), "chunks are unread, although the job has ended");
    while coop::has_budget_remaining() {
        tokio::task::consume_budget().await;
    }
    for number in 1..5 {
        assert_eq!(stream.next().await, Ok(Some(chunk(number.to_string()))));
    }
    assert!(matches!(stream.next().await, Ok(Some(StreamItem::Completed(_)))));
}

#[tokio::test]
async fn writers_that_outlive_the_job_do_not_block_its_reader() {
    let gate = Gate::new();
    let held = gate.clone();
    let late = Counter::new();
    let refused = late.clone();
    let leaves = kind("leaves", move |_, cx| {
        let (held, refused) = (held.clone(), refused.clone());
        async move {
            let other = cx.clone();
            let rest = cx.shield(async move {
                held.pass().await;
                if other.write("late").await == Err(HandlerError::Stopped) {
                    refused.add();
                }
            });
            // A shielded task continues after its first poll.
            let _ = futures_util::poll!(std::pin::pin!(rest));
            cx.write("0").await?;
            Ok(Output::new("last"))
        }
    });
    let pool = pool(1).kind(leaves).build();
    let mut stream = pool.stream(Job::new("leaves", "")).await.expect("accepted");
    read_all(&mut stream, 1).await;
    gate.open();
    late.reached(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_item_is_never_lost_across_threads() {
    let pool = pool(4).kind(count()).build();
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let pool = pool.clone();
        readers.spawn(async move {
            for _ in 0..500 {
                let mut stream = pool.stream(Job::new("count", "2")).await.expect("accepted");
                read_all(&mut stream, 2).await;
            }
        });
    }
    while let Some(read) = readers.join_next().await {
        read.expect("every stream ends with its outcome");
    }
    assert_idle(&pool, 4);
}

#[test]
fn a_stream_whose_runtime_was_dropped_ends_as_cancelled() {
    let serving = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let pool = pool(1).kind(count()).build();
    let mut stream = serving.block_on(pool.stream(Job::new("count", "100"))).expect("accepted");
    drop(serving);
    let other = runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let error = other.block_on(async {
        loop {
            match stream.next().await {
                Ok(Some(StreamItem::Event(_))) => {}
                Ok(end) => panic!("incomplete output looks complete: {end:?}"),
                Err(error) => break error,
            }
        }
    });
    assert!(matches!(error, JobError::Failed(failure) if failure.outcome == Outcome::Cancelled));
    assert_idle(&pool, 1);
}
