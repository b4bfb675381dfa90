//! The figures of the process as families of points, which `/metrics` writes as text, and `otlp.rs` sends.

use std::time::Duration;

use tokio::time::Instant;

use crate::model::Durations;

/// One metric, with a point for each set of labels.
#[derive(Debug)]
pub(super) struct Family {
    /// Its name, in which a counter has no `_total`, and durations have no unit.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) sort: Sort,
    pub(super) points: Vec<(Labels, Value)>,
}

/// Names and values.
pub(super) type Labels = Vec<(&'static str, String)>;

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    /// A sum that only rises.
    Counter,
    /// A level.
    Gauge,
    /// A histogram, in seconds.
    Durations,
}

/// The value of a point.
#[derive(Debug)]
pub(super) enum Value {
    Whole(u64),
    Number(f64),
    Durations(Box<Durations>, Vec<Exemplar>),
}

/// A duration with the trace in which it was measured.
#[derive(Debug)]
pub(super) struct Exemplar {
    /// 32 hexadecimal digits.
    pub(super) trace_id: Box<str>,
    pub(super) duration: Duration,
    pub(super) at: Instant,
}

impl From<&Durations> for Value {
    fn from(durations: &Durations) -> Self {
        Self::Durations(Box::new(durations.clone()), Vec::new())
    }
}

impl From<(&Durations, Vec<Exemplar>)> for Value {
    fn from((durations, exemplars): (&Durations, Vec<Exemplar>)) -> Self {
        Self::Durations(Box::new(durations.clone()), exemplars)
    }
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Whole(count)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

/// Collects one family after another.
#[derive(Debug, Default)]
pub(super) struct Families(pub(super) Vec<Family>);

impl Families {
    /// A counter without labels.
    pub(super) fn counter(&mut self, name: &'static str, help: &'static str, value: u64) {
        self.counters(name, help, [([("", ""); 0], value)]);
    }

    /// A gauge without labels.
    pub(super) fn gauge(&mut self, name: &'static str, help: &'static str, value: f64) {
        self.gauges(name, help, [([("", ""); 0], value)]);
    }

    /// A counter for each label set.
    pub(super) fn counters<V: Into<String>, const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        values: impl IntoIterator<Item = ([(&'static str, V); N], impl Into<Value>)>,
    ) {
        self.add(name, help, Sort::Counter, values);
    }

    /// A gauge for each label set.
    pub(super) fn gauges<V: Into<String>, const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        values: impl IntoIterator<Item = ([(&'static str, V); N], f64)>,
    ) {
        self.add(name, help, Sort::Gauge, values);
    }

    /// A histogram for each label set.
    pub(super) fn durations<V: Into<String>, const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        values: impl IntoIterator<Item = ([(&'static str, V); N], impl Into<Value>)>,
    ) {
        self.add(name, help, Sort::Durations, values);
    }

    fn add<V: Into<String>, const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        sort: Sort,
        values: impl IntoIterator<Item = ([(&'static str, V); N], impl Into<Value>)>,
    ) {
        let owned = |labels: [(&'static str, V); N]| labels.into_iter().map(|(name, it)| (name, it.into())).collect();
        let points = values.into_iter().map(|(labels, value)| (owned(labels), value.into()));
        self.0.push(Family { name, help, sort, points: points.collect() });
    }
}
