//! `stats --watch` on a terminal: redraws the screen with each snapshot.

use std::{
    io::{self, Write, stdout},
    pin::pin,
    time::Duration,
};

use crossterm::{
    cursor::{Hide, MoveTo, Show},
    event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    execute, queue,
    style::Print,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size},
};
use futures_util::{Stream, StreamExt, stream};
use tonic::Streaming;

use super::{
    StatsArgs,
    screen::{View, lines},
};
use crate::{
    cli::{
        access::AccessArgs,
        call::{Call, CallArgs},
        connect::Address,
        exit::Exit,
        failure::Failure,
    },
    proto::{JobOrder, JobStage, ListJobsRequest, ListJobsResponse, Stats, WatchStatsResponse},
};

/// Longest wait for the jobs, which are shown with the snapshot.
const PATIENCE: Duration = Duration::from_secs(2);
/// More than fit on a screen.
const MAX_JOBS: u32 = 200;

/// Shows snapshots until a key or the server ends it.
pub(super) async fn watch(
    args: &StatsArgs,
    call: &Call,
    snapshots: Streaming<WatchStatsResponse>,
) -> Result<Exit, Failure> {
    let mut views = pin!(views(args, call, snapshots));
    let mut keys = EventStream::new();
    let screen = Screen::enter()?;
    let mut shown = None;
    loop {
        tokio::select! {
            biased;
            event = keys.next() => match event {
                Some(Ok(event)) if leaves(&event) => return Ok(Exit::Done),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Ok(Exit::Done),
            },
            view = views.next() => match view {
                Some(view) => shown = Some(view?),
                None => return Ok(Exit::Done),
            },
        }
        if let Some(view) = &shown {
            screen.draw(view)?;
        }
    }
}

fn views(
    args: &StatsArgs,
    call: &Call,
    snapshots: Streaming<WatchStatsResponse>,
) -> impl Stream<Item = Result<View, Failure>> {
    stream::try_unfold((snapshots, None), async move |(mut snapshots, before): (_, Option<Stats>)| {
        loop {
            let Some(response) = call.wait(snapshots.message()).await? else { return Ok(None) };
            if let Some(stats) = response.stats {
                let jobs = jobs(args).await.map_err(|failure| failure.of_ops(&args.ops).to_string());
                return Ok(Some((View { stats: stats.clone(), before, jobs }, (snapshots, Some(stats)))));
            }
        }
    })
}

/// The oldest jobs and the tenants that ask most, from the operators' listener.
async fn jobs(args: &StatsArgs) -> Result<ListJobsResponse, Failure> {
    let access = &args.server.access;
    let access = match args.ops {
        Address::Tls(_) => access.clone(),
        // That listener has no TLS of its own.
        Address::Tcp(_) | Address::Unix(_) => {
            AccessArgs { token_file: access.token_file.clone(), ..AccessArgs::default() }
        }
    };
    let patient = CallArgs { deadline: Some(PATIENCE), ..CallArgs::none() };
    let (call, connection) = Call::begin(&args.ops, &access, patient).await?;
    let request = ListJobsRequest {
        stages: [JobStage::Waiting, JobStage::Queued, JobStage::Running].map(i32::from).to_vec(),
        pool: args.pool.clone(),
        order: JobOrder::Oldest.into(),
        limit: MAX_JOBS,
        ..ListJobsRequest::default()
    };
    Ok(call.wait(connection.admin().list_jobs(call.request(request))).await?.into_inner())
}

/// Whether a key ends the watch. The terminal is in raw mode, so that Ctrl-C is a key.
fn leaves(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else { return false };
    match code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

/// The terminal, which is as it was once this is dropped.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        // From here on, it is left as it was.
        let screen = Self;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Draws over what was there: each line is as wide as the terminal.
    fn draw(&self, view: &View) -> io::Result<()> {
        let (width, height) = size()?;
        let mut out = stdout().lock();
        for (row, line) in (0..height).zip(lines(view, width.into(), height.into())) {
            queue!(out, MoveTo(0, row), Print(line))?;
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where it fails, there is no terminal any more.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show).and_then(|()| disable_raw_mode());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_control_c_leave() {
        let key = |code, modifiers| Event::Key(KeyEvent::new(code, modifiers));
        let none = KeyModifiers::NONE;
        for (code, modifiers, expected) in [
            (KeyCode::Char('q'), none, true),
            (KeyCode::Esc, none, true),
            (KeyCode::Char('c'), KeyModifiers::CONTROL, true),
            (KeyCode::Char('c'), none, false),
            (KeyCode::Enter, none, false),
        ] {
            assert_eq!(leaves(&key(code, modifiers)), expected, "{code:?}");
        }
        assert!(!leaves(&Event::Resize(80, 24)));
    }
}
