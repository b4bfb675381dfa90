//! `WatchJob`: the states of a job, and the output of the attempt that runs here.

use std::{future::pending, time::Duration};

use futures_util::stream;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tonic::{Request, Response, Status};

use super::{Asked, convert, measured, named};
use crate::{
    model::Replay,
    proto::{AttemptOutput, AttemptProgress, WatchJobRequest, WatchJobResponse, watch_job_response::Event},
    rpc::{status, watches::WatchEnd, worker_pool::ResponseStream},
    store::{JobRecord, JobState, StoredJob},
};

/// Time between two looks at the store: soon after a change, and then twice as long each time.
const LOOK: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];
/// Most bytes of one message.
const MAX_CHUNK: usize = 1 << 20;
/// Bits of a sequence for the offset in the output of an attempt, whose number is above them.
const OFFSET_BITS: u32 = 40;

/// Follows a job until it has ended.
pub(super) async fn watch_job(
    mut asked: Asked,
    request: Request<WatchJobRequest>,
) -> Result<Response<ResponseStream<WatchJobResponse>>, Status> {
    let open = asked.parts.watches.open(&request);
    let WatchJobRequest { job_id, from_sequence } = request.into_inner();
    let open = match (open, asked.job(&job_id, false).await) {
        (Ok(open), Ok(_)) => open,
        (Err(status), _) | (_, Err(status)) => return asked.answer(Err(status)),
    };
    let meter = asked.meter.take();
    let answer = asked.call.answer(());
    let watcher = Watcher {
        asked,
        job_id,
        attempt: u32::try_from(from_sequence >> OFFSET_BITS).unwrap_or(u32::MAX),
        offset: from_sequence & ((1 << OFFSET_BITS) - 1),
        progresses: 0,
        live: None,
        seen: None,
        ended: None,
        look_at: Instant::now(),
        stopped: open,
        pause: LOOK[0],
    };
    let events = stream::try_unfold(Some(watcher), async |watcher| {
        let Some(mut watcher) = watcher else { return Ok(None) };
        match watcher.next().await {
            Ok((event, is_last)) => Ok(Some((event, (!is_last).then_some(watcher)))),
            Err(status) => Err(named(&watcher.asked.call, status)),
        }
    });
    Ok(answer.map(|()| measured(meter, events)))
}

struct Watcher {
    asked: Asked,
    job_id: String,
    /// Attempt and offset of the next output.
    attempt: u32,
    offset: u64,
    /// Number of the last progress that was sent.
    progresses: u64,
    /// What the attempt tells that runs here.
    live: Option<watch::Receiver<Replay>>,
    /// What was sent of the job.
    seen: Option<Seen>,
    /// The job at its end, while the rest of its output is sent.
    ended: Option<StoredJob>,
    look_at: Instant,
    pause: Duration,
    /// The end of the process.
    stopped: WatchEnd,
}

/// What makes a job worth sending again.
#[derive(PartialEq, Eq)]
struct Seen {
    state: JobState,
    starts: u32,
    is_cancelled: bool,
}

impl Watcher {
    /// The next event, and whether it is the last one.
    async fn next(&mut self) -> Result<(WatchJobResponse, bool), Status> {
        loop {
            if let Some(event) = self.told().or_else(|| self.rest()) {
                return Ok((self.number(event), false));
            }
            if let Some(job) = self.ended.take() {
                return Ok((self.number(Event::Job(convert::record(job.record))), true));
            }
            self.wait().await?;
            if self.look_at <= Instant::now()
                && let Some(job) = self.look().await?
            {
                return Ok((self.number(Event::Job(convert::record(job))), false));
            }
        }
    }

    fn number(&self, event: Event) -> WatchJobResponse {
        WatchJobResponse { sequence: u64::from(self.attempt) << OFFSET_BITS | self.offset, event: Some(event) }
    }

    /// What the running attempt has told, and was not sent.
    fn told(&mut self) -> Option<Event> {
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
        let (fraction, message) = replay.progress.clone()?;
        Some(Event::Progress(AttemptProgress { attempt: self.attempt, fraction, message }))
    }

    /// The output of a job that has succeeded, as far as it was not sent.
    fn rest(&mut self) -> Option<Event> {
        let StoredJob { record, output } = self.ended.as_ref()?;
        if self.attempt != record.starts {
            (self.attempt, self.offset) = (record.starts, 0);
        }
        let (bytes, offset) = (&output.as_ref()?.bytes, self.offset);
        let begin = usize::try_from(offset).ok().filter(|begin| *begin < bytes.len())?;
        let data = bytes.slice(begin..bytes.len().min(begin + MAX_CHUNK));
        self.offset += data.len() as u64;
        Some(Event::Output(AttemptOutput { attempt: self.attempt, offset, data }))
    }

    /// Returns when the attempt has told something, or the store is to be looked at.
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
                    // The attempt has ended, and its end is kept in a moment.
                    (self.live, self.look_at, self.pause) = (None, Instant::now(), LOOK[0]);
                }
            }
            () = sleep_until(self.look_at) => {}
            () = &mut self.stopped => return Err(status::draining(self.asked.call.request_id())),
        }
        Ok(())
    }

    /// Looks at the store, and for the attempt here. Gives the job if it has changed and goes on.
    async fn look(&mut self) -> Result<Option<JobRecord>, Status> {
        let job = self.asked.job(&self.job_id, false).await?;
        if job.record.state.is_ended() {
            self.ended = Some(job);
            return Ok(None);
        }
        if let Some((number, live)) = self.asked.detached.watch(&self.job_id) {
            if number != self.attempt {
                (self.attempt, self.offset, self.progresses) = (number, 0, 0);
            }
            self.live = Some(live);
        }
        let JobRecord { state, starts, cancel_requested, .. } = job.record;
        let seen = Some(Seen { state, starts, is_cancelled: cancel_requested });
        let has_changed = self.seen != seen;
        self.seen = seen;
        self.pause = if has_changed { LOOK[0] } else { (self.pause * 2).min(LOOK[1]) };
        self.look_at = Instant::now() + self.pause;
        Ok(has_changed.then_some(job.record))
    }
}
