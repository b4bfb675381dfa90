//! The output of a job: its chunks, and their bound.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::model::HandlerError;

/// What a running job sends to a streaming caller.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A piece of the output; never empty.
    Chunk(Bytes),
    /// Progress of the job.
    Progress {
        /// Share of the work that is done, from 0 to 1.
        fraction: f64,
        /// What the handler is doing, for people.
        message: String,
    },
}

/// Receives the output chunks of a job.
#[derive(Debug)]
pub struct OutputSink {
    /// Receives the chunks at once; `None` if the caller waits for the whole output.
    reader: Option<mpsc::Sender<Event>>,
    limit: usize,
    /// Bytes written so far.
    written: AtomicUsize,
    /// The collected chunks. They are counted under this lock.
    collected: Mutex<BytesMut>,
}

impl OutputSink {
    /// Collects up to `limit` bytes, for a caller that waits for the whole output.
    pub fn collect(limit: usize) -> Self {
        Self { reader: None, limit, written: AtomicUsize::new(0), collected: Mutex::default() }
    }

    /// Passes on up to `limit` bytes, as fast as `events` is read.
    pub fn stream(limit: usize, events: mpsc::Sender<Event>) -> Self {
        Self { reader: Some(events), limit, written: AtomicUsize::new(0), collected: Mutex::default() }
    }

    /// Bytes written so far.
    pub fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    pub(super) async fn write(&self, chunk: Bytes) -> Result<(), HandlerError> {
        if chunk.is_empty() {
            return Ok(());
        }
        {
            let mut collected = self.collected.lock();
            self.count(chunk.len())?;
            if self.reader.is_none() {
                collected.extend_from_slice(&chunk);
            }
        }
        let Some(events) = &self.reader else { return Ok(()) };
        // The caller no longer reads.
        events.send(Event::Chunk(chunk)).await.map_err(|_| HandlerError::Stopped)
    }

    /// Drops the report if the reader is behind, so that progress never slows a handler.
    pub(super) fn progress(&self, fraction: f64, message: String) {
        if let Some(events) = &self.reader {
            let _ = events.try_send(Event::Progress { fraction, message });
        }
    }

    /// Ends the output of a job with `last`. Returns the whole output, or for a streaming caller the part that is not
    /// sent yet.
    ///
    /// # Errors
    /// [`HandlerError::OutputTooLarge`] if `last` exceeds the limit.
    pub fn finish(&self, last: Bytes) -> Result<Bytes, HandlerError> {
        // Most handlers wrote nothing before, and need no lock. A task that a handler left running may still write;
        // such late chunks are not part of the output.
        if self.written() == 0 {
            self.count(last.len())?;
            return Ok(last);
        }
        let mut collected = self.collected.lock();
        self.count(last.len())?;
        if self.reader.is_some() || collected.is_empty() {
            return Ok(last);
        }
        collected.extend_from_slice(&last);
        Ok(collected.split().freeze())
    }

    /// Counts the bytes of a chunk, if they fit within the limit.
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
