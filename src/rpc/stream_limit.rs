//! The time limit of a call's HTTP/2 stream.

use std::time::Duration;

use http::HeaderMap;

use super::timeout::{self, GRPC_TIMEOUT};
use crate::{model::DeadlinePolicy, proto::worker_pool_service_server::SERVICE_NAME};

/// The time limit of a call's stream: the deadline of its job, or the caller's timeout for calls without one. Calls for
/// many jobs, and watches, have no limit unless the caller sets one.
pub fn stream_limit(policy: DeadlinePolicy) -> impl Fn(&str, &HeaderMap) -> Option<Duration> {
    move |path, headers| {
        let asked = headers.get(GRPC_TIMEOUT).and_then(|value| timeout::parse(value.to_str().ok()?).ok());
        let method = path.strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE_NAME)).unwrap_or_default();
        match method {
            "/Submit" | "/Stream" => Some(asked.unwrap_or(policy.default).min(policy.max)),
            "/SubmitMany" => asked.map(|asked| asked.min(policy.max)),
            _ => asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_run_jobs_end_with_them_and_others_when_their_callers_say() {
        let limit = stream_limit(DeadlinePolicy::default());
        let (minute, day) = (Some(Duration::from_secs(60)), Some(Duration::from_secs(86_400)));
        let (default, most) = (Some(Duration::from_secs(30)), Some(Duration::from_secs(600)));
        for (path, [unsaid, short, long, unsound]) in [
            ("/waterwheel.v1.WorkerPoolService/Submit", [default, minute, most, default]),
            ("/waterwheel.v1.WorkerPoolService/Stream", [default, minute, most, default]),
            ("/waterwheel.v1.WorkerPoolService/SubmitMany", [None, minute, most, None]),
            ("/waterwheel.v1.WorkerPoolService/WatchStats", [None, minute, day, None]),
            ("/grpc.health.v1.Health/Watch", [None, minute, day, None]),
            ("", [None, minute, day, None]),
        ] {
            let of = |timeout: Option<&'static str>| {
                let timeout = timeout.map(|timeout| (GRPC_TIMEOUT.parse().unwrap(), timeout.parse().unwrap()));
                limit(path, &timeout.into_iter().collect())
            };
            assert_eq!([of(None), of(Some("1M")), of(Some("24H")), of(Some("soon"))], [unsaid, short, long, unsound]);
        }
    }
}
