//! Metrics of the process, its build and its runtimes.

use std::{fmt, sync::Arc, time::Duration};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use tokio::runtime::RuntimeMetrics;

use super::{super::Subject, family::Families};
use crate::phase::Phase;

const PHASES: [Phase; 5] = [Phase::Starting, Phase::Serving, Phase::Draining, Phase::Stopping, Phase::Stopped];

/// The process, its build and its runtimes.
pub(super) struct ProcessMetrics(pub(super) Arc<Subject>);

impl fmt::Debug for ProcessMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProcessMetrics")
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder);
        families.gauge("waterwheel_build_info", "The program, as a label; always 1", |family| {
            let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
            family.level(&[("version", env!("CARGO_PKG_VERSION")), ("profile", profile)], 1.0)
        });
        families.gauge("waterwheel_uptime_seconds", "Time since the start", |family| {
            family.only_level(self.0.started.elapsed().as_secs_f64())
        });
        families.gauge("waterwheel_phase", "1 for the current phase of the process", |family| {
            let now = self.0.phase.get();
            PHASES.iter().try_for_each(|phase| {
                let name = format!("{phase:?}").to_lowercase();
                family.level(&[("phase", name)], f64::from(u8::from(*phase == now)))
            })
        });
        families.gauge("waterwheel_health", "1 if the name of grpc.health.v1 is SERVING", |family| {
            ["liveness", "readiness", "capacity"].iter().try_for_each(|name| {
                family.level(&[("service", *name)], f64::from(u8::from(self.0.health.is_serving(name))))
            })
        });
        self.runtimes(&mut families);
        families.finish()
    }
}

impl ProcessMetrics {
    fn runtimes(&self, families: &mut Families<'_>) {
        let runtimes = self.0.runtimes.read();
        let workers = |runtime: &RuntimeMetrics| 0..runtime.num_workers();
        families.gauge("tokio_runtime_alive_tasks", "Tasks of a runtime", |family| {
            runtimes.iter().try_for_each(|(name, runtime)| {
                family.level(&[("runtime", name.as_str())], runtime.num_alive_tasks() as f64)
            })
        });
        families.gauge("tokio_runtime_global_queue_depth", "Tasks in the global queue of a runtime", |family| {
            runtimes.iter().try_for_each(|(name, runtime)| {
                family.level(&[("runtime", name.as_str())], runtime.global_queue_depth() as f64)
            })
        });
        families.counter("tokio_runtime_busy_seconds", "Time for which a runtime ran tasks", |family| {
            runtimes.iter().try_for_each(|(name, runtime)| {
                let busy: Duration = workers(runtime).map(|worker| runtime.worker_total_busy_duration(worker)).sum();
                family.count_seconds(&[("runtime", name.as_str())], busy.as_secs_f64())
            })
        });
        families.counter("tokio_runtime_parks", "Times that a runtime ran out of tasks", |family| {
            runtimes.iter().try_for_each(|(name, runtime)| {
                let parks = workers(runtime).map(|worker| runtime.worker_park_count(worker)).sum();
                family.count(&[("runtime", name.as_str())], parks)
            })
        });
    }
}
