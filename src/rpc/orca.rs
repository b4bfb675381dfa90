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

/// Time between reports where the caller asks for none.
const DEFAULT: Duration = Duration::from_secs(10);
/// Least time between reports.
const LEAST: Duration = Duration::from_millis(100);
/// Most time between reports.
const MOST: Duration = Duration::from_secs(3600);

/// `xds.service.orca.v3.OpenRcaService`: the load out of band, for clients with few calls.
#[derive(Clone)]
pub struct Orca {
    load: Load,
    watches: Watches,
}

impl Orca {
    /// Reports `load` until nothing runs any more.
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
        let every = asked.filter(|asked| !asked.is_zero()).unwrap_or(DEFAULT);
        let mut ticks = interval(every.clamp(LEAST, MOST));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let load = self.load.clone();
        let reports = IntervalStream::new(ticks).map(move |_| Ok(load.report(Instant::now())));
        Ok(Response::new(Box::pin(reports.take_until(ended))))
    }
}
