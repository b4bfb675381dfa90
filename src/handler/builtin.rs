//! The built-in handlers.

use std::{
    io::{self, Write},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut, buf::Writer};
use flate2::{Compression, GzBuilder};
use serde::Deserialize;
use sha2::Digest;
use tokio::time::{Instant, sleep_until};

use super::{BlockingHandler, Context, Handler, Kind, KindOptions};
use crate::model::{HandlerError, Job, Output};

/// Bytes hashed between two checks for a stop: a few milliseconds of work.
const SHA256_STEP: usize = 1 << 20;
const MAX_SLEEP_MS: u64 = 3_600_000;
const SLEEP_STEPS: u32 = 10;
const GOOD_SLEEP: &str = r#"send {"ms":1500}, or just 1500"#;
/// Bytes compressed between two checks for a stop: about a millisecond of work.
const GZIP_STEP: usize = 64 << 10;
/// Largest chunk of output, in bytes.
const GZIP_CHUNK: usize = 64 << 10;

/// A handler that comes with the crate, for a first run, tests and benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Builtin {
    /// Returns the payload with its content type.
    Echo,
    /// Returns the SHA-256 of the payload in lower-case hexadecimal digits, as `text/plain`.
    Sha256,
    /// Waits for the milliseconds in its JSON payload: `{"ms":1500}`, or just `1500`; at most an hour.
    ///
    /// With `"ignore_cancel":true` the handler ignores the request to stop, to try what happens then.
    Sleep,
    /// Compresses the payload and streams the result. The same payload always gives the same bytes.
    Gzip,
}

impl Builtin {
    /// What `kind.*.builtin` takes.
    pub(crate) const NAMES: &[&str] = &["echo", "sha256", "sleep", "gzip"];

    /// A kind called `name` that runs this handler.
    pub fn kind(self, name: &str, options: KindOptions) -> Kind {
        let kind = match self {
            Self::Echo => Kind::new(name, || Echo),
            Self::Sha256 => Kind::blocking(name, || Sha256),
            Self::Sleep => Kind::new(name, || Sleep),
            Self::Gzip => Kind::blocking(name, || Gzip),
        };
        kind.options(options)
    }
}

/// Returns the payload. The load benchmark measures the overhead around this handler, so it copies nothing.
struct Echo;

impl Handler for Echo {
    async fn handle(&mut self, job: Box<Job>, _cx: Context) -> Result<Output, HandlerError> {
        Ok(Output { bytes: job.payload, content_type: job.content_type })
    }
}

/// Computes the SHA-256 of the payload.
struct Sha256;

impl BlockingHandler for Sha256 {
    fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let mut hasher = sha2::Sha256::new();
        for step in job.payload.chunks(SHA256_STEP) {
            if cx.is_cancelled() {
                return Err(HandlerError::Stopped);
            }
            hasher.update(step);
        }
        let digits: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Output::typed(digits, "text/plain"))
    }
}

/// Waits, and reports progress after each tenth.
struct Sleep;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SleepRequest {
    ms: u64,
    #[serde(default)]
    ignore_cancel: bool,
}

impl Handler for Sleep {
    async fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let request = parse_sleep(&job.payload)?;
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
    for step in 1..=SLEEP_STEPS {
        let slept = total * step / SLEEP_STEPS;
        sleep_until(begin + slept).await;
        cx.progress(f64::from(step) / f64::from(SLEEP_STEPS), format!("slept {slept:?} of {total:?}"));
    }
}

fn parse_sleep(payload: &[u8]) -> Result<SleepRequest, HandlerError> {
    let request = match serde_json::from_slice::<u64>(payload) {
        Ok(ms) => Ok(SleepRequest { ms, ignore_cancel: false }),
        Err(_) => serde_json::from_slice(payload),
    };
    let request: SleepRequest = request.map_err(|_| {
        HandlerError::invalid(format!("the payload of sleep is its time in milliseconds; {GOOD_SLEEP}"))
    })?;
    if request.ms > MAX_SLEEP_MS {
        let message =
            format!("{} ms is over the {MAX_SLEEP_MS} ms (one hour) that sleep allows; {GOOD_SLEEP}", request.ms);
        return Err(HandlerError::invalid(message));
    }
    Ok(request)
}

/// Compresses the payload.
struct Gzip;

