//! The output of a streaming job: chunks and progress.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::model::HandlerError;

/// What a running job tells a caller that streams.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A piece of the output; never empty.
    Chunk(Bytes),
    /// How far the job is.
    Progress {
        /// Share of the work that is done, from 0 to 1.
        fraction: f64,
        /// What the handler is doing, for people.
        message: String,
    },
}

/// The caller no longer reads: the handler should stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the caller no longer reads the output")]
pub struct OutputClosed;

impl From<OutputClosed> for HandlerError {
    fn from(_: OutputClosed) -> Self {
        Self::Stopped
    }
}

/// Where the chunks of a job go.
#[derive(Debug)]
pub struct OutputSink {
    target: Target,
    limit: usize,
    /// Bytes written so far.
    written: AtomicUsize,
    /// What is collected of them. Chunks are counted under its lock.
    collected: Mutex<BytesMut>,
}

#[derive(Debug)]
enum Target {
    Collect,
    Stream(mpsc::Sender<Event>),
}

impl OutputSink {
    /// Collects up to `limit` bytes, for a caller that waits for the whole.
    #[must_use]
    pub fn collect(limit: usize) -> Self {
        Self { target: Target::Collect, limit, written: AtomicUsize::new(0), collected: Mutex::default() }
    }

    /// Hands on up to `limit` bytes, as fast as `events` is read.
    #[must_use]
    pub fn stream(limit: usize, events: mpsc::Sender<Event>) -> Self {
        Self { target: Target::Stream(events), limit, written: AtomicUsize::new(0), collected: Mutex::default() }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    pub(super) async fn write(&self, chunk: Bytes) -> Result<(), HandlerError> {
        match self.admit(chunk)? {
            Some((events, chunk)) => Ok(events.send(Event::Chunk(chunk)).await.map_err(|_| OutputClosed)?),
            None => Ok(()),
        }
    }

    /// Progress is advice: it is dropped where the reader is behind, so that it never slows a handler.
    pub(super) fn progress(&self, fraction: f64, message: String) {
        if let Target::Stream(events) = &self.target {
            let _ = events.try_send(Event::Progress { fraction, message });
        }
    }

    /// The whole output of a job that ended with `last`, for a caller that waits for it; for one that streams, what is
    /// left to send.
    ///
    /// # Errors
    /// [`HandlerError::OutputTooLarge`] where `last` does not fit any more.
    pub fn finish(&self, last: Bytes) -> Result<Bytes, HandlerError> {
        // Most handlers wrote nothing before, and are spared the lock. A task that one left behind may still write: what
        // it writes now comes after the end, and is not in the output.
        if self.written() == 0 {
            self.count(last.len())?;
            return Ok(last);
        }
        let mut collected = self.collected.lock();
        self.count(last.len())?;
        match self.target {
            Target::Collect if !collected.is_empty() => {
                collected.extend_from_slice(&last);
                Ok(collected.split().freeze())
            }
            Target::Collect | Target::Stream(_) => Ok(last),
        }
    }

    fn admit(&self, chunk: Bytes) -> Result<Option<(&mpsc::Sender<Event>, Bytes)>, HandlerError> {
        if chunk.is_empty() {
            return Ok(None);
        }
        let mut collected = self.collected.lock();
        self.count(chunk.len())?;
        match &self.target {
            Target::Collect => {
                collected.extend_from_slice(&chunk);
                Ok(None)
            }
            Target::Stream(events) => Ok(Some((events, chunk))),
        }
    }

    fn count(&self, more: usize) -> Result<(), HandlerError> {
        let written = self.written();
        if more > self.limit.saturating_sub(written) {
            return Err(HandlerError::OutputTooLarge { limit: self.limit });
        }
        self.written.store(written + more, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn collects_in_order_and_keeps_the_limit() {
        let sink = OutputSink::collect(5);
        sink.write("ab".into()).await.expect("fits");
        sink.write("c".into()).await.expect("fits");
        assert_eq!(sink.write("def".into()).await, Err(HandlerError::OutputTooLarge { limit: 5 }));
        assert_eq!(sink.finish("de".into()), Ok(Bytes::from("abcde")));
    }

    #[tokio::test]
    async fn a_reader_that_left_stops_the_handler() {
        let (events, reader) = mpsc::channel(1);
        let sink = OutputSink::stream(10, events);
        sink.write("ab".into()).await.expect("room for one");
        sink.progress(0.5, "half".into());
        drop(reader);
        assert_eq!(sink.write("c".into()).await, Err(HandlerError::Stopped));
    }
}
