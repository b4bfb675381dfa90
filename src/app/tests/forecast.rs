//! Forecasts beside what happens: real pools on a paused clock get the same traffic before and after a change.

use std::num::{NonZeroU32, NonZeroUsize};

use futures_util::FutureExt;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::{Instant, sleep, sleep_until};

use super::*;
use crate::{
    handler::{Context, Handler, KindOptions},
    model::{
        Criticality, HandlerError, Job, KindLimits, Limit, Output, Rate, RecordedEnd, RecordedJob, Share, Traits,
        WhenFull,
    },
    task::Tasks,
};

/// Runs for as many microseconds as its payload says.
struct Sleeper;

impl Handler for Sleeper {
    async fn handle(&mut self, job: Box<Job>, _: Context) -> Result<Output, HandlerError> {
        let micros = std::str::from_utf8(&job.payload).expect("digits").parse().expect("a number");
        sleep(Duration::from_micros(micros)).await;
        Ok(Output::default())
    }
}

/// What a pool serves, and how many jobs of each kind arrive in a second.
struct Scene {
    settings: Settings,
    kinds: Vec<(&'static str, KindLimits, f64)>,
}

impl Scene {
    fn kinds(&self) -> Vec<Kind> {
        self.kinds
            .iter()
            .map(|(name, limits, _)| {
                Kind::new(*name, || Sleeper).options(KindOptions { limits: *limits, ..KindOptions::default() })
            })
            .collect()
    }

