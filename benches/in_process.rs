//! Compares the in-process pool with two simple hand-written pools, in one run.
//!
//! `handoff` has a worker for every producer, so that no job waits. It measures the overhead of a pool. `queue` has
//! fewer workers than producers, and its jobs yield once, so jobs are queued. Every figure is the wall time per job,
//! with 1, 8 and 64 producers on two threads.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "the controls spawn as the code does that they stand for"
)]

use std::{num::NonZeroUsize, sync::Arc, time::Duration};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{Mutex, mpsc, oneshot},
    task::{JoinSet, yield_now},
    time::Instant,
};
use waterwheel::{
    Job, Output, Pool,
    handler::{Context, Handler, Kind},
    model::{HandlerError, WhenFull},
};

const PRODUCERS: [usize; 3] = [1, 8, 64];
const QUEUE: usize = 1024;

/// What a job does before it returns its payload.
#[derive(Clone, Copy)]
enum Work {
    Nothing,
    YieldOnce,
}

impl Work {
    async fn run(self, payload: Bytes) -> Bytes {
        if matches!(self, Self::YieldOnce) {
            yield_now().await;
        }
        payload
    }
}

/// A way to run a job on a bounded set of workers.
trait Subject: Clone + Send + Sync + 'static {
    fn start(workers: usize, work: Work) -> Self;
    fn submit(&self, payload: Bytes) -> impl Future<Output = Bytes> + Send;
}

#[derive(Clone)]
struct Waterwheel(Pool);

struct Echo(Work);

impl Handler for Echo {
    async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        Ok(Output::new(self.0.run(job.payload).await))
    }
}

impl Subject for Waterwheel {
    fn start(workers: usize, work: Work) -> Self {
        let workers = NonZeroUsize::new(workers).unwrap();
        let kind = Kind::new("echo", move || Echo(work));
        // The channels below let callers wait, too.
        let builder = Pool::builder("bench").workers(workers).queue_jobs(QUEUE).when_full(WhenFull::Wait);
        Self(builder.kind(kind).build())
    }

    async fn submit(&self, payload: Bytes) -> Bytes {
        self.0.submit(Job::new("echo", payload)).await.unwrap().output.bytes
    }
}

type Message = (Bytes, oneshot::Sender<Bytes>);

/// Workers that share one receiver behind a mutex.
#[derive(Clone)]
struct MutexedMpsc(mpsc::Sender<Message>);

impl Subject for MutexedMpsc {
    fn start(workers: usize, work: Work) -> Self {
        let (sender, receiver) = mpsc::channel::<Message>(QUEUE);
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..workers {
            let receiver = Arc::clone(&receiver);
            tokio::spawn(async move {
                loop {
                    let message = receiver.lock().await.recv().await;
                    let Some((payload, reply)) = message else { return };
                    let _ = reply.send(work.run(payload).await);
                }
            });
        }
        Self(sender)
    }

    async fn submit(&self, payload: Bytes) -> Bytes {
        let (reply, answer) = oneshot::channel();
        self.0.send((payload, reply)).await.unwrap();
        answer.await.unwrap()
    }
}

/// Workers with a receiver each, of a channel with several receivers.
#[derive(Clone)]
struct AsyncChannel(async_channel::Sender<Message>);

impl Subject for AsyncChannel {
    fn start(workers: usize, work: Work) -> Self {
        let (sender, receiver) = async_channel::bounded::<Message>(QUEUE);
        for _ in 0..workers {
            let receiver = receiver.clone();
            tokio::spawn(async move {
                while let Ok((payload, reply)) = receiver.recv().await {
                    let _ = reply.send(work.run(payload).await);
                }
            });
        }
        Self(sender)
    }

    async fn submit(&self, payload: Bytes) -> Bytes {
        let (reply, answer) = oneshot::channel();
        self.0.send((payload, reply)).await.unwrap();
        answer.await.unwrap()
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

/// Wall time for `jobs` jobs from `producers` tasks. Each task waits for its job before it sends the next.
async fn load(subject: &impl Subject, producers: usize, jobs: u64) -> Duration {
    let payload = Bytes::from_static(&[7; 64]);
    let each = jobs.div_ceil(producers as u64);
    let begin = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..producers {
        let (subject, payload) = (subject.clone(), payload.clone());
        tasks.spawn(async move {
            for _ in 0..each {
                subject.submit(payload.clone()).await;
            }
        });
    }
    tasks.join_all().await;
    begin.elapsed().mul_f64(jobs as f64 / (each * producers as u64) as f64)
}

fn measure<S: Subject>(
    criterion: &mut Criterion,
    group: &str,
    name: &str,
    work: Work,
    workers: impl Fn(usize) -> usize,
) {
    let mut group = criterion.benchmark_group(group);
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(20);
    for producers in PRODUCERS {
        group.bench_function(BenchmarkId::new(name, producers), |bencher| {
            let runtime = runtime();
            let subject = runtime.block_on(async { S::start(workers(producers), work) });
            bencher.iter_custom(|jobs| runtime.block_on(load(&subject, producers, jobs)));
        });
    }
    group.finish();
}

fn handoff(criterion: &mut Criterion) {
    let workers = |producers| producers;
    measure::<Waterwheel>(criterion, "handoff", "waterwheel", Work::Nothing, workers);
    measure::<MutexedMpsc>(criterion, "handoff", "mutexed-mpsc", Work::Nothing, workers);
    measure::<AsyncChannel>(criterion, "handoff", "async-channel", Work::Nothing, workers);
}

fn queue(criterion: &mut Criterion) {
    let workers = |producers: usize| (producers / 8).max(1);
    measure::<Waterwheel>(criterion, "queue", "waterwheel", Work::YieldOnce, workers);
    measure::<MutexedMpsc>(criterion, "queue", "mutexed-mpsc", Work::YieldOnce, workers);
    measure::<AsyncChannel>(criterion, "queue", "async-channel", Work::YieldOnce, workers);
}

criterion_group!(benches, handoff, queue);
criterion_main!(benches);
