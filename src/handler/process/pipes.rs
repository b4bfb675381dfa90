//! The message pipes of a process: reads its messages for its jobs, and writes to it without blocking.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering},
};

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::{
    net::unix::pipe::{Receiver, Sender},
    runtime::{self, Handle},
    sync::{Notify, mpsc},
};
use tokio_util::{codec::Decoder, sync::CancellationToken};

use super::session::{Cause, Session};
use crate::{
    handler::{
        child::Pipe,
        protocol::{Frame, FromWorker, Messages, ProtocolFault, Ready, ToWorker, parts},
        worker_job::{JobEvent, read_id},
    },
    model::Output,
};

/// The reading end of a process. One waiting job holds it and reads for all jobs of the process, on its own thread, so
/// that no message wakes another thread.
pub(super) struct Reader {
    /// `None` once the pipe has ended or brought a protocol fault.
    pipe: Option<Pipe<Receiver>>,
    /// The runtime that drives the pipe.
    runtime: runtime::Id,
    codec: Messages,
    buffer: BytesMut,
    following: Option<Following>,
    /// An event for another job whose channel is full.
    undelivered: Option<(mpsc::Sender<JobEvent>, JobEvent)>,
}

/// The bytes that follow a message with output or an answer.
struct Following {
    id: u64,
    left: u64,
    /// Content type of an answer, whose last piece is part of it; `None` for other output.
    content_type: Option<String>,
}

impl Reader {
    /// Takes a pipe that the current runtime drives.
    pub(super) fn new(pipe: Pipe<Receiver>) -> Self {
        Self {
            pipe: Some(pipe),
            runtime: Handle::current().id(),
            codec: Messages::default(),
            buffer: BytesMut::new(),
            following: None,
            undelivered: None,
        }
    }

    /// Reads the first message of the process, which must be `ready`.
    pub(super) async fn ready(&mut self, ended: &CancellationToken) -> Result<Ready, Cause> {
        match self.frame(ended).await? {
            Frame::Message(FromWorker::Ready(ready), _) => Ok(ready),
            Frame::Message(message, _) => Err(fault("the process has not said that it is ready", &message)),
            Frame::Piece(_) => unreachable!("bytes follow a message"),
        }
    }

    /// The next event of the job `own`, after passing on the events of other jobs. At the end of the pipe it reports
    /// the cause to the session, and returns `None`. Cancel safe.
    pub(super) async fn next(&mut self, session: &Session, own: u64) -> Option<JobEvent> {
        let next = self.read_for(session, own).await;
        next.map_err(|cause| {
            // Before the pipe closes, which may end the process as well.
            session.tell(cause);
            self.pipe = None;
            // Behind a fault, nothing is a message any more.
            self.buffer.clear();
        })
        .ok()
    }

    async fn read_for(&mut self, session: &Session, own: u64) -> Result<JobEvent, Cause> {
        self.come_here().map_err(|fault| Cause::Fault(fault.into()))?;
        loop {
            if let Some((events, _)) = &self.undelivered {
                // A job that was given up has no receiver.
                let room = events.clone().reserve_owned().await.ok();
                let event = self.undelivered.take();
                room.zip(event).map(|(room, (_, event))| room.send(event));
            }
            session.missing.store(self.codec.missing(), Ordering::Relaxed);
            let frame = self.frame(&session.ended).await?;
            let Some((id, event)) = self.event(session, frame)? else { continue };
            let events = if event.is_answer() {
                self.codec.check_next(&self.buffer).map_err(Cause::Fault)?;
                session.answer(id)
            } else {
                session.route(id)
            };
            if id == own {
                return Ok(event);
            }
            if let Some(events) = events
                && let Err(mpsc::error::TrySendError::Full(event)) = events.try_send(event)
                // Progress may be dropped if a job is behind.
                && !matches!(event, JobEvent::Progress { .. })
            {
                self.undelivered = Some((events, event));
            }
        }
    }