    /// The questions about a change of the pool to this scene.
    fn changes(&self, pool: &Pool) -> Vec<Question> {
        let new = config::Pool { name: pool.name().to_string(), settings: self.settings.clone() };
        changes(&Pools::new(vec![pool.clone()]), &[new], &[self.kinds()])
    }
}

fn settings(workers: usize, queue_jobs: usize) -> Settings {
    Settings { workers: NonZeroUsize::new(workers).unwrap(), queue_jobs, ..Settings::default() }
}

/// Two minutes of jobs with exponential gaps and run times of 50 ms on average, from four tenants, in all classes.
/// Every eighth job of a tenant has an ordering key.
async fn send(pool: &Pool, scene: &Scene, seed: u64) {
    let (tasks, mut dice) = (Tasks::new(), StdRng::seed_from_u64(seed));
    let exponential = |mean: f64, dice: &mut StdRng| -(1.0 - dice.random::<f64>()).ln() * mean;
    let start = Instant::now();
    for (kind, _, rate) in &scene.kinds {
        let mut at = exponential(1.0 / rate, &mut dice);
        while at < 120.0 {
            let run = (exponential(0.05, &mut dice) * 1e6).round();
            let mut job = Job::new(*kind, run.to_string()).timeout(Duration::from_millis(600));
            job.tenant = format!("tenant-{}", dice.random_range(0..4));
            job.criticality = Criticality::BY_IMPORTANCE[dice.random_range(0..4)];
            job.limit_key = format!("key-{}", dice.random_range(0..8));
            if dice.random_bool(0.125) {
                job.ordering_key = "one".into();
            }
            let (pool, at_instant) = (pool.clone(), start + Duration::from_secs_f64(at));
            tasks.spawn(async move {
                sleep_until(at_instant).await;
                let _ = pool.submit(job).await;
            });
            at += exponential(1.0 / rate, &mut dice);
        }
    }
    tasks.wait().await;
}

/// What the pool made of its jobs since `from`, by kind.
fn measured_since(pool: &Pool, from: usize) -> Vec<KindFigures> {
    let (jobs, names) = (pool.recorded(), pool.recorded_kinds());
    let all: BTreeSet<_> = names.iter().cloned().collect();
    let by_number = measured(&jobs[from..], names.len());
    let of = |kind: &Arc<str>| {
        let mut numbers = (0..names.len()).filter(|number| names[*number] == *kind);
        numbers.find(|number| by_number[*number].jobs > 0).map(|number| by_number[number])
    };
    all.iter().filter_map(of).collect()
}

/// That refused and missed jobs differ by at most two in 100, and waits by a fifth or 10 ms. The timers of a pool have
/// whole milliseconds, so that its jobs are not exactly in the order of the replay.
fn assert_near(what: &str, forecast: &KindForecast, predicted: JobFigures, happened: KindFigures) {
    let happened = figures(happened);
    assert_eq!(predicted.jobs, happened.jobs, "{what} {}", forecast.kind);
    let two = predicted.jobs as f64 * 0.02;
    let wait = |figures: &JobFigures| Duration::try_from(figures.wait_p99.unwrap()).unwrap().as_secs_f64();
    let off = [predicted.refused as f64 - happened.refused as f64, predicted.missed as f64 - happened.missed as f64];
    let off_wait = wait(&predicted) - wait(&happened);
    assert!(off.iter().all(|off| off.abs() <= two), "{what} {}: {predicted:?} {happened:?}", forecast.kind);
    assert!(
        off_wait.abs() <= (wait(&happened) * 0.2).max(0.01),
        "{what} {}: {predicted:?}, {happened:?}",
        forecast.kind
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_forecast_happens() {
    let none = KindLimits::default();
    let at_once = |count| Limit { concurrency: NonZeroU32::new(count), ..Limit::default() };
    let rate = Rate { interval: Duration::from_millis(23), burst: NonZeroU32::new(4).unwrap() };
    let with = |all, per_key| KindLimits { all, per_key, ..KindLimits::default() };
    let waiting = |workers| Settings { when_full: WhenFull::Wait, ..settings(workers, 16) };
    // Before and after: fewer workers; more workers, limits, and callers that wait.
    let pools = [
        [(settings(6, 64), none, none), (settings(4, 64), none, none)],
        [
            (waiting(4), with(at_once(3), Limit::default()), none),
            (
                waiting(5),
                with(at_once(4), at_once(1)),
                with(Limit { rate: Some(rate), ..Limit::default() }, Limit::default()),
            ),
        ],
    ];
    for (index, stages) in pools.into_iter().enumerate() {
        let [before, after] = stages.map(|(settings, text, image)| Scene {
            settings,
            kinds: vec![("image", image, 40.0), ("text", text, 50.0)],
        });
        let builder = Pool::builder(format!("pool-{index}")).settings(before.settings.clone());
        let pool = before.kinds().into_iter().fold(builder, crate::pool::PoolBuilder::kind).build();
        send(&pool, &before, 7).await;
        let jobs = pool.recorded().len();

        let forecast = forecasts(after.changes(&pool)).await.unwrap().pop().expect("its settings change");
        assert_eq!(forecast.kinds.len(), 2);
        for (kind, measured) in forecast.kinds.iter().zip(measured_since(&pool, 0)) {
            assert_eq!(kind.measured, Some(figures(measured)));
            assert_near("before", kind, kind.now.unwrap(), measured);
        }
        pool.reconfigure(after.settings.clone(), after.kinds());
        send(&pool, &after, 7).await;
        for (kind, measured) in forecast.kinds.iter().zip(measured_since(&pool, jobs)) {
            assert_near("after", kind, kind.then.unwrap(), measured);
        }
        assert_ne!(forecast.kinds[0].now, forecast.kinds[0].then, "the change shows");
        assert!(after.changes(&pool).is_empty(), "nothing would change");
    }
}

#[tokio::test]
async fn only_replays_wait_for_their_turn_and_end_when_their_caller_leaves() {
    let busy = TURN.acquire().await.unwrap();
    assert_eq!(forecasts(Vec::new()).now_or_never(), Some(Some(Vec::new())), "there is nothing to replay");
    let pool = Pool::builder("one").build();
    assert_eq!(forecasts(advice(std::slice::from_ref(&pool))).now_or_never(), None);
    drop(busy);
    assert_eq!(forecasts(advice(std::slice::from_ref(&pool))).await.unwrap().len(), 1);
    assert!(answers(advice(&[pool]), &|| false).is_empty());
}

#[tokio::test]
async fn calls_have_the_part_of_a_divided_limit_that_their_server_has_now() {
    let all = Limit { concurrency: NonZeroU32::new(4), ..Limit::default() };
    let limits = KindLimits { all, share: Share::Divide, ..KindLimits::default() };
    let image = Kind::new("image", || Sleeper).options(KindOptions { limits, ..KindOptions::default() });
    let pool = Pool::builder("one").settings(settings(8, 64)).kind(image).build();
    pool.divide_limits(NonZeroU32::new(2).unwrap());
    for (is_stored, waits) in [(false, true), (true, false)] {
        let [_, plan] = advice(std::slice::from_ref(&pool)).remove(0).plans;
        let (traits, kind, end) = (Traits::default(), 0, RecordedEnd::Ran);
        let job = |at| RecordedJob { at, budget: 10.0, wait: 0.0, held: 1.0, traits, kind, end, is_stored };
        let figures = Replay::new(&[0, 1, 2].map(job), plan).unwrap().figures();
        assert_eq!(figures[0].wait_p99 > Duration::ZERO, waits, "stored: {is_stored}, {figures:?}");
    }
}
