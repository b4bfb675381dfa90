//! Load reports out of band. `load.rs` collects the figures.

use std::{pin::Pin, time::Duration};

use futures_util::{Stream, StreamExt};
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_stream::wrappers::IntervalStream;
use tonic::{Request, Response, Status, async_trait};

use super::{Watches, load::Load};
use crate::{
    phase::PhaseCell,
    proto::xds::{
        data::orca::v3::OrcaLoadReport,
        service::orca::v3::{OrcaLoadReportRequest, open_rca_service_server::OpenRcaService},
    },
};

/// Default interval of the reports.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest interval.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Longest interval.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);

/// `xds.service.orca.v3.OpenRcaService`: load reports for clients that make few calls.
#[derive(Clone)]
pub struct Orca {
    load: Load,
    watches: Watches,
}

impl Orca {
    /// Reports `load` until the process has stopped.
    #[must_use]
    pub fn new(load: Load, phase: PhaseCell) -> Self {
        Self { load, watches: Watches::new(phase, usize::MAX) }
    }
}

#[async_trait]
impl OpenRcaService for Orca {
    type StreamCoreMetricsStream = Pin<Box<dyn Stream<Item = Result<OrcaLoadReport, Status>> + Send>>;

    /// A report now and at each interval.
    async fn stream_core_metrics(
        &self,
        request: Request<OrcaLoadReportRequest>,
    ) -> Result<Response<Self::StreamCoreMetricsStream>, Status> {
        let ended = self.watches.open(&request)?;
        let asked = request.into_inner().report_interval.and_then(|asked| Duration::try_from(asked).ok());
        let every = asked.filter(|asked| !asked.is_zero()).unwrap_or(DEFAULT_INTERVAL);
        let mut ticks = interval(every.clamp(MIN_INTERVAL, MAX_INTERVAL));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let load = self.load.clone();
        let reports = IntervalStream::new(ticks).map(move |_| Ok(load.report(Instant::now())));
        Ok(Response::new(Box::pin(reports.take_until(ended))))
    }
}
