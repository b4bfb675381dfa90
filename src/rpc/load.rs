//! The load of the process, in ORCA's format: in a trailer of every answer if configured, and in out-of-band reports.
//!
//! The first call that finds the figures older than [`REFRESH_INTERVAL`] refreshes them, so that an idle process does
//! nothing.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use futures_util::StreamExt;
use http::{HeaderName, HeaderValue};
use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use tokio::time::Instant;
use tonic::{Request, Response, Status, async_trait};

use super::{
    AccessControl, Watches,
    service_state::ResponseStream,
    watches::{ticks, until},
};
use crate::{
    phase::PhaseCell,
    pool::{Pool, Pools},
    proto::xds::{
        data::orca::v3::OrcaLoadReport,
        service::orca::v3::{OrcaLoadReportRequest, open_rca_service_server::OpenRcaService},
    },
};

/// Trailer that carries an encoded `xds.data.orca.v3.OrcaLoadReport`.
pub(super) const TRAILER: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

/// Age at which figures are refreshed.
const REFRESH_INTERVAL: Duration = Duration::from_millis(100);
/// Time over which rates are smoothed, in seconds, so that short bursts do not affect a balancer.
const SMOOTHING_TIME: f64 = 1.0;

/// Least utilization that is reported. Clients ignore 0, as a missing report. They weigh servers by 1 / utilization:
/// with a floor of 0.01, an idle server would get 25 times the calls of one that is a quarter busy.
const IDLE: f64 = 0.1;

/// The load of the process. Clones share the figures.
#[derive(Clone)]
pub struct Load(Arc<Mutex<LoadFigures>>);

struct LoadFigures {
    pools: Pools,
    taken: Instant,
    answered: u64,
    failed: u64,
    report: OrcaLoadReport,
    trailer: HeaderValue,
}

impl Load {
    /// The load of `pools`.
    pub fn new(pools: Pools) -> Self {
        let (answered, failed) = answers(&pools);
        let report = report(&pools, 0.0, 0.0);
        let trailer = encode(&report);
        Self(Arc::new(Mutex::new(LoadFigures { pools, taken: Instant::now(), answered, failed, report, trailer })))
    }

    /// The load at `now`.
    pub(super) fn report(&self, now: Instant) -> OrcaLoadReport {
        self.at(now).report.clone()
    }

    /// The trailer of an answer at `now`.
    pub(super) fn trailer(&self, now: Instant) -> HeaderValue {
        self.at(now).trailer.clone()
    }

    fn at(&self, now: Instant) -> MutexGuard<'_, LoadFigures> {
        let mut figures = self.0.lock();
        let passed = now.saturating_duration_since(figures.taken);
        if passed >= REFRESH_INTERVAL {
            figures.renew(now, passed.as_secs_f64());
        }
        figures
    }
}

impl LoadFigures {
    fn renew(&mut self, now: Instant, passed: f64) {
        let (answered, failed) = answers(&self.pools);
        let weight = 1.0 - (-passed / SMOOTHING_TIME).exp();
        let smooth = |last: f64, count: u64| last + weight * (count as f64 / passed - last);
        let rps = smooth(self.report.rps_fractional, answered.saturating_sub(self.answered));
        let eps = smooth(self.report.eps, failed.saturating_sub(self.failed));
        (self.taken, self.answered, self.failed) = (now, answered, failed);
        self.report = report(&self.pools, rps, eps);
        self.trailer = encode(&self.report);
    }
}

/// Number of answered jobs, and how many of these failed. Cancelled jobs and jobs of unknown kinds did not fail: their
/// callers are the cause.
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

/// Default interval of the reports.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest interval.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Longest interval.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

/// `xds.service.orca.v3.OpenRcaService`: load reports for clients with few calls.
#[derive(Clone)]
pub(super) struct Orca {
    load: Load,
    watches: Watches,
}

impl Orca {
    /// Reports `load` until the process has stopped, or the credentials of the caller have expired.
    pub(super) fn new(load: Load, phase: PhaseCell, access: AccessControl) -> Self {
        Self { load, watches: Watches::new(phase, usize::MAX, access) }
    }
}

#[async_trait]
impl OpenRcaService for Orca {
    type StreamCoreMetricsStream = ResponseStream<OrcaLoadReport>;

    /// Reports now and at each interval.
    async fn stream_core_metrics(
        &self,
        request: Request<OrcaLoadReportRequest>,
    ) -> Result<Response<Self::StreamCoreMetricsStream>, Status> {
        let ended = self.watches.open(&request)?;
        let asked = request.into_inner().report_interval.and_then(|asked| Duration::try_from(asked).ok());
        let every = asked.filter(|asked| !asked.is_zero()).unwrap_or(DEFAULT_INTERVAL);
        let load = self.load.clone();
        let ticks = ticks(every.clamp(MIN_INTERVAL, MAX_INTERVAL));
        let reports = ticks.map(move |()| Ok(load.report(Instant::now())));
        Ok(Response::new(until(ended, reports)))
    }
}
