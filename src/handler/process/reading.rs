//! Reads the messages of a process and passes them to its jobs.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::{Bytes, BytesMut};
use tokio::{net::unix::pipe::Receiver, sync::mpsc};
use tokio_util::{codec::Decoder, sync::CancellationToken};

use super::{
    processes::KeptSlot,
    protocol::{Done, Failed, Frame, FromWorker, Messages, OfJob, ProtocolFault, Ready, ToldProgress, VERSION},
    session::{Cause, JobEvent, Session},
};
use crate::handler::child::Pipe;

/// Reads what a process says, and hands it to its jobs. It waits for a job that is slow to take its output.
pub(super) struct Reader<'a> {
    session: Arc<Session>,
    slot: &'a KeptSlot,
    is_ready: AtomicBool,
}

/// Whose bytes follow.
enum Following {
    None,
    Output(mpsc::Sender<JobEvent>),
    Last { done: Done, left: u64 },
}

impl From<ProtocolFault> for Cause {
    fn from(fault: ProtocolFault) -> Self {
        Self::Fault(fault)
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(session: Arc<Session>, slot: &'a KeptSlot) -> Self {
        Self { session, slot, is_ready: AtomicBool::new(false) }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    /// Reads until the pipe ends, the process has `ended` or the protocol is broken.
    pub(super) async fn read(&self, mut pipe: Pipe<Receiver>, ended: &CancellationToken) -> Cause {
        let (mut codec, mut buffer, mut following) = (Messages::default(), BytesMut::new(), Following::None);
        loop {
            match codec.decode(&mut buffer) {
                Ok(Some(frame)) => match self.take(frame, following).await {
                    Ok(next) => following = next,
                    Err(cause) => return cause,
                },
                Ok(None) => match pipe.next(ended).await {
                    Some(chunk) => buffer.extend_from_slice(&chunk),
                    // A message that was cut off is no news: the process has ended, or is made to.
                    None => return Cause::Closed,
                },
                Err(fault) => return fault.into(),
            }
        }
    }

    async fn take(&self, frame: Frame<FromWorker>, following: Following) -> Result<Following, Cause> {
        match frame {
            Frame::Message(message, bytes) => self.message(message, bytes).await,
            Frame::Piece(piece) => Ok(self.piece(piece, following).await),
        }
    }

    async fn message(&self, message: FromWorker, bytes: u64) -> Result<Following, Cause> {
        let fault = |what| Cause::from(ProtocolFault::out_of_turn(what, &message));
        let unknown = || fault("it names a job that it does not run");
        match &message {
            FromWorker::Ready(_) if self.is_ready() => return Err(fault("it is ready twice")),
            FromWorker::Ready(ready) => return self.ready(ready).map(|()| Following::None),
            _ if !self.is_ready() => return Err(fault("it was not ready before")),
            FromWorker::Progress(_) | FromWorker::Failed(_) if bytes > 0 => return Err(fault("it has no bytes")),
            FromWorker::Output(OfJob { id }) => {
                let events = self.session.route(id).ok_or_else(unknown)?;
                return Ok(Following::Output(events));
            }
            FromWorker::Progress(ToldProgress { id, fraction, message }) => {
                let events = self.session.route(id).ok_or_else(unknown)?;
                // Advice: a job that is behind does without.
                let _ = events.try_send(JobEvent::Progress { fraction: *fraction, message: message.clone() });
            }
            // The job is answered once all of its bytes are there.
            FromWorker::Done(done) if bytes > 0 => {
                self.session.route(&done.id).ok_or_else(unknown)?;
                return Ok(Following::Last { done: done.clone(), left: bytes });
            }
            FromWorker::Done(Done { id, content_type }) => {
                let events = self.session.answer(id).ok_or_else(unknown)?;
                // A job that was given up does not listen, here and below.
                let _ = events.send(JobEvent::Done { content_type: content_type.clone(), last: Bytes::new() }).await;
            }
            FromWorker::Failed(Failed { id, code, message, retryable: _ }) => {
                let events = self.session.answer(id).ok_or_else(unknown)?;
                let _ = events.send(JobEvent::Failed { code: code.clone(), message: message.clone() }).await;
            }
        }
        Ok(Following::None)
    }

    fn ready(&self, Ready { protocol, kinds, name }: &Ready) -> Result<(), Cause> {
        if *protocol != VERSION {
            return Err(Cause::Unfit(format!("speaks version {protocol} of the protocol, and not {VERSION}")));
        }
        let missing = self.slot.set.program.kinds.iter().find(|kind| !kinds.is_empty() && !kinds.contains(kind));
        if let Some(kind) = missing {
            return Err(Cause::Unfit(format!(
                "does not run the kind {kind}; it says that it runs {}",
                kinds.join(", ")
            )));
        }
        self.is_ready.store(true, Ordering::Relaxed);
        tracing::info!(program = %self.slot.set.name, pid = self.session.pid, name, "a process of a program is ready");
        self.slot.is_ready(&self.session);
        Ok(())
    }

    /// Hands on some of the bytes of a message.
    async fn piece(&self, piece: Bytes, following: Following) -> Following {
        match following {
            Following::Output(events) => {
                let _ = events.send(JobEvent::Piece(piece)).await;
                Following::Output(events)
            }
            Following::Last { done, left } if left > piece.len() as u64 => {
                let left = left - piece.len() as u64;
                if let Some(events) = self.session.route(&done.id) {
                    let _ = events.send(JobEvent::Piece(piece)).await;
                }
                Following::Last { done, left }
            }
            Following::Last { done, left: _ } => {
                if let Some(events) = self.session.answer(&done.id) {
                    let _ = events.send(JobEvent::Done { content_type: done.content_type, last: piece }).await;
                }
                Following::None
            }
            // Bytes that follow `ready` belong to no job.
            Following::None => Following::None,
        }
    }
}
