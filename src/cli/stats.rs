//! `waterwheel stats`: one snapshot, or one after another. On a terminal, each snapshot redraws the screen.

mod problems;
mod screen;
mod text;

use std::{
    io::{self, Write, stdout},
    pin::pin,
    time::Duration,
};

use clap::Args;
use crossterm::{
    cursor::{Hide, MoveTo, Show},
    event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    execute, queue,
    style::Print,
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size},
};
use futures_util::{Stream, TryStreamExt, stream};
use tonic::Streaming;

use self::{
    screen::{View, lines},
    text::snapshot,
};
use super::{
    access::ReadArgs,
    connect::{Call, CallArgs, Target},
    console::Console,
    failure::{Exit, Failure},
    flags::duration_in,
    output::Format,
};
use crate::proto::{
    JobOrder, JobStage, ListJobsRequest, ListJobsResponse, Stats, StatsRequest, WatchStatsRequest, WatchStatsResponse,
};

/// Bounds of `--interval`, the same as the server's.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// Longest wait for the jobs that are shown with the snapshot.
const JOBS_TIMEOUT: Duration = Duration::from_secs(2);
/// More jobs than fit on a screen.
const MAX_JOBS: u32 = 200;

/// Show the state of the pools: queue, jobs, kinds and workers.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel stats --pool cpu")]
pub(super) struct StatsArgs {
    /// Show this pool only.
    #[arg(long, value_name = "POOL", default_value = "", hide_default_value = true)]
    pool: String,
    /// Show it again at each interval, until Ctrl-C. On a terminal, it fills the screen until q, with rates, the oldest
    /// jobs and the tenants that ask most.
    #[arg(long)]
    watch: bool,
    /// Time between two snapshots, from 100ms to 1m.
    #[arg(long, value_name = "DURATION", default_value = "1s", requires = "watch", value_parser = duration_in(MIN_INTERVAL..=MAX_INTERVAL))]
    interval: Duration,
    // The jobs and tenants for --watch on a terminal always come from the operators' listener.
    #[command(flatten)]
    server: ReadArgs,
}

pub(super) async fn run(args: StatsArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    if args.watch {
        return watch(args, console).await;
    }
    console.message(&ask(&args.server, args.pool).await?, snapshot).await?;
    Ok(Exit::Done)
}

/// A snapshot of a pool, or of all.
pub(super) async fn ask(server: &ReadArgs, pool: String) -> Result<Stats, Failure> {
    let answer = server.ask(async |server| server.worker_pool().stats(StatsRequest { pool }).await).await?;
    answer.stats.ok_or_else(|| Failure::incomplete(server.address(), "snapshot"))
}

async fn watch(args: StatsArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let call = args.server.call(CallArgs::default()).await?;
    let interval_ms = u32::try_from(args.interval.as_millis()).unwrap_or(u32::MAX);
    let request = WatchStatsRequest { pool: args.pool.clone(), interval_ms };
    let mut snapshots = call.ask(async |server| server.worker_pool().watch_stats(request).await).await?;
    if console.out.is_terminal() && console.format == Format::Text {
        return fill_screen(&args, &call, snapshots).await;
    }
    let mut is_first = true;
    while let Some(response) = call.wait(snapshots.message()).await? {
        let Some(stats) = response.stats else { continue };
        if !is_first && console.format == Format::Text {
            console.out.text("\n").await?;
        }
        console.message(&stats, snapshot).await?;
        is_first = false;
    }
    Ok(Exit::Done)
}

/// Shows snapshots until a key or the server ends it.
async fn fill_screen(args: &StatsArgs, call: &Call, snapshots: Streaming<WatchStatsResponse>) -> Result<Exit, Failure> {
    let mut views = pin!(views(args, call, snapshots));
    let mut keys = EventStream::new();
    let screen = Screen::enter()?;
    let mut shown = None;
    loop {
        tokio::select! {
            biased;
            event = keys.try_next() => if event?.is_none_or(|event| leaves(&event)) {
                return Ok(Exit::Done);
            },
            view = views.try_next() => match view? {
                Some(view) => shown = Some(view),
                None => return Ok(Exit::Done),
            },
        }
        if let Some(view) = &shown {
            screen.draw(view)?;
        }
    }
}

/// Each snapshot, with the one before it and the current jobs.
fn views(
    args: &StatsArgs,
    call: &Call,
    snapshots: Streaming<WatchStatsResponse>,
) -> impl Stream<Item = Result<View, Failure>> {
    stream::try_unfold((snapshots, None), async move |(mut snapshots, before): (_, Option<Stats>)| {
        loop {
            let Some(response) = call.wait(snapshots.message()).await? else { return Ok(None) };
            if let Some(stats) = response.stats {
                let jobs = jobs(args).await.map_err(|failure| failure.to_string());
                return Ok(Some((View { stats: stats.clone(), before, jobs }, (snapshots, Some(stats)))));
            }
        }
    })
}

/// The oldest jobs and the tenants with the highest request rates, from the operators' listener.
async fn jobs(args: &StatsArgs) -> Result<ListJobsResponse, Failure> {
    let ReadArgs { ops, .. } = &args.server;
    let request = ListJobsRequest {
        stages: [JobStage::Waiting, JobStage::Queued, JobStage::Running].map(i32::from).to_vec(),
        pool: args.pool.clone(),
        order: JobOrder::Oldest.into(),
        limit: MAX_JOBS,
        ..ListJobsRequest::default()
    };
    let call = Call::begin(ops, &args.server.operators_access(), CallArgs::within(JOBS_TIMEOUT)).await?;
    call.ask(async |server| server.admin().list_jobs(request).await).await
}

/// Whether a key ends the watch. The terminal is in raw mode, so Ctrl-C arrives as a key.
fn leaves(event: &Event) -> bool {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else { return false };
    match code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

/// The terminal. Dropping this restores its previous state.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        // From here on, a drop restores the terminal.
        let screen = Self;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Overwrites the screen: each line is as wide as the terminal.
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
        // This fails only if the terminal is gone.
        let _ = execute!(stdout(), LeaveAlternateScreen, Show).and_then(|()| disable_raw_mode());
    }
}

#[cfg(test)]
mod tests;
