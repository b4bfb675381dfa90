//! Says what a change of the configuration, or other numbers of workers, would have done to the last jobs of the pools,
//! by replays in the simulator.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    config,
    handler::Kind,
    pool::{Pool, Pools, Settings},
    proto::{JobFigures, KindForecast, PoolForecast, SizeForecast},
    sim::{KindFigures, KindPlan, Plan, Replay, measured},
    task::off_thread,
};

/// Maximum number of jobs of one forecast, of all pools. Each is replayed some ten times, at most 25, in about
/// 1 µs each.
const MAX_JOBS: usize = 200_000;
/// Jobs that arrived earlier than this before the last one are left out.
const LAST: Duration = Duration::from_secs(24 * 3600);
/// Fewer jobs of a pool say little.
const MIN_JOBS: usize = 200;
/// The numbers of workers that advice compares, as shares of the number in use.
const SIZES: [f64; 6] = [0.5, 0.75, 1.0, 1.25, 1.5, 2.0];
/// Forecasts come one after the other, on one thread.
static TURN: Semaphore = Semaphore::const_new(1);

/// What to replay: the last jobs of a pool, under its settings in use and under the new ones, or twice the same for
/// advice.
pub(super) struct Question {
    pool: Pool,
    kinds: Vec<Arc<str>>,
    plans: [Plan; 2],
}

/// A question for each pool whose scheduling changes.
pub(super) fn changes(pools: &Pools, new: &[config::Pool], kinds: &[Vec<Kind>]) -> Vec<Question> {
    let change = |(new, kinds): (&config::Pool, &Vec<Kind>)| {
        let question = Question::of(pools.get(&new.name)?, &new.settings, &|name| {
            kinds.iter().find(|kind| &**kind.name() == name).map(kind_plan)
        });
        (question.plans[0] != question.plans[1]).then_some(question)
    };
    new.iter().zip(kinds).filter_map(change).collect()
}

/// A question for each pool, with other numbers of workers.
pub(super) fn advice(pools: &[Pool]) -> Vec<Question> {
    pools.iter().map(|pool| Question::of(pool, pool.settings(), &|name| pool.kind(name).map(kind_plan))).collect()
}

/// The forecast for each pool. Dropping the future ends the replays. `None` if they panicked.
pub(super) async fn forecasts(questions: Vec<Question>) -> Option<Vec<PoolForecast>> {
    if questions.is_empty() {
        return Some(Vec::new());
    }
    let turn = TURN.acquire().await.ok()?;
    let dropped = CancellationToken::new();
    let _guard = dropped.clone().drop_guard();
    let replays = move || {
        let _turn = turn;
        answers(questions, &|| !dropped.is_cancelled())
    };
    off_thread(replays).await.ok()
}

fn answers(questions: Vec<Question>, go_on: &dyn Fn() -> bool) -> Vec<PoolForecast> {
    let max = MAX_JOBS / questions.len().max(1);
    let questions = questions.into_iter().take_while(|_| go_on());
    questions.filter_map(|question| question.answer(max, go_on)).collect()
}

impl Question {
    /// The new settings are those of the pool and of each kind.
    fn of(pool: &Pool, settings: &Settings, new: &dyn Fn(&str) -> Option<KindPlan>) -> Self {
        // A kind that was replaced has several numbers.
        let kinds: Vec<_> = pool.recorded_kinds().into_iter().collect::<BTreeSet<_>>().into_iter().collect();
        let servers = pool.servers();
        // Of divided limits, each server has a part.
        let part = |KindPlan { limits, run_timeout }| KindPlan { limits: limits.part_of(servers), run_timeout };
        let plan = |settings: &Settings, bounds, kind: &dyn Fn(&str) -> Option<KindPlan>| Plan {
            caps: settings.caps(),
            bounds,
            when_full: settings.when_full,
            kinds: kinds.iter().map(|name| kind(name).map(part)).collect(),
        };
        let [now, then] = pool.bounds_under(settings);
        let plans = [plan(pool.settings(), now, &|name| pool.kind(name).map(kind_plan)), plan(settings, then, new)];
        Self { pool: pool.clone(), kinds, plans }
    }

    /// `None` if a job has a kind that is not known.
    fn answer(self, max: usize, go_on: &dyn Fn() -> bool) -> Option<PoolForecast> {
        let Self { pool, kinds, plans: [old, new] } = self;
        let mut jobs = pool.recorded();
        let number = |name| kinds.binary_search(name).ok().and_then(|number| u16::try_from(number).ok());
        let numbers: Vec<_> = pool.recorded_kinds().iter().map(number).collect();
        for job in &mut jobs {
            job.kind = numbers.get(usize::from(job.kind)).copied().flatten()?;
        }
        let from = jobs.last().map_or(0, |last| last.at.saturating_sub(LAST.as_micros() as u64));
        let first = jobs.partition_point(|job| job.at < from).max(jobs.len().saturating_sub(max));
        let jobs = &jobs[first..];
        let over = jobs.first().zip(jobs.last()).map(|(first, last)| Duration::from_micros(last.at - first.at));
        let mut forecast = PoolForecast {
            pool: pool.name().to_string(),
            jobs: jobs.len() as u64,
            over: over.and_then(|over| over.try_into().ok()),
            workers: count(new.bounds.max),
            recorded_jobs: pool.settings().recorded_jobs as u64,
            ..PoolForecast::default()
        };
        let is_advice = old == new;
        let is_served: Vec<_> = new.kinds.iter().map(Option::is_some).collect();
        if jobs.len() >= MIN_JOBS
            && let Some(now) = Replay::new(jobs, old)
            && let Some(mut then) = Replay::new(jobs, new)
        {
            let measured = measured(jobs, kinds.len());
            let now = now.figures();
            let later = if is_advice { now.clone() } else { then.figures() };
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
        Some(forecast)
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
