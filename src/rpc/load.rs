//! The load of the process, in ORCA's format: in a trailer of every answer if configured, and by [`orca`](super::orca).
//!
//! The figures are refreshed at most every [`EVERY`], by the first call that finds them old, so that an idle process
//! does nothing.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use prost::Message;
use tokio::time::Instant;

use crate::{
    pool::{Pool, Pools},
    proto::xds::data::orca::v3::OrcaLoadReport,
};

/// Trailer that carries an encoded `xds.data.orca.v3.OrcaLoadReport`.
pub(super) const TRAILER: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

/// Age at which figures are refreshed.
const EVERY: Duration = Duration::from_millis(100);
/// Time over which rates are smoothed, in seconds, so that short bursts do not affect a balancer.
const SMOOTH: f64 = 1.0;

/// Utilization of an idle process: clients interpret 0 as no report, and give it no weight of its own.
const IDLE: f64 = 0.01;

/// The load of the process. Clones share the figures.
#[derive(Clone)]
pub struct Load(Arc<Shared>);

struct Shared {
    pools: Pools,
    figures: Mutex<LoadFigures>,
}

struct LoadFigures {
    taken: Instant,
    answered: u64,
    failed: u64,
    report: OrcaLoadReport,
    trailer: HeaderValue,
}

impl Load {
    /// The load of `pools`.
    #[must_use]
    pub fn new(pools: Pools) -> Self {
        let now = Instant::now();
        let (answered, failed) = answers(&pools);
        let report = report(&pools, 0.0, 0.0);
        let trailer = encode(&report);
        Self(Arc::new(Shared {
            pools,
            figures: Mutex::new(LoadFigures { taken: now, answered, failed, report, trailer }),
        }))
    }

    /// The load at `now`.
    pub(super) fn report(&self, now: Instant) -> OrcaLoadReport {
        self.renew(now);
        self.0.figures.lock().report.clone()
    }

    /// The trailer of an answer at `now`.
    pub(super) fn trailer(&self, now: Instant) -> HeaderValue {
        self.renew(now);
        self.0.figures.lock().trailer.clone()
    }

    fn renew(&self, now: Instant) {
        let shared = &*self.0;
        // Another thread is refreshing: use the old figures.
        let Some(mut figures) = shared.figures.try_lock() else { return };
        let passed = now.saturating_duration_since(figures.taken);
        if passed >= EVERY {
            figures.take(&shared.pools, now, passed.as_secs_f64());
        }
    }
}

impl LoadFigures {
    fn take(&mut self, pools: &Pools, now: Instant, passed: f64) {
        let (answered, failed) = answers(pools);
        let weight = 1.0 - (-passed / SMOOTH).exp();
        let smooth = |last: f64, count: u64| last + weight * (count as f64 / passed - last);
        let rps = smooth(self.report.rps_fractional, answered.saturating_sub(self.answered));
        let eps = smooth(self.report.eps, failed.saturating_sub(self.failed));
        let report = report(pools, rps, eps);
        let trailer = encode(&report);
        *self = Self { taken: now, answered, failed, report, trailer };
    }
}

/// Answered jobs, and failed ones among them that their callers did not cause.
fn answers(pools: &Pools) -> (u64, u64) {
    let mut sums = (pools.unknown_kinds(), 0);
    for counts in pools.all().iter().map(|pool| pool.load().counts) {
        let rejected: u64 = counts.rejected.iter().sum();
        sums.0 += counts.ended() + rejected;
        sums.1 += counts.failed + counts.expired + counts.panicked + counts.shed + rejected;
    }
    sums
}

fn report(pools: &Pools, rps: f64, eps: f64) -> OrcaLoadReport {
    let loads: Vec<_> = pools.all().iter().map(Pool::load).collect();
    let depth: usize = loads.iter().map(|load| load.queued).sum();
    OrcaLoadReport {
        application_utilization: loads.iter().map(|load| load.utilization).fold(IDLE, f64::max),
        rps_fractional: rps,
        eps,
        named_metrics: [("queue_depth".to_owned(), depth as f64)].into(),
        ..OrcaLoadReport::default()
    }
}

fn encode(report: &OrcaLoadReport) -> HeaderValue {
    HeaderValue::try_from(BASE64_STANDARD_NO_PAD.encode(report.encode_to_vec())).expect("base64 is visible ASCII")
}