    /// Whether the caller's runtime drives the pipe.
    pub(super) fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|handle| handle.id() == self.runtime)
    }

    /// Moves the pipe to the caller's runtime. Another runtime would wake this one across threads, and may have ended.
    fn come_here(&mut self) -> io::Result<()> {
        if !self.is_here()
            && let Some(pipe) = self.pipe.take()
        {
            self.pipe = Some(pipe.moved()?);
            self.runtime = Handle::current().id();
        }
        Ok(())
    }

    /// Reads the next frame. Cancel safe.
    async fn frame(&mut self, ended: &CancellationToken) -> Result<Frame, Cause> {
        loop {
            if let Some(frame) = self.codec.decode(&mut self.buffer).map_err(Cause::Fault)? {
                return Ok(frame);
            }
            // A message that was cut off is not reported: the process has ended, or is being stopped.
            let pipe = self.pipe.as_mut().ok_or(Cause::Closed)?;
            let chunk = pipe.next(ended).await.ok_or(Cause::Closed)?;
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// The event of a frame, with the id of its job. Bytes after any other message than output and an answer are
    /// dropped.
    fn event(&mut self, session: &Session, frame: Frame) -> Result<Option<(u64, JobEvent)>, Cause> {
        let (message, bytes) = match frame {
            Frame::Message(message, bytes) => (message, bytes),
            Frame::Piece(piece) => return Ok(self.following.as_mut().map(|following| following.piece(piece))),
        };
        let id = read_id(message.job().ok_or_else(|| fault("it is ready twice", &message))?);
        self.following = None;
        if session.route(id).is_none() {
            // What comes late about an answered job harms no other one, and neither does progress.
            let is_late = session.has_run(id) || matches!(message, FromWorker::Progress { .. });
            if !is_late {
                return Err(fault("it names a job that it does not run", &message));
            }
            session.count_late();
            return Ok(None);
        }
        match message {
            FromWorker::Output { .. } => {
                self.following = Some(Following { id, left: bytes, content_type: None });
                Ok(None)
            }
            // A job is answered only after all of its output has arrived.
            FromWorker::Done { content_type, .. } if bytes > 0 => {
                self.following = Some(Following { id, left: bytes, content_type: Some(content_type) });
                Ok(None)
            }
            message => Ok(JobEvent::of(message, Bytes::new()).map(|(_, event)| (id, event))),
        }
    }
}

impl Following {
    /// The event of a piece, with the id of its job.
    fn piece(&mut self, piece: Bytes) -> (u64, JobEvent) {
        self.left -= piece.len() as u64;
        let event = match self.content_type.take_if(|_| self.left == 0) {
            Some(content_type) => JobEvent::Done(Output::typed(piece, content_type)),
            None => JobEvent::Piece(piece),
        };
        (self.id, event)
    }
}

fn fault(what: &'static str, message: &FromWorker) -> Cause {
    Cause::Fault(ProtocolFault::out_of_turn(what, message))
}

/// The writing end of a process. Most messages fit in the pipe, and the sending thread writes them.
pub(super) struct Writer {
    open: Mutex<Option<Open>>,
    /// Notified when the pipe is full.
    full: Notify,
}

struct Open {
    pipe: Arc<Sender>,
    /// Bytes that are not written yet.
    rest: VecDeque<Bytes>,
}

impl Writer {
    pub(super) fn new(pipe: Sender) -> Self {
        let open = Open { pipe: Arc::new(pipe), rest: VecDeque::new() };
        Self { open: Mutex::new(Some(open)), full: Notify::new() }
    }

    /// Writes as much of a message as fits in the pipe. [`Self::write_rest`] writes the remainder.
    ///
    /// # Errors
    /// The process no longer reads, and has not received the whole message.
    pub(super) fn send(&self, message: ToWorker, bytes: Bytes) -> io::Result<()> {
        let mut open = self.open.lock();
        let input = open.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        input.rest.extend(parts(message, bytes).into_iter().filter(|part| !part.is_empty()));
        self.flush(input)
    }

    /// Closes the pipe. Unwritten messages belong to jobs that are over.
    pub(super) fn close(&self) {
        self.open.lock().take();
    }

    /// Writes the remaining bytes as soon as the pipe accepts them.
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
