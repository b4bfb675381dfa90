//! `waterwheel jobs watch`.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use super::{Asker, PATIENCE, WatchArgs, state};
use crate::{
    cli::{
        console::{Console, FAINT, paint},
        exit::Exit,
        failure::Failure,
        output::{Format, json, percent, plain},
    },
    proto::{JobState, WatchJobRequest, WatchJobResponse, watch_job_response::Event},
};

/// Time between two tries to reach the server.
const AGAIN: Duration = Duration::from_millis(200);

/// Follows a job over broken connections. Output goes to standard output, all else to standard error.
pub(super) async fn watch(args: WatchArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let WatchArgs { id, from, to } = args;
    let mut asker = Asker::connect(&to).await?;
    let (mut from_sequence, mut heard_at) = (from, Instant::now());
    loop {
        let broken = match asker.client.watch_job(WatchJobRequest { job_id: id.clone(), from_sequence }).await {
            Err(status) => status,
            Ok(events) => {
                let mut events = events.into_inner();
                loop {
                    match events.message().await {
                        Ok(Some(event)) => {
                            (from_sequence, heard_at) = (event.sequence, Instant::now());
                            if let Some(end) = show(event, to.output.format, console).await? {
                                return Ok(if end == JobState::Succeeded { Exit::Done } else { Exit::Failed });
                            }
                        }
                        Ok(None) => break Status::unavailable("the server ended the call"),
                        Err(status) => break status,
                    }
                }
            }
        };
        if broken.code() != Code::Unavailable || heard_at.elapsed() > PATIENCE {
            return Err(Failure::of_status(broken, &to.server.server));
        }
        sleep(AGAIN).await;
    }
}

/// Shows an event. Gives the final state of the job, if this is the end.
async fn show(
    response: WatchJobResponse,
    format: Format,
    console: &mut Console<'_>,
) -> Result<Option<JobState>, Failure> {
    let end = match &response.event {
        Some(Event::Job(job)) => Some(job.state()).filter(|state| *state >= JobState::Succeeded),
        _ => None,
    };
    if format == Format::Json {
        console.out.line(&json::message(&response)?).await?;
        return Ok(end);
    }
    match response.event {
        Some(Event::Job(job)) => console.err.line(&format!("{}  {}", plain(&job.job_id), state(&job))).await?,
        Some(Event::Output(output)) => {
            if output.offset == 0 && output.attempt > 1 {
                let line = format!("the output of attempt {} begins", output.attempt);
                console.err.line(&paint(FAINT, line)).await?;
            }
            console.out.bytes(&output.data).await?;
        }
        Some(Event::Progress(told)) => {
            let line = format!("{}  {}", percent(told.fraction), plain(&told.message));
            console.err.line(&paint(FAINT, line.trim_end())).await?;
        }
        None => {}
    }
    Ok(end)
}