impl BlockingHandler for Gzip {
    fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let total = job.payload.len();
        // A fixed time in the header makes the output a function of the payload alone.
        let mut encoder = GzBuilder::new().mtime(0).write(BytesMut::new().writer(), Compression::default());
        let mut reported = 0;
        for (index, step) in job.payload.chunks(GZIP_STEP).enumerate() {
            if cx.is_cancelled() {
                return Err(HandlerError::Stopped);
            }
            encoder.write_all(step).map_err(gzip_failed)?;
            send_full_chunks(encoder.get_mut(), &cx)?;
            let done = index * GZIP_STEP + step.len();
            let twentieths = done * 20 / total;
            if twentieths > reported {
                reported = twentieths;
                cx.progress(twentieths as f64 / 20.0, format!("read {done} of {total} bytes"));
            }
        }
        let mut rest = encoder.finish().map_err(gzip_failed)?;
        send_full_chunks(&mut rest, &cx)?;
        Ok(Output::typed(Bytes::from(rest.into_inner()), "application/gzip"))
    }
}

fn send_full_chunks(buffer: &mut Writer<BytesMut>, cx: &Context) -> Result<(), HandlerError> {
    while buffer.get_ref().len() >= GZIP_CHUNK {
        cx.write_blocking(buffer.get_mut().split_to(GZIP_CHUNK).freeze())?;
    }
    Ok(())
}

