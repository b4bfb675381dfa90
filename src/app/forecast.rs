//! Says what a change of the configuration, or other numbers of workers, would have done to the last jobs of the pools,
//! by replays in the simulator.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    config,
    handler::Kind,
    model::RecordedJob,
    pool::{Pool, Pools, Settings},
    proto::{JobFigures, KindForecast, PoolForecast, SizeForecast},
    sim::{KindFigures, KindPlan, Plan, Replay, measured},
    task::off_thread,
};

/// Maximum number of jobs of one forecast, of all pools. Each is replayed up to 20 times, in about 2 µs each.
const MAX_JOBS: usize = 200_000;
/// Jobs that arrived earlier than this before the last one are left out.
const LAST: Duration = Duration::from_secs(24 * 3600);
/// Fewer jobs of a pool say little.
const MIN_JOBS: usize = 200;
/// The numbers of workers that advice compares, as shares of the number in use.
const SIZES: [f64; 6] = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0];
/// Forecasts come one after the other, on one thread.
static TURN: Semaphore = Semaphore::const_new(1);

/// A pool and its new settings.
pub(super) struct Change {
    pool: Pool,
    settings: Settings,
    kinds: HashMap<Arc<str>, KindPlan>,
}

/// The pools and their new settings.
pub(super) fn changes(pools: &Pools, new: &[config::Pool], kinds: &[Vec<Kind>]) -> Vec<Change> {
    let change = |(new, kinds): (&config::Pool, &Vec<Kind>)| {
        let kinds = kinds.iter().map(|kind| (Arc::clone(kind.name()), kind_plan(kind)));
        let pool = pools.get(&new.name)?.clone();
        Some(Change { pool, settings: new.settings.clone(), kinds: kinds.collect() })
    };
    new.iter().zip(kinds).filter_map(change).collect()
}

/// The forecast for each pool whose scheduling changes. Dropping the future ends the replays. `None` if they panicked.
pub(super) async fn forecasts(changes: Vec<Change>) -> Option<Vec<PoolForecast>> {
    let question = |Change { pool, settings, kinds }: &Change| {
        Question::of(pool, settings, &|name| kinds.get(name).copied()).filter(|it| it.plans[0] != it.plans[1])
    };
    answers(move || changes.iter().filter_map(question).collect()).await
}

/// The forecast for each pool with other numbers of workers; else like [`forecasts`].
pub(super) async fn advice(pools: Vec<Pool>) -> Option<Vec<PoolForecast>> {
    let question = |pool: &Pool| Question::of(pool, pool.settings(), &|name| pool.kind(name).map(kind_plan));
    answers(move || pools.iter().filter_map(question).collect()).await
}

async fn answers(ask: impl FnOnce() -> Vec<Question> + Send + 'static) -> Option<Vec<PoolForecast>> {
    let turn = TURN.acquire().await.ok()?;
    let dropped = CancellationToken::new();
    let _guard = dropped.clone().drop_guard();
    let replays = move || {
        let _turn = turn;
        let asked = ask();
        let max = MAX_JOBS / asked.len().max(1);
        asked.into_iter().map(|question| question.answer(max, &|| !dropped.is_cancelled())).collect()
    };
    off_thread(replays).await.ok()
}

/// What to replay: the jobs of a pool, its settings in use, and the new ones, or the same for advice.
struct Question {
    pool: Arc<str>,
    jobs: Vec<RecordedJob>,
    kinds: Vec<Arc<str>>,
    plans: [Plan; 2],
}

