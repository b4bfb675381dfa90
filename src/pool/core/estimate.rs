use std::time::Duration;

use tokio::time::Instant;

use super::law::JOB_WEIGHT;

/// After a job had less time than its kind takes, and missed its deadline, others with so little time are not started for
/// so many times the time that it ran, while half of the workers are busy: such attempts take little of what others need.
const BAR: u32 = 20;
/// Most jobs of a kind that are tried at once: one at first, and twice as many with each that ends in time.
const MOST_TRIED: u32 = 64;

/// How long jobs run, in seconds.
pub(super) struct Estimates {
    kinds: Vec<ServiceTime>,
    /// Over the kinds as they come.
    mean: ServiceTime,
}

/// Exponentially weighted mean of service times; the first samples weigh as much as a plain mean gives them, so that
/// the start value is forgotten at once.
#[derive(Clone, Copy)]
struct ServiceTime {
    seconds: f64,
    samples: u32,
    /// Until when jobs with less time than that are not tried.
    barred_until: Option<Instant>,
    /// Jobs with less time than that which are tried, and how many may be at once.
    tried: u32,
    may_be_tried: u32,
}

impl ServiceTime {
    fn add(&mut self, seconds: f64) {
        self.samples = self.samples.saturating_add(1);
        self.seconds += self.weight() * (seconds - self.seconds);
    }

    /// One of the last samples was so many seconds too short.
    fn lengthen(&mut self, more: f64) {
        self.seconds += self.weight() * more;
    }

    fn weight(&self) -> f64 {
        JOB_WEIGHT.max(1.0 / f64::from(self.samples))
    }
}

impl Estimates {
    /// Kinds that nothing is known of, and that are taken to run for `start`.
    pub(super) fn new(kinds: usize, start: Duration) -> Self {
        let unknown =
            ServiceTime { seconds: start.as_secs_f64(), samples: 0, barred_until: None, tried: 0, may_be_tried: 1 };
        Self { kinds: vec![unknown; kinds], mean: unknown }
    }

    /// Knows so many kinds from now on, of the further ones nothing.
    pub(super) fn extend(&mut self, kinds: usize, start: Duration) {
        let unknown = Self::new(kinds.saturating_sub(self.kinds.len()), start);
        self.kinds.extend(unknown.kinds);
    }

    /// Learns from a run. Returns the seconds that it counts, as the others do.
    pub(super) fn observe(&mut self, kind: usize, run: Duration) -> f64 {
        let seconds = run.as_secs_f64();
        self.kinds[kind].add(seconds);
        self.mean.add(seconds);
        seconds
    }

    /// Learns from a run that was cut at its deadline: it would have gone on. Where times are exponential, by another mean;
    /// here by that, but no longer than it ran.
    pub(super) fn observe_cut(&mut self, kind: usize, run: Duration, finish_by: Instant) -> f64 {
        let (seconds, service) = (run.as_secs_f64(), self.service(kind));
        let known = &mut self.kinds[kind];
        if known.samples > 0 && seconds < service {
            known.barred_until = run.checked_mul(BAR).and_then(|bar| finish_by.checked_add(bar));
        }
        let whole = run.saturating_add(Duration::from_secs_f64(service.min(seconds)));
        self.observe(kind, whole)
    }

    /// Learns from a run that was cut at a bound of its own, which says nothing but that it takes longer.
    pub(super) fn observe_longer(&mut self, kind: usize, run: Duration) -> f64 {
        if run.as_secs_f64() > self.service(kind) { self.observe(kind, run) } else { 0.0 }
    }

    /// Learns that a run of which so many seconds count held its worker for so long.
    pub(super) fn observe_held(&mut self, kind: usize, counted: f64, held: Duration) {
        let more = held.as_secs_f64() - counted;
        if counted <= 0.0 {
            self.observe_longer(kind, held);
        } else if more > 0.0 {
            self.kinds[kind].lengthen(more);
            self.mean.lengthen(more);
        }
    }

    /// Until when a job of `kind` with so much time is not tried, for it would not end in time: those before it did not.
    pub(super) fn bar(&self, kind: usize, now: Instant, finish_by: Instant) -> Option<Instant> {
        let until = self.kinds[kind].barred_until.filter(|until| *until > now)?;
        let budget = finish_by.saturating_duration_since(now).as_secs_f64();
        (budget < self.kinds[kind].seconds).then_some(until)
    }

    /// Whether a job of `kind` may be queued that would not end in time, going by what its kind took. Without a try a
    /// kind that was slow for a while, or for somebody, would be refused for good: nothing that runs says otherwise.
    pub(super) fn may_try(&self, kind: usize, now: Instant) -> bool {
        let known = &self.kinds[kind];
        known.tried < known.may_be_tried && known.barred_until.is_none_or(|until| until <= now)
    }

    pub(super) fn try_one(&mut self, kind: usize) {
        self.kinds[kind].tried += 1;
    }

    /// A try is over: in time, too late, or for another reason.
    pub(super) fn end_try(&mut self, kind: usize, in_time: Option<bool>) {
        let known = &mut self.kinds[kind];
        known.tried -= 1;
        known.may_be_tried = match in_time {
            Some(true) => (known.may_be_tried * 2).min(MOST_TRIED),
            Some(false) => 1,
            None => known.may_be_tried,
        };
    }

    /// Expected service time of a job of `kind`: the pool's mean where only others were measured.
    pub(super) fn service(&self, kind: usize) -> f64 {
        let known = if self.kinds[kind].samples > 0 { &self.kinds[kind] } else { &self.mean };
        known.seconds
    }

    /// The same, once it was measured.
    pub(super) fn measured(&self, kind: usize) -> Option<f64> {
        Some(self.kinds[kind].seconds).filter(|_| self.kinds[kind].samples > 0)
    }

    /// Runs of `kind` that were measured.
    pub(super) fn runs(&self, kind: usize) -> u32 {
        self.kinds[kind].samples
    }

    /// Mean service time of the pool.
    pub(super) fn mean(&self) -> f64 {
        self.mean.seconds
    }

    /// Whether anything was measured.
    pub(super) fn is_measured(&self) -> bool {
        self.mean.samples > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_replaces_the_start_value() {
        let mut estimates = Estimates::new(1, Duration::from_millis(50));
        assert!((estimates.service(0) - 0.050).abs() < 1e-9 && estimates.measured(0).is_none());
        estimates.observe(0, Duration::from_millis(10));
        assert!((estimates.service(0) - 0.010).abs() < 1e-9);
        for _ in 0..200 {
            estimates.observe(0, Duration::from_millis(20));
        }
        assert!((estimates.service(0) - 0.020).abs() < 1e-4);
    }
}
