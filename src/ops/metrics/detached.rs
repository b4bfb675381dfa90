//! Metrics of detached jobs.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::{super::Subject, family::Families};

/// The jobs of the store, by kind. Without a store there are no series.
pub(super) struct DetachedMetrics(pub(super) Arc<Subject>);

impl fmt::Debug for DetachedMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DetachedMetrics")
    }
}

impl Collector for DetachedMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder);
        let Some(detached) = &self.0.detached else { return Ok(()) };
        // Kinds that are served have their series also while they have no jobs.
        let mut depths: BTreeMap<_, _> =
            self.0.pools.kinds().map(|kind| (kind.to_string(), Default::default())).collect();
        depths.extend(detached.depths());
        families.gauge("waterwheel_detached_jobs", "Detached jobs by state", |family| {
            depths.iter().try_for_each(|(kind, depth)| {
                let states = [
                    ("scheduled", depth.scheduled),
                    ("ready", depth.ready),
                    ("blocked", depth.blocked),
                    ("running", depth.leased),
                    ("dead", depth.dead),
                ];
                let mut states = states.into_iter();
                states.try_for_each(|(state, jobs)| family.level(&[("kind", &**kind), ("state", state)], jobs as f64))
            })
        });
        let help = "Age of the detached job that has been ready for the longest time";
        families.gauge("waterwheel_detached_oldest_ready_age_seconds", help, |family| {
            depths.iter().try_for_each(|(kind, depth)| {
                family.level(&[("kind", &**kind)], depth.oldest_ready.unwrap_or_default().as_secs_f64())
            })
        });
        families.finish()
    }
}
