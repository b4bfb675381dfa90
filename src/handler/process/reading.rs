//! Reads the messages of a process for its jobs.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::{
    net::unix::pipe::Receiver,
    runtime::{self, Handle},
    sync::mpsc,
};
use tokio_util::{codec::Decoder, sync::CancellationToken};

use super::{
    protocol::{Done, Frame, FromWorker, Messages, ProtocolFault, Ready, ToldProgress},
    session::{Cause, JobEvent, Session},
};
use crate::handler::child::Pipe;

/// What a process says. A job that waits owns it, and reads for all jobs of the process: on its own thread, so that no
/// message wakes another one.
pub(super) struct Reader {
    /// `None` once it has ended, or brought what breaks the protocol.
    pipe: Option<Pipe<Receiver>>,
    /// The runtime that tells of what comes.
    runtime: runtime::Id,
    codec: Messages<FromWorker>,
    buffer: BytesMut,
    following: Following,
    /// An event that another job has no room for yet.
    undelivered: Option<(mpsc::Sender<JobEvent>, JobEvent)>,
}

/// Whose bytes follow.
enum Following {
    None,
    Output(u64),
    Last { id: u64, content_type: String, left: u64 },
}

impl From<ProtocolFault> for Cause {
    fn from(fault: ProtocolFault) -> Self {
        Self::Fault(fault)
    }
}

impl Reader {
    /// On the runtime that the pipe was made on.
    pub(super) fn new(pipe: Pipe<Receiver>) -> Self {
        Self {
            pipe: Some(pipe),
            runtime: Handle::current().id(),
            codec: Messages::default(),
            buffer: BytesMut::new(),
            following: Following::None,
            undelivered: None,
        }
    }

    /// Its first word.
    pub(super) async fn ready(&mut self, ended: &CancellationToken) -> Result<Ready, Cause> {
        match self.frame(ended).await? {
            Frame::Message(FromWorker::Ready(ready), _) => Ok(ready),
            Frame::Message(message, _) => Err(fault("it was not ready before", &message)),
            Frame::Piece(_) => unreachable!("bytes follow a message"),
        }
    }

    /// The next event of the job `own`, once those of others are passed on. `None` at the end, whose cause it tells.
    /// Cancel safe.
    pub(super) async fn next(&mut self, session: &Session, own: u64) -> Option<JobEvent> {
        let next = self.read_for(session, own).await;
        next.map_err(|cause| {
            self.pipe = None;
            session.tell(cause);
        })
        .ok()
    }

    async fn read_for(&mut self, session: &Session, own: u64) -> Result<JobEvent, Cause> {
        self.come_here().map_err(ProtocolFault::Io)?;
        loop {
            if let Some((events, _)) = &self.undelivered {
                // A job that was given up does not listen.
                let room = events.clone().reserve_owned().await.ok();
                let event = self.undelivered.take();
                room.zip(event).map(|(room, (_, event))| room.send(event));
            }
            let frame = self.frame(&session.ended).await?;
            let Some((id, event)) = self.event(session, frame)? else { continue };
            let events = if event.is_answer() { session.answer(id) } else { session.route(id) };
            if id == own {
                return Ok(event);
            }
            if let Some(events) = events
                && let Err(mpsc::error::TrySendError::Full(event)) = events.try_send(event)
                // Advice: a job that is behind does without.
                && !matches!(event, JobEvent::Progress { .. })
            {
                self.undelivered = Some((events, event));
            }
        }
    }

    /// Whether the runtime of the caller tells of what comes.
    pub(super) fn is_here(&self) -> bool {
        Handle::try_current().is_ok_and(|handle| handle.id() == self.runtime)
    }

    /// Has the runtime of the caller tell of what comes. Another one would wake it across threads, and may have ended.
    fn come_here(&mut self) -> io::Result<()> {
        if !self.is_here()
            && let Some(pipe) = self.pipe.take()
        {
            self.pipe = Some(pipe.moved()?);
            self.runtime = Handle::current().id();
        }
        Ok(())
    }

    /// The next part of what it says. Cancel safe.
    async fn frame(&mut self, ended: &CancellationToken) -> Result<Frame<FromWorker>, Cause> {
        loop {
            if let Some(frame) = self.codec.decode(&mut self.buffer)? {
                return Ok(frame);
            }
            // A message that was cut off is no news: the process has ended, or is made to.
            let pipe = self.pipe.as_mut().ok_or(Cause::Closed)?;
            let chunk = pipe.next(ended).await.ok_or(Cause::Closed)?;
            self.buffer.extend_from_slice(&chunk);
        }
    }

    /// What a frame means for which job.
    fn event(&mut self, session: &Session, frame: Frame<FromWorker>) -> Result<Option<(u64, JobEvent)>, Cause> {
        let (message, bytes) = match frame {
            Frame::Message(message, bytes) => (message, bytes),
            Frame::Piece(piece) => return Ok(self.following.piece(piece)),
        };
        let id = message.job().ok_or_else(|| fault("it is ready twice", &message))?;
        let Some(id) = id.parse().ok().filter(|id| session.route(*id).is_some()) else {
            return Err(fault("it names a job that it does not run", &message));
        };
        self.following = Following::None;
        Ok(match message {
            FromWorker::Progress(_) | FromWorker::Failed(_) if bytes > 0 => {
                return Err(fault("it has no bytes", &message));
            }
            FromWorker::Ready(_) => None,
            FromWorker::Output(_) => {
                self.following = Following::Output(id);
                None
            }
            // The job is answered once all of its bytes are there.
            FromWorker::Done(Done { content_type, .. }) if bytes > 0 => {
                self.following = Following::Last { id, content_type, left: bytes };
                None
            }
            FromWorker::Done(Done { content_type, .. }) => {
                Some((id, JobEvent::Done { content_type, last: Bytes::new() }))
            }
            FromWorker::Progress(ToldProgress { fraction, message, .. }) => {
                Some((id, JobEvent::Progress { fraction, message }))
            }
            FromWorker::Failed(failed) => Some((id, JobEvent::Failed(failed))),
        })
    }
}

impl Following {
    /// What some of the bytes mean for which job.
    fn piece(&mut self, piece: Bytes) -> Option<(u64, JobEvent)> {
        match self {
            // Bytes that follow `ready` belong to no job.
            Self::None => None,
            Self::Output(id) => Some((*id, JobEvent::Piece(piece))),
            Self::Last { id, left, .. } if *left > piece.len() as u64 => {
                *left -= piece.len() as u64;
                Some((*id, JobEvent::Piece(piece)))
            }
            Self::Last { id, content_type, .. } => {
                let (id, content_type) = (*id, std::mem::take(content_type));
                *self = Self::None;
                Some((id, JobEvent::Done { content_type, last: piece }))
            }
        }
    }
}

fn fault(what: &'static str, message: &FromWorker) -> Cause {
    ProtocolFault::out_of_turn(what, message).into()
}