impl Question {
    /// The new settings are those of the pool and of each kind. `None` if a job has no kind that is known.
    fn of(pool: &Pool, settings: &Settings, new: &dyn Fn(&str) -> Option<KindPlan>) -> Option<Self> {
        let (mut jobs, names) = pool.recorded();
        // A kind that was replaced has several numbers.
        let kinds: Vec<_> = names.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect();
        let number = |name| kinds.binary_search(name).ok().and_then(|number| u16::try_from(number).ok());
        let numbers: Vec<_> = names.iter().map(number).collect();
        for job in &mut jobs {
            job.kind = numbers.get(usize::from(job.kind)).copied().flatten()?;
        }
        let plan = |settings: &Settings, bounds, kind: &dyn Fn(&str) -> Option<KindPlan>| Plan {
            caps: settings.caps(),
            bounds,
            when_full: settings.when_full,
            kinds: kinds.iter().map(|name| kind(name)).collect(),
        };
        let [now, then] = pool.bounds_under(settings);
        let plans = [plan(pool.settings(), now, &|name| pool.kind(name).map(kind_plan)), plan(settings, then, new)];
        Some(Self { pool: Arc::clone(pool.name()), jobs, kinds, plans })
    }

    fn answer(self, max: usize, go_on: &dyn Fn() -> bool) -> PoolForecast {
        let Self { pool, jobs, kinds, plans: [old, new] } = self;
        let from = jobs.last().map_or(0, |last| last.at.saturating_sub(LAST.as_micros() as u64));
        let first = jobs.partition_point(|job| job.at < from).max(jobs.len().saturating_sub(max));
        let jobs = &jobs[first..];
        let over = jobs.first().zip(jobs.last()).map(|(first, last)| Duration::from_micros(last.at - first.at));
        let mut forecast = PoolForecast {
            pool: pool.to_string(),
            jobs: jobs.len() as u64,
            over: over.and_then(|over| over.try_into().ok()),
            workers: count(new.bounds.max),
            ..PoolForecast::default()
        };
        let is_advice = old == new;
        let is_served: Vec<_> = new.kinds.iter().map(Option::is_some).collect();
        if jobs.len() >= MIN_JOBS
            && let Some(now) = Replay::new(jobs, old)
            && let Some(mut then) = Replay::new(jobs, new)
        {
            let measured = measured(jobs, kinds.len());
            let (now, later) = (now.figures(), then.figures());
            for (index, kind) in kinds.iter().enumerate().filter(|(index, _)| measured[*index].jobs > 0) {
                forecast.kinds.push(KindForecast {
                    kind: kind.to_string(),
                    measured: Some(figures(measured[index])),
                    now: Some(figures(now[index])),
                    then: is_served[index].then(|| figures(later[index])),
                });
            }
            let fewest = then.fewest_workers(go_on);
            forecast.fewest_workers = fewest.map(count);
            if is_advice {
                forecast.sizes = sizes(&mut then, forecast.workers, forecast.fewest_workers, go_on);
            }
        }
        forecast
    }
}

/// The replays with the fewest workers that are enough, and with fewer and more than there are.
fn sizes(replay: &mut Replay, workers: u32, fewest: Option<u32>, go_on: &dyn Fn() -> bool) -> Vec<SizeForecast> {
    let base = f64::from(if workers == 0 { fewest.unwrap_or(1) } else { workers });
    let counts: BTreeSet<_> =
        SIZES.iter().map(|share| (base * share).round() as u32).chain(fewest).filter(|count| *count > 0).collect();
    let size = |workers: u32| {
        let (all, busy) = replay.with_workers(workers as usize);
        SizeForecast { workers, jobs: Some(figures(all)), busy }
    };
    counts.into_iter().take_while(|_| go_on()).map(size).collect()
}

fn count(workers: usize) -> u32 {
    u32::try_from(workers).unwrap_or(u32::MAX)
}

fn kind_plan(kind: &Kind) -> KindPlan {
    let options = kind.get_options();
    KindPlan { limits: options.limits, run_timeout: options.run_timeout }
}

fn figures(KindFigures { jobs, refused, missed, wait_p99 }: KindFigures) -> JobFigures {
    JobFigures { jobs, refused, missed, wait_p99: wait_p99.try_into().ok() }
}

#[cfg(test)]
#[path = "tests/forecast.rs"]
mod tests;
