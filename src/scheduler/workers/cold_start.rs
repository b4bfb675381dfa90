//! How long a pool without a worker takes to get one. Its workers attach from elsewhere, where something starts them.

use std::time::Duration;

use tokio::time::Instant;

use super::super::{Core, Host, admission::seconds};

/// Longest start that is believed. What takes longer is an outage.
const LONGEST: Duration = Duration::from_secs(300);
/// Weight of one start in the mean.
const WEIGHT: f64 = 0.25;
/// Time for which a refused job still wants a worker, so that an autoscaler that polls sees it.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The starts of a pool that had no worker.
#[derive(Default)]
pub(crate) struct ColdStart {
    /// Mean time from the first job that wanted a worker to the first worker, in seconds.
    mean: f64,
    starts: u32,
    /// When jobs began to want a worker, and when the last such job arrived.
    wanted: Option<(Instant, Instant)>,
}

impl ColdStart {
    /// The usual time; `None` before the first start.
    pub(crate) fn usual(&self) -> Option<Duration> {
        (self.starts > 0).then(|| seconds(self.mean))
    }

    /// Seconds until the first worker. A start that is overdue is expected to take as long again.
    fn left(&self, now: Instant) -> f64 {
        let since = self.wanted.map_or(now, |(since, _)| since);
        let left = self.mean - now.saturating_duration_since(since).as_secs_f64();
        if left > 0.0 { left } else { self.mean }
    }

    /// The first worker has come.
    fn end(&mut self, now: Instant) {
        let Some((since, _)) = self.wanted.take() else { return };
        let took = now.saturating_duration_since(since).min(LONGEST).as_secs_f64();
        self.starts = self.starts.saturating_add(1);
        self.mean += WEIGHT.max(1.0 / f64::from(self.starts)) * (took - self.mean);
    }
}

impl<H: Host> Core<H> {
    /// Whether the pool has no worker, while jobs wait for one, or one was refused a moment ago.
    pub(crate) fn wants_worker(&self, now: Instant) -> bool {
        let is_recent = |(_, last)| now.saturating_duration_since(last) < REMEMBERED;
        let has_jobs = !(self.queue.all.is_empty() && self.queue.waiting.is_empty());
        self.workers.configured() == 0 && self.cold_start.wanted.is_some_and(|wanted| has_jobs || is_recent(wanted))
    }

    /// Seconds until the pool has a worker again, by its earlier starts.
    pub(crate) fn start_wait(&self, now: Instant) -> f64 {
        if self.workers.configured() > 0 { 0.0 } else { self.cold_start.left(now) }
    }

    /// A job wants a worker while there is none.
    pub(crate) fn want_worker(&mut self, now: Instant) {
        let since = self.cold_start.wanted.filter(|_| self.wants_worker(now)).map_or(now, |(since, _)| since);
        self.cold_start.wanted = Some((since, now));
    }

    /// The number of workers changed from `before`.
    pub(crate) fn note_worker_count(&mut self, now: Instant, before: usize) {
        match (before, self.workers.configured()) {
            (0, 1..) => self.cold_start.end(now),
            (1.., 0) if !self.queue.all.is_empty() => self.want_worker(now),
            _ => {}
        }
    }
}
