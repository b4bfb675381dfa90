//! A pool behind an axum handler. A caller says how long it waits, in the header that Envoy sends; a job that cannot
//! end in this time is refused at once, and one whose caller leaves is cancelled.
//!
//! `cargo run --no-default-features --example axum`, and then
//! `curl --data hello --header 'x-envoy-expected-rq-timeout-ms: 500' localhost:3000/upper`

use std::{error::Error, time::Duration};

use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::post,
};
use tokio::net::TcpListener;
use waterwheel::{Job, JobError, Pool, handler::Kind};

fn app() -> Router {
    let upper = Kind::blocking_fn("upper", |job, _cx| Ok(str::from_utf8(&job.payload)?.to_uppercase()));
    let pool = Pool::builder("text").kind(upper).build();
    Router::new().route("/{kind}", post(run)).with_state(pool)
}

async fn run(State(pool): State<Pool>, Path(kind): Path<String>, headers: HeaderMap, body: Bytes) -> Response {
    let mut job = Job::new(kind, body);
    job.timeout = timeout(&headers);
    match pool.submit(job).await {
        Ok(done) => done.output.bytes.into_response(),
        Err(error) => refusal(&error),
    }
}

fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let millis = headers.get("x-envoy-expected-rq-timeout-ms")?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_millis(millis))
}

fn refusal(error: &JobError) -> Response {
    let text = error.to_string();
    match error {
        JobError::Rejected(rejection) => match rejection.retry_after {
            Some(after) => {
                let seconds = after.as_secs_f64().ceil().to_string();
                (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, seconds)], text).into_response()
            }
            None => (StatusCode::BAD_REQUEST, text).into_response(),
        },
        JobError::Failed(failure) if failure.outcome.is_expired() => {
            (StatusCode::GATEWAY_TIMEOUT, text).into_response()
        }
        _ => (StatusCode::UNPROCESSABLE_ENTITY, text).into_response(),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    axum::serve(TcpListener::bind("127.0.0.1:3000").await?, app()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    async fn status(path: &str, body: &'static [u8], timeout_ms: u32) -> StatusCode {
        let request = Request::post(path).header("x-envoy-expected-rq-timeout-ms", timeout_ms);
        let request = request.body(Body::from(body)).expect("the request is valid");
        app().oneshot(request).await.expect("a router does not fail").status()
    }

    #[tokio::test]
    async fn answers_say_how_the_job_ended() {
        assert_eq!(status("/upper", b"hello", 5000).await, StatusCode::OK);
        assert_eq!(status("/upper", b"\xff", 5000).await, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(status("/lower", b"hello", 5000).await, StatusCode::BAD_REQUEST);
    }
}
