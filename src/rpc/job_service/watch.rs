//! `WatchJob`: the states of a job, and the output of the attempt that runs on this server.

use std::{future::pending, mem};

use futures_util::stream;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{JobsCall, measured};
use crate::{
    handler::Context,
    model::{ProgressReport, Replay},
    proto::{AttemptOutput, AttemptProgress, WatchJobRequest, WatchJobResponse, watch_job_response::Event},
    rpc::{
        calls::{Calls, Meter},
        convert::detached_job_here,
        service_state::ResponseStream,
        status,
        watches::WatchEnd,
    },
    store::{Extent, JobRecord, JobState},
};

/// Largest message, in bytes.
const MAX_CHUNK: usize = 1 << 20;
/// Stored output is read in this many pieces of at least [`MIN_PIECE`] bytes, because a piece stays in memory until its
/// caller has read it.
const PIECES: u64 = 64;
const MIN_PIECE: u64 = 256 << 10;
/// Bits of a sequence number for the offset in an attempt's output. The higher bits are the number of the attempt.
const OFFSET_BITS: u32 = 40;

/// Follows a job until it has ended.
pub(super) async fn watch_job(
    call: JobsCall,
    meter: Meter<Calls>,
    request: Request<WatchJobRequest>,
) -> Result<Response<ResponseStream<WatchJobResponse>>, Status> {
    let open = call.service.watches.open(&request);
    let WatchJobRequest { job_id, from_sequence } = request.into_inner();
    let open = match (open, call.job(&job_id, Extent::Bare).await) {
        (Ok(open), Ok(_)) => open,
        (Err(status), _) | (_, Err(status)) => return call.end(meter, Err(status)),
    };
    let answer = call.context.answer(());
    let watcher = Watcher {
        changed: call.store().wakes().watch(&job_id),
        call,
        job_id,
        attempt: u32::try_from(from_sequence >> OFFSET_BITS).unwrap_or(u32::MAX),
        offset: from_sequence & ((1 << OFFSET_BITS) - 1),
        progresses: 0,
        live: None,
        seen: None,
        ended: None,
        must_read: true,
        stopped: open,
    };
    let events = stream::try_unfold(Some(watcher), async |watcher| {
        let Some(mut watcher) = watcher else { return Ok(None) };
        match watcher.next().await {
            Ok((event, is_last)) => Ok(Some((event, (!is_last).then_some(watcher)))),
            Err(status) => Err(watcher.call.context.with_request_id(status)),
        }
    });
    Ok(answer.map(|()| measured(meter, events)))
}

struct Watcher {
    call: JobsCall,
    job_id: String,
    /// Attempt and offset of the next output.
    attempt: u32,
    offset: u64,
    /// Number of the last sent progress report.
    progresses: u64,
    /// Events of the attempt that runs on this server.
    live: Option<watch::Receiver<Replay>>,
    /// What was last sent of the job: its state, the number of its attempts, and whether it must be cancelled.
    seen: Option<(JobState, u32, bool)>,
    /// The ended job, while the rest of its output is sent.
    ended: Option<JobRecord>,
    /// Changes when the job may have changed.
    changed: watch::Receiver<String>,
    /// Whether it may have changed since it was last read.
    must_read: bool,
    /// The end of the watch.
    stopped: WatchEnd,
}

impl Watcher {
    /// The next event, and whether it is the last one.
    async fn next(&mut self) -> Result<(WatchJobResponse, bool), Status> {
        loop {
            if let Some(event) = self.live_event() {
                return Ok((self.number(event), false));
            }
            if let Some(event) = self.remaining_output().await? {
                return Ok((self.number(event), false));
            }
            if let Some(job) = self.ended.take() {
                return Ok((self.number(Event::Job(detached_job_here(&self.call.detached, job))), true));
            }
            if !mem::take(&mut self.must_read) {
                self.wait().await?;
            } else if let Some(job) = self.read().await? {
                return Ok((self.number(Event::Job(detached_job_here(&self.call.detached, job))), false));
            }
        }
    }

    fn number(&self, event: Event) -> WatchJobResponse {
        WatchJobResponse { sequence: u64::from(self.attempt) << OFFSET_BITS | self.offset, event: Some(event) }
    }

    /// The next unsent event of the running attempt.
    fn live_event(&mut self) -> Option<Event> {
        let replay = self.live.as_mut()?.borrow_and_update();
        if let Some((offset, data)) = replay.output(self.offset) {
            let data = data.slice(..data.len().min(MAX_CHUNK));
            self.offset = offset + data.len() as u64;
            return Some(Event::Output(AttemptOutput { attempt: self.attempt, offset, data }));
        }
        if replay.progresses == self.progresses {
            return None;
        }
        self.progresses = replay.progresses;
        let ProgressReport { fraction, message, .. } = replay.progress.clone()?;
        Some(Event::Progress(AttemptProgress { attempt: self.attempt, fraction, message }))
    }

    /// The next unsent output of a job that has succeeded.
    async fn remaining_output(&mut self) -> Result<Option<Event>, Status> {
        let Some(JobRecord { starts, row, output_bytes, .. }) = &self.ended else { return Ok(None) };
        if self.attempt != *starts {
            (self.attempt, self.offset) = (*starts, 0);
        }
        let offset = self.offset;
        let length =
            (output_bytes / PIECES).clamp(MIN_PIECE, MAX_CHUNK as u64).min(output_bytes.saturating_sub(offset));
        if length == 0 {
            return Ok(None);
        }
        let read = self.call.store().output(*row, offset, length).await;
        let data = read.map_err(status::read_failure)?;
        self.offset += data.len() as u64;
        // The job may have been removed, or run again, meanwhile.
        if data.is_empty() {
            return Err(super::unknown(&self.job_id));
        }
        Ok(Some(Event::Output(AttemptOutput { attempt: self.attempt, offset, data })))
    }

    /// Returns when the attempt has a new event, or when the job may have changed.
    async fn wait(&mut self) -> Result<(), Status> {
        let live = async {
            match &mut self.live {
                Some(live) => live.changed().await,
                None => pending().await,
            }
        };
        tokio::select! {
            told = live => {
                if told.is_err() {
                    // The attempt has ended, and its result will be stored in a moment.
                    self.live = None;
                }
            }
            _ = self.changed.changed() => self.must_read = true,
            end = &mut self.stopped => {
                return Err(end.unwrap_or_else(|| status::draining(self.call.context.request_id())));
            }
        }
        Ok(())
    }

    /// Reads the job from the store, and looks for its attempt on this server. Returns the job if it has changed but
    /// not ended.
    async fn read(&mut self) -> Result<Option<JobRecord>, Status> {
        let job = self.call.job(&self.job_id, Extent::Bare).await?;
        if job.state.is_ended() {
            self.ended = Some(job);
            return Ok(None);
        }
        if let Some(attempt) = self.call.detached.run_of(&self.job_id).as_ref().and_then(Context::running_attempt) {
            let number = attempt.token.number;
            if number != self.attempt {
                (self.attempt, self.offset, self.progresses) = (number, 0, 0);
            }
            self.live = Some(attempt.watch());
        }
        let seen = Some((job.state, job.starts, job.cancel_requested));
        let has_changed = self.seen != seen;
        self.seen = seen;
        Ok(has_changed.then_some(job))
    }
}
