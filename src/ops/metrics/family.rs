//! Writes metric families in the text format. The families themselves are in the files beside this one.

use std::fmt;

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

use crate::model::Durations;

/// Writes one metric family after another.
pub(super) struct Families<'a> {
    encoder: DescriptorEncoder<'a>,
    error: fmt::Result,
}

/// Writes the metrics of one family, each with its labels.
pub(super) struct Family<'a>(MetricEncoder<'a>);

impl<'a> Families<'a> {
    pub(super) fn new(encoder: DescriptorEncoder<'a>) -> Self {
        Self { encoder, error: Ok(()) }
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, write: impl FnOnce(&mut Family<'_>) -> fmt::Result) {
        self.family(name, help, None, MetricType::Counter, write);
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, write: impl FnOnce(&mut Family<'_>) -> fmt::Result) {
        self.family(name, help, None, MetricType::Gauge, write);
    }

    /// Durations; the unit is added to the name.
    pub(super) fn durations(&mut self, name: &str, help: &str, write: impl FnOnce(&mut Family<'_>) -> fmt::Result) {
        self.family(name, help, Some(Unit::Seconds), MetricType::Histogram, write);
    }

    /// The first error, if there was one.
    pub(super) fn finish(self) -> fmt::Result {
        self.error
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        kind: MetricType,
        write: impl FnOnce(&mut Family<'_>) -> fmt::Result,
    ) {
        if self.error.is_ok() {
            let family = self.encoder.encode_descriptor(name, help, unit.as_ref(), kind);
            self.error = family.and_then(|family| write(&mut Family(family)));
        }
    }
}

impl Family<'_> {
    pub(super) fn count(&mut self, labels: &impl EncodeLabelSet, value: u64) -> fmt::Result {
        self.0.encode_family(labels)?.encode_counter::<NoLabelSet, u64, u64>(&value, None)
    }

    /// The single metric of a family without labels.
    pub(super) fn only_count(&mut self, value: u64) -> fmt::Result {
        self.0.encode_counter::<NoLabelSet, u64, u64>(&value, None)
    }

    /// The single metric of a family without labels.
    pub(super) fn only_level(&mut self, value: f64) -> fmt::Result {
        self.0.encode_gauge(&value)
    }

    pub(super) fn count_seconds(&mut self, labels: &impl EncodeLabelSet, value: f64) -> fmt::Result {
        self.0.encode_family(labels)?.encode_counter::<NoLabelSet, f64, u64>(&value, None)
    }

    pub(super) fn level(&mut self, labels: &impl EncodeLabelSet, value: f64) -> fmt::Result {
        self.0.encode_family(labels)?.encode_gauge(&value)
    }

    pub(super) fn measured(&mut self, labels: &impl EncodeLabelSet, durations: &Durations) -> fmt::Result {
        let bounds = Durations::BOUNDS.iter().map(|nanos| *nanos as f64 / 1e9).chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(durations.counts).collect();
        let (sum, count) = (durations.sum.as_secs_f64(), durations.count());
        self.0.encode_family(labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}