/// The encoder writes to memory, so only a defect of the encoder can cause an error.
fn gzip_failed(fault: io::Error) -> HandlerError {
    HandlerError::Crashed { message: format!("the gzip encoder failed: {fault}") }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, thread};

    use flate2::read::GzDecoder;
    use tokio::{sync::mpsc, time::timeout};

    use super::*;
    use crate::{
        handler::{Event, StopReason, tests},
        model::FailureCode,
    };

    #[test]
    fn every_builtin_has_its_name() {
        let refusal = serde_json::from_value::<Builtin>("none".into()).expect_err("there is none").to_string();
        let known: Vec<_> = refusal.split('`').skip(3).step_by(2).collect();
        assert_eq!(known, Builtin::NAMES);
    }

    #[test]
    fn kinds_run_where_they_should() {
        for (builtin, blocking) in
            [(Builtin::Echo, false), (Builtin::Sha256, true), (Builtin::Sleep, false), (Builtin::Gzip, true)]
        {
            let kind = builtin.kind("mine", KindOptions { idempotent: true, ..KindOptions::default() });
            assert_eq!(kind.is_blocking(), blocking, "{builtin:?}");
            assert_eq!(&**kind.name(), "mine");
            assert!(kind.get_options().idempotent);
        }
    }

    #[tokio::test]
    async fn gives_back_the_same_memory() {
        let payload = Bytes::from(vec![7; 64]);
        let job = Job::new("echo", payload.clone()).content_type("image/png");
        let output = Echo.handle(Box::new(job), tests::collect(64).context).await.expect("echo cannot fail");
        assert_eq!(output.content_type, "image/png");
        assert!(std::ptr::eq(output.bytes.as_ptr(), payload.as_ptr()));
        assert_eq!(output.bytes, payload);
    }

    #[test]
    fn digests_of_fips_180() {
        let million = "a".repeat(1_000_000);
        let cases = [
            ("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (&million, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),
        ];
        for (payload, digest) in cases {
            let job = Job::new("sha256", payload.to_owned());
            let output = Sha256.handle(Box::new(job), tests::collect(64).context).expect("not cancelled");
            assert_eq!(output, Output::typed(digest, "text/plain"));
        }
    }

    #[test]
    fn stops_between_steps() {
        let bench = tests::collect(64);
        bench.context.stop(StopReason::Caller);
        assert_eq!(Sha256.handle(Box::new(Job::new("sha256", "abc")), bench.context), Err(HandlerError::Stopped));
    }

    #[tokio::test(start_paused = true)]
    async fn sleeps_as_long_as_asked_and_tells_every_tenth() {
        for payload in [r#"{"ms":1500}"#, "1500", " 1500\n"] {
            let begin = Instant::now();
            let (events, mut reader) = mpsc::channel(16);
            let cx = tests::stream(64, events).context;
            let output = Sleep.handle(Box::new(Job::new("sleep", payload)), cx).await;
            assert_eq!(output, Ok(Output::typed("slept 1500 ms", "text/plain")));
            assert_eq!(begin.elapsed(), Duration::from_millis(1_500));
            let mut reported = Vec::new();
            while let Some(Event::Progress { fraction, .. }) = reader.recv().await {
                reported.push(fraction);
            }
            assert_eq!(reported, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]);
        }
    }

    #[tokio::test]
    async fn a_bad_payload_is_shown_a_good_one() {
        for payload in ["", "soon", "-1", "1.5", "{}", r#"{"ms":1,"x":2}"#, "3600001", r#"{"ms":3600001}"#] {
            match Sleep.handle(Box::new(Job::new("sleep", payload)), tests::collect(64).context).await {
                Err(HandlerError::Refused { code: FailureCode::InvalidArgument, message, .. }) => {
                    assert!(message.contains(r#"{"ms":1500}"#) && !message.contains("struct"), "{message}");
                }
                other => panic!("{payload}: {other:?}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_wakes_it_unless_told_otherwise() {
        let bench = tests::collect(64);
        bench.context.stop(StopReason::Caller);
        let begin = Instant::now();
        let output = Sleep.handle(Box::new(Job::new("sleep", "60000")), bench.context.clone()).await;
        assert_eq!((output, begin.elapsed()), (Err(HandlerError::Stopped), Duration::ZERO));

        let stubborn = Job::new("sleep", r#"{"ms":60000,"ignore_cancel":true}"#);
        let output = timeout(Duration::from_secs(59), Sleep.handle(Box::new(stubborn), bench.context)).await;
        assert!(output.is_err(), "it must sleep on: {output:?}");
    }

    /// Bytes that do not compress, the same on each call.
    fn noise(length: usize) -> Bytes {
        let mut state = 0x9e37_79b9_u32;
        let next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state.to_le_bytes()[0]
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    fn gzip(payload: Bytes) -> (Vec<Bytes>, Vec<f64>) {
        let (events, mut reader) = mpsc::channel(1 << 10);
        let cx = tests::stream(usize::MAX, events).context;
        let last = Gzip.handle(Box::new(Job::new("gzip", payload)), cx).expect("not cancelled");
        assert_eq!(last.content_type, "application/gzip");
        let (mut chunks, mut told) = (Vec::new(), Vec::new());
        while let Ok(event) = reader.try_recv() {
            match event {
                Event::Chunk(chunk) => chunks.push(chunk),
                Event::Progress { fraction, .. } => told.push(fraction),
            }
        }
        chunks.push(last.bytes);
        (chunks, told)
    }

    #[test]
    fn streams_what_unzips_to_the_payload() {
        for length in [0, 1, GZIP_CHUNK, 3 * GZIP_CHUNK + 17, 20 * GZIP_CHUNK] {
            let payload = noise(length);
            let (chunks, told) = gzip(payload.clone());
            assert!(chunks.iter().all(|chunk| chunk.len() <= GZIP_CHUNK));
            assert!(chunks.len() > length / GZIP_CHUNK, "{} chunks of {length} bytes", chunks.len());
            assert!(told.is_sorted() && told.last().is_none_or(|last| *last == 1.0), "{told:?}");
            let zipped = chunks.concat();
            assert_eq!(zipped[4..8], [0; 4], "the header must not hold a time");
            let mut unzipped = Vec::new();
            GzDecoder::new(&zipped[..]).read_to_end(&mut unzipped).expect("a sound stream");
            assert_eq!(unzipped, payload);
        }
    }

    #[test]
    fn stops_between_steps_and_at_the_limit() {
        let bench = tests::collect(GZIP_CHUNK);
        let over = Gzip.handle(Box::new(Job::new("gzip", noise(4 * GZIP_CHUNK))), bench.context.clone());
        assert_eq!(over, Err(HandlerError::OutputTooLarge { limit: GZIP_CHUNK }));
        bench.context.stop(StopReason::Deadline);
        assert_eq!(Gzip.handle(Box::new(Job::new("gzip", "abc")), bench.context), Err(HandlerError::Stopped));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test waits for its thread")]
    fn a_slow_reader_holds_it_and_a_lost_one_ends_it() {
        let (events, mut reader) = mpsc::channel(1);
        let cx = tests::stream(usize::MAX, events).context;
        let worker = thread::spawn(move || Gzip.handle(Box::new(Job::new("gzip", noise(40 * GZIP_CHUNK))), cx));
        assert!(reader.blocking_recv().is_some());
        drop(reader);
        assert_eq!(worker.join().expect("no panic"), Err(HandlerError::Stopped));
    }
}
