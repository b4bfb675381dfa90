//! Writes messages to a process, and never waits for it.

use std::{collections::VecDeque, io, sync::Arc};

use bytes::{Buf, Bytes};
use parking_lot::Mutex;
use tokio::{net::unix::pipe::Sender, sync::Notify};

use super::protocol::{ToWorker, parts};

/// The way to a process. Most messages fit in its pipe, and are written by the thread that sends them.
pub(super) struct Writer {
    open: Mutex<Option<Open>>,
    /// Notified when the pipe is full.
    full: Notify,
}

struct Open {
    pipe: Arc<Sender>,
    /// What is not written yet.
    rest: VecDeque<Bytes>,
}

impl Writer {
    pub(super) fn new(pipe: Sender) -> Self {
        let open = Open { pipe: Arc::new(pipe), rest: VecDeque::new() };
        Self { open: Mutex::new(Some(open)), full: Notify::new() }
    }

    /// Writes what fits of a message, and leaves the rest to [`Self::write_rest`].
    ///
    /// # Errors
    /// The process reads no more, and has not got all of the message.
    pub(super) fn send(&self, message: ToWorker, bytes: Bytes) -> io::Result<()> {
        let mut open = self.open.lock();
        let input = open.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        input.rest.extend(parts(message, bytes).into_iter().filter(|part| !part.is_empty()));
        self.flush(input)
    }

    /// Closes the pipe. What was not written is for jobs that are over.
    pub(super) fn close(&self) {
        self.open.lock().take();
    }

    /// Writes what did not fit, as soon as it does.
    pub(super) async fn write_rest(&self) -> io::Result<()> {
        loop {
            self.full.notified().await;
            let pipe = self.open.lock().as_ref().map(|input| Arc::clone(&input.pipe));
            if let Some(pipe) = pipe {
                pipe.writable().await?;
            }
            self.open.lock().as_mut().map_or(Ok(()), |input| self.flush(input))?;
        }
    }

    fn flush(&self, Open { pipe, rest }: &mut Open) -> io::Result<()> {
        while let Some(part) = rest.front_mut() {
            match pipe.try_write(part) {
                Ok(written) => part.advance(written),
                Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => {
                    self.full.notify_one();
                    return Ok(());
                }
                Err(fault) => return Err(fault),
            }
            rest.pop_front_if(|part| part.is_empty());
        }
        Ok(())
    }
}
