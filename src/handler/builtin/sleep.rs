//! `builtin = "sleep"`: waits as long as the payload says, for tests and benchmarks.

use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep_until};

use crate::{
    handler::{Context, Handler},
    model::{HandlerError, Job, Output},
};

const MAX_MS: u64 = 3_600_000;
const STEPS: u32 = 10;
const GOOD: &str = r#"send {"ms":1500}, or just 1500"#;

/// Waits, and tells every tenth.
pub(super) struct Sleep;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    ms: u64,
    #[serde(default)]
    ignore_cancel: bool,
}

impl Handler for Sleep {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let request = parse(&job.payload)?;
        let doze = doze(Duration::from_millis(request.ms), &cx);
        if request.ignore_cancel {
            doze.await;
        } else {
            tokio::select! {
                biased;
                _ = cx.cancelled() => return Err(HandlerError::Stopped),
                () = doze => {}
            }
        }
        Ok(Output::typed(format!("slept {} ms", request.ms), "text/plain"))
    }
}

async fn doze(total: Duration, cx: &Context) {
    let begin = Instant::now();
    for step in 1..=STEPS {
        let slept = total * step / STEPS;
        sleep_until(begin + slept).await;
        cx.progress(f64::from(step) / f64::from(STEPS), format!("slept {slept:?} of {total:?}"));
    }
}

fn parse(payload: &[u8]) -> Result<Request, HandlerError> {
    let request = match serde_json::from_slice::<u64>(payload) {
        Ok(ms) => Ok(Request { ms, ignore_cancel: false }),
        Err(_) => serde_json::from_slice(payload),
    };
    let request: Request = request
        .map_err(|fault| HandlerError::invalid(format!("the payload of sleep is not understood ({fault}); {GOOD}")))?;
    if request.ms > MAX_MS {
        let message = format!("{} ms is over the {MAX_MS} ms (one hour) that sleep allows; {GOOD}", request.ms);
        return Err(HandlerError::invalid(message));
    }
    Ok(request)
}

#[cfg(test)]
mod tests {
    use tokio::{sync::mpsc, time::timeout};

    use super::*;
    use crate::{
        handler::{Event, StopReason, context::bench},
        model::FailureCode,
    };

    #[tokio::test(start_paused = true)]
    async fn sleeps_as_long_as_asked_and_tells_every_tenth() {
        for payload in [r#"{"ms":1500}"#, "1500", " 1500\n"] {
            let begin = Instant::now();
            let (events, mut reader) = mpsc::channel(16);
            let cx = bench::stream(64, events).context;
            let output = Sleep.handle(Box::new(Job::new("sleep", payload)), cx).await;
            assert_eq!(output, Ok(Output::typed("slept 1500 ms", "text/plain")));
            assert_eq!(begin.elapsed(), Duration::from_millis(1_500));
            let mut told = Vec::new();
            while let Some(Event::Progress { fraction, .. }) = reader.recv().await {
                told.push(fraction);
            }
            assert_eq!(told, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]);
        }
    }

    #[tokio::test]
    async fn a_bad_payload_is_shown_a_good_one() {
        for payload in ["", "soon", "-1", "1.5", "{}", r#"{"ms":1,"x":2}"#, "3600001", r#"{"ms":3600001}"#] {
            match Sleep.handle(Box::new(Job::new("sleep", payload)), bench::collect(64).context).await {
                Err(HandlerError::Refused { code: FailureCode::InvalidArgument, message, .. }) => {
                    assert!(message.contains(r#"{"ms":1500}"#), "{message}");
                }
                other => panic!("{payload}: {other:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_wakes_it_unless_told_otherwise() {
        let bench = bench::collect(64);
        bench.context.cancel_token().cancel(StopReason::Caller);
        let begin = Instant::now();
        let output = Sleep.handle(Box::new(Job::new("sleep", "60000")), bench.context.clone()).await;
        assert_eq!((output, begin.elapsed()), (Err(HandlerError::Stopped), Duration::ZERO));

        let stubborn = Job::new("sleep", r#"{"ms":60000,"ignore_cancel":true}"#);
        let output = timeout(Duration::from_secs(59), Sleep.handle(Box::new(stubborn), bench.context)).await;
        assert!(output.is_err(), "it must sleep on: {output:?}");
    }
}
