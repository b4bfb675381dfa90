//! Estimates the service time of a kind from its ended jobs.

use std::time::Duration;

use tokio::time::Instant;

use super::seconds;
use crate::model::KindId;

/// Service time of a kind before any measurement.
const FIRST_SERVICE: Duration = Duration::from_millis(50);
/// Weight of one finished job in the mean of its kind.
const JOB_WEIGHT: f64 = 0.05;

/// Time without an ended job after which one job of a kind may pass as a probe, although it would end too late by the
/// estimate. The estimate may be outdated, and no running job would correct it.
const SILENCE: Duration = Duration::from_secs(10);
/// The same time in service times of the kind, for kinds with long jobs. The longer of the two applies.
const SILENT_RUNS: f64 = 10.0;
/// Weight of the run after a probe.
const PROBE_WEIGHT: f64 = 0.5;

/// Service times, in seconds.
pub(crate) struct Estimates {
    kinds: Vec<ServiceTime>,
    /// Over all kinds.
    mean: ServiceTime,
}

/// Exponentially weighted mean of service times. The first samples are averaged with equal weights, so that the initial
/// value has no lasting effect.
#[derive(Clone, Copy)]
struct ServiceTime {
    seconds: f64,
    samples: u32,
    /// When a run last ended, or a probe was allowed.
    heard: Option<Instant>,
    /// Whether the next run gets a higher weight, because the estimate may be outdated.
    is_stale: bool,
}

impl ServiceTime {
    fn add(&mut self, seconds: f64) {
        self.samples = self.samples.saturating_add(1);
        let weight = if std::mem::take(&mut self.is_stale) { PROBE_WEIGHT } else { 0.0 };
        self.seconds += self.weight().max(weight) * (seconds - self.seconds);
    }

    /// Corrects one of the last samples, which was `more` seconds too short.
    fn lengthen(&mut self, more: f64) {
        self.seconds += self.weight() * more;
    }

    fn weight(&self) -> f64 {
        JOB_WEIGHT.max(1.0 / f64::from(self.samples))
    }
}

impl Estimates {
    /// Kinds without measurements.
    pub(crate) fn new(kinds: usize) -> Self {
        let unknown = ServiceTime { seconds: FIRST_SERVICE.as_secs_f64(), samples: 0, heard: None, is_stale: false };
        Self { kinds: vec![unknown; kinds], mean: unknown }
    }

    /// Extends to `kinds` kinds; new ones have no measurements.
    pub(crate) fn extend(&mut self, kinds: usize) {
        let unknown = Self::new(kinds.saturating_sub(self.kinds.len()));
        self.kinds.extend(unknown.kinds);
    }

    /// Learns from a run. Returns the seconds that the estimate used.
    pub(crate) fn observe(&mut self, kind: KindId, run: Duration) -> f64 {
        let seconds = run.as_secs_f64();
        self.kinds[kind.0].add(seconds);
        self.mean.add(seconds);
        seconds
    }

    /// Learns from a run that was cut at its deadline, and would have continued. For exponential times that would be
    /// one more mean; it is added, up to the time that the job ran.
    pub(crate) fn observe_cut(&mut self, kind: KindId, run: Duration) -> f64 {
        let more = self.service(kind).min(run.as_secs_f64());
        self.observe(kind, run.saturating_add(Duration::from_secs_f64(more)))
    }

    /// Learns from a run that was cut by a limit other than its deadline. That only shows that the job takes longer.
    pub(crate) fn observe_longer(&mut self, kind: KindId, run: Duration) -> f64 {
        if run.as_secs_f64() > self.service(kind) { self.observe(kind, run) } else { 0.0 }
    }

    /// Learns that a run, counted with `counted` seconds, occupied its worker for `held`.
    pub(crate) fn observe_held(&mut self, kind: KindId, counted: f64, held: Duration) {
        let more = held.as_secs_f64() - counted;
        if counted <= 0.0 {
            self.observe_longer(kind, held);
        } else if more > 0.0 {
            self.kinds[kind.0].lengthen(more);
            self.mean.lengthen(more);
        }
    }

    /// A measured job of `kind` ended.
    pub(crate) fn note_end(&mut self, kind: KindId, now: Instant) {
        self.kinds[kind.0].heard = Some(now);
    }

    /// Whether a job of `kind` may be queued as a probe.
    pub(crate) fn may_probe(&self, kind: KindId, now: Instant) -> bool {
        let Some(heard) = self.kinds[kind.0].heard else { return true };
        let silence = SILENCE.max(seconds(SILENT_RUNS * self.kinds[kind.0].seconds));
        now.saturating_duration_since(heard) >= silence
    }

    /// A probe is queued.
    pub(crate) fn probe(&mut self, kind: KindId, now: Instant) {
        let known = &mut self.kinds[kind.0];
        (known.heard, known.is_stale) = (Some(now), true);
    }

    /// Expected service time of a job of `kind`; the mean of the pool if only other kinds were measured.
    pub(crate) fn service(&self, kind: KindId) -> f64 {
        let known = if self.kinds[kind.0].samples > 0 { &self.kinds[kind.0] } else { &self.mean };
        known.seconds
    }

    /// Expected service time of a job of `kind`, if the kind was measured.
    pub(crate) fn measured(&self, kind: KindId) -> Option<f64> {
        Some(self.kinds[kind.0].seconds).filter(|_| self.kinds[kind.0].samples > 0)
    }

    /// Measured runs of `kind`.
    pub(crate) fn runs(&self, kind: KindId) -> u32 {
        self.kinds[kind.0].samples
    }

    /// Mean service time of the pool.
    pub(crate) fn mean(&self) -> f64 {
        self.mean.seconds
    }

    /// Whether anything was measured.
    pub(crate) fn is_measured(&self) -> bool {
        self.mean.samples > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_replaces_the_start_value() {
        let mut estimates = Estimates::new(1);
        assert!((estimates.service(KindId(0)) - 0.050).abs() < 1e-9 && estimates.measured(KindId(0)).is_none());
        estimates.observe(KindId(0), Duration::from_millis(10));
        assert!((estimates.service(KindId(0)) - 0.010).abs() < 1e-9);
        for _ in 0..200 {
            estimates.observe(KindId(0), Duration::from_millis(20));
        }
        assert!((estimates.service(KindId(0)) - 0.020).abs() < 1e-4);
    }
    #[test]
    fn a_kind_without_recent_ends_allows_one_probe() {
        let (start, mut estimates) = (Instant::now(), Estimates::new(1));
        for _ in 0..100 {
            estimates.observe(KindId(0), Duration::from_secs(2));
        }
        estimates.note_end(KindId(0), start);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(
            !estimates.may_probe(KindId(0), at(19)) && estimates.may_probe(KindId(0), at(20)),
            "ten runs of two seconds"
        );
        estimates.probe(KindId(0), at(20));
        assert!(!estimates.may_probe(KindId(0), at(39)));
        estimates.observe(KindId(0), Duration::from_millis(10));
        assert!((estimates.service(KindId(0)) - 1.0).abs() < 0.01, "the probe weighs as much as all earlier runs");
        estimates.observe(KindId(0), Duration::from_millis(10));
        assert!((estimates.service(KindId(0)) - 0.95).abs() < 0.01, "the next run has the usual weight");
    }
}
