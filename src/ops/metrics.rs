//! `/metrics` for Prometheus, written anew for each request.
//!
//! Names follow OpenTelemetry's as Prometheus writes them: dots become underscores, units and `_total` are appended.

mod calls;
mod detached;
mod family;
mod jobs;
mod process;
mod security;

use std::sync::Arc;

use axum::{
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use prometheus_client::{encoding::text, registry::Registry};

use self::{
    calls::CallMetrics, detached::DetachedMetrics, jobs::JobMetrics, process::ProcessMetrics, security::SecurityMetrics,
};
use super::Subject;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(super) async fn metrics(State(subject): State<Arc<Subject>>) -> Response {
    let mut page = String::new();
    match write(&subject, &mut page) {
        Ok(()) => ([(CONTENT_TYPE, OPEN_METRICS)], page).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot write the metrics: {error}\n")).into_response()
        }
    }
}

fn write(subject: &Arc<Subject>, page: &mut String) -> std::fmt::Result {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessMetrics(Arc::clone(subject))));
    registry.register_collector(Box::new(CallMetrics(Arc::clone(subject))));
    registry.register_collector(Box::new(JobMetrics(Arc::clone(subject))));
    registry.register_collector(Box::new(DetachedMetrics(Arc::clone(subject))));
    registry.register_collector(Box::new(SecurityMetrics(Arc::clone(subject))));
    text::encode(page, &registry)
}
