//! `/livez` and `/readyz`. Their rules are in `src/rpc/health.rs`.

use std::sync::Arc;

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};

use super::Subject;

/// Whether the process makes progress. A drain does not change it.
pub(super) async fn livez(State(subject): State<Arc<Subject>>) -> Response {
    answer(subject.health.is_serving("liveness"), "a pool lost workers to jobs that do not stop; restart the process")
}

/// Whether the process should get calls.
pub(super) async fn readyz(State(subject): State<Arc<Subject>>) -> Response {
    answer(subject.health.is_serving("readiness"), "the process is starting or draining")
}

fn answer(well: bool, otherwise: &'static str) -> Response {
    if well {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{otherwise}\n")).into_response()
    }
}
