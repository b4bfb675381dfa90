//! `builtin = "gzip"`: compresses the payload.

use std::io::{self, Write};

use bytes::{BufMut, Bytes, BytesMut, buf::Writer};
use flate2::{Compression, GzBuilder, write::GzEncoder};

use crate::{
    handler::{BlockingHandler, Context},
    model::{HandlerError, Job, Output},
};

/// Bytes of input between two looks at the cancel token: about a millisecond of work.
const STEP: usize = 64 << 10;
/// Most bytes of one chunk of output.
const CHUNK: usize = 64 << 10;

/// Compresses the payload.
pub(super) struct Gzip;

impl BlockingHandler for Gzip {
    fn handle(&mut self, job: Box<Job>, cx: Context) -> Result<Output, HandlerError> {
        let total = job.payload.len();
        // A fixed time in the header makes the output a function of the payload alone.
        let mut encoder = GzBuilder::new().mtime(0).write(BytesMut::new().writer(), Compression::default());
        let mut told = 0;
        for (index, step) in job.payload.chunks(STEP).enumerate() {
            if cx.is_cancelled() {
                return Err(HandlerError::Stopped);
            }
            encoder.write_all(step).map_err(broken)?;
            send_full_chunks(encoder.get_mut(), &cx)?;
            let done = index * STEP + step.len();
            let twentieths = done * 20 / total;
            if twentieths > told {
                told = twentieths;
                cx.progress(twentieths as f64 / 20.0, format!("read {done} of {total} bytes"));
            }
        }
        finish(encoder, &cx)
    }
}

fn finish(encoder: GzEncoder<Writer<BytesMut>>, cx: &Context) -> Result<Output, HandlerError> {
    let mut rest = encoder.finish().map_err(broken)?;
    send_full_chunks(&mut rest, cx)?;
    Ok(Output::typed(Bytes::from(rest.into_inner()), "application/gzip"))
}

fn send_full_chunks(buffer: &mut Writer<BytesMut>, cx: &Context) -> Result<(), HandlerError> {
    while buffer.get_ref().len() >= CHUNK {
        cx.write_blocking(buffer.get_mut().split_to(CHUNK).freeze())?;
    }
    Ok(())
}

/// The encoder writes to memory, so a fault of it is its own.
fn broken(fault: io::Error) -> HandlerError {
    HandlerError::Crashed { message: format!("the gzip encoder failed: {fault}") }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, thread};

    use flate2::read::GzDecoder;
    use tokio::sync::mpsc;

    use super::*;
    use crate::handler::{Event, StopReason, context::bench};

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

    fn run(payload: Bytes) -> (Vec<Bytes>, Vec<f64>) {
        let (events, mut reader) = mpsc::channel(1 << 10);
        let cx = bench::stream(usize::MAX, events).context;
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
        for length in [0, 1, CHUNK, 3 * CHUNK + 17, 20 * CHUNK] {
            let payload = noise(length);
            let (chunks, told) = run(payload.clone());
            assert!(chunks.iter().all(|chunk| chunk.len() <= CHUNK));
            assert!(chunks.len() > length / CHUNK, "{} chunks of {length} bytes", chunks.len());
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
        let bench = bench::collect(CHUNK);
        let over = Gzip.handle(Box::new(Job::new("gzip", noise(4 * CHUNK))), bench.context.clone());
        assert_eq!(over, Err(HandlerError::OutputTooLarge { limit: CHUNK }));
        bench.context.cancel_token().cancel(StopReason::Deadline);
        assert_eq!(Gzip.handle(Box::new(Job::new("gzip", "abc")), bench.context), Err(HandlerError::Stopped));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test waits for its thread")]
    fn a_slow_reader_holds_it_and_a_lost_one_ends_it() {
        let (events, mut reader) = mpsc::channel(1);
        let cx = bench::stream(usize::MAX, events).context;
        let worker = thread::spawn(move || Gzip.handle(Box::new(Job::new("gzip", noise(40 * CHUNK))), cx));
        assert!(reader.blocking_recv().is_some());
        drop(reader);
        assert_eq!(worker.join().expect("no panic"), Err(HandlerError::Stopped));
    }
}
