//! The full screen of `stats --watch`: pools, oldest jobs, and the tenants that ask most.

use std::time::Duration;

use ratatui::{
    Frame,
    layout::{Constraint, Rect},
    style::{Style, Stylize},
    text::Line,
    widgets::{Row, Table},
};

use crate::{
    cli::output::{duration, plain, rough},
    proto::{JobCounts, JobStage, ListJobsResponse, ListedJob, Phase, PoolStats, Stats, TenantRate},
};

/// Most tenants on the screen.
const MAX_TENANTS: usize = 5;
/// Lines that jobs keep before tenants get any.
const MIN_JOBS: usize = 5;

/// The data of the screen.
pub(super) struct View {
    pub(super) stats: Stats,
    /// The previous snapshot, for rates.
    pub(super) before: Option<Stats>,
    /// Queued and running jobs, the oldest first, or why they are unknown.
    pub(super) jobs: Result<ListJobsResponse, String>,
}

/// Draws the screen. If it is too small, the lower parts shrink first.
pub(super) fn draw(frame: &mut Frame<'_>, view: &View) {
    let area = frame.area();
    let pools = pools(view);
    let (tenants, held) = match &view.jobs {
        Ok(answer) => (tenants(&answer.tenants), answer.jobs.as_slice()),
        Err(_) => (Vec::new(), &[][..]),
    };
    let [head, top, middle, bottom] = heights(area, pools.len(), tenants.len());
    frame.render_widget(self::head(&view.stats), head);
    let columns = [12, 8, 8, 11, 9, 8, 9].map(Constraint::Length).into_iter().chain([Constraint::Min(6)]);
    let heads = ["pool", "state", "busy", "queued", "arrive/s", "end/s", "refuse/s", "wait"];
    frame.render_widget(table(heads, pools, columns), top);
    match &view.jobs {
        Ok(answer) => {
            let jobs = held.iter().map(job).collect();
            let columns = [Constraint::Length(24), Constraint::Fill(3), Constraint::Fill(2)];
            let columns = columns.into_iter().chain([Constraint::Length(8), Constraint::Length(8)]);
            let of_all = format!("oldest of {} jobs", answer.all);
            frame.render_widget(table([&*of_all, "kind", "tenant", "state", "age"], jobs, columns), middle);
        }
        Err(why) => frame.render_widget(Line::from(format!("no jobs and no tenants: {why}")).dim(), middle),
    }
    if !tenants.is_empty() {
        let columns = [Constraint::Length(24), Constraint::Length(10), Constraint::Min(10)];
        frame.render_widget(table(["tenants that ask most", "ask/s", "refuse/s"], tenants, columns), bottom);
    }
}

/// Heights of the head, the pools, the jobs and the tenants, with a line between each two. The upper parts come first.
fn heights(area: Rect, pools: usize, tenants: usize) -> [Rect; 4] {
    let mut left = area;
    let mut take = |rows: usize, gap: u16| {
        let gap = gap.min(left.height);
        let height = u16::try_from(rows).unwrap_or(u16::MAX).min(left.height - gap);
        let taken = Rect { y: left.y + gap, height, ..left };
        left = Rect { y: taken.bottom(), height: left.height - gap - height, ..left };
        taken
    };
    let (head, top) = (take(1, 0), take(pools + 1, 0));
    let below = if tenants == 0 { 0 } else { tenants + 2 };
    let rest = usize::from(area.bottom().saturating_sub(top.bottom()));
    let middle = take(rest.saturating_sub(below + 1).max(rest.min(MIN_JOBS)), 1);
    [head, top, middle, take(tenants + 1, 1)]
}

fn head(stats: &Stats) -> Line<'static> {
    let phase = stats.phase().as_str_name().trim_start_matches("PHASE_").to_owned();
    let uptime = rough(duration(stats.uptime.as_ref()));
    Line::from(vec![phase.bold(), format!("  up {uptime}   ").into(), "q quits".dim()])
}

fn table<'a, const N: usize>(
    heads: [&str; N],
    rows: Vec<Row<'a>>,
    columns: impl IntoIterator<Item = Constraint>,
) -> Table<'a> {
    let heads = heads.map(str::to_owned);
    Table::new(rows, columns.into_iter().collect::<Vec<_>>())
        .header(Row::new(heads).style(Style::new().dim()))
        .column_spacing(1)
}

fn pools(view: &View) -> Vec<Row<'static>> {
    let before = |pool: &PoolStats| view.before.as_ref()?.pools.iter().find(|before| before.name == pool.name);
    let uptime = |stats: &Stats| duration(stats.uptime.as_ref());
    let time = view.before.as_ref().map_or(Duration::ZERO, |before| uptime(&view.stats).saturating_sub(uptime(before)));
    let pools = view.stats.pools.iter();
    pools.map(|pool| self::pool(pool, before(pool).filter(|_| !time.is_zero()), time)).collect()
}

fn pool(pool: &PoolStats, before: Option<&PoolStats>, time: Duration) -> Row<'static> {
    let queue = pool.queue.unwrap_or_default();
    let state = match (pool.phase(), &pool.paused) {
        (Phase::Serving, Some(_)) => "paused".to_owned(),
        (phase, _) => phase.as_str_name().trim_start_matches("PHASE_").to_ascii_lowercase(),
    };
    let now = flow(pool);
    let rates = before.map(flow).map(|before| {
        [0, 1, 2].map(|at| format!("{:.1}", now[at].saturating_sub(before[at]) as f64 / time.as_secs_f64()))
    });
    let [arrivals, ends, refusals] = rates.unwrap_or_else(|| ["-", "-", "-"].map(str::to_owned));
    Row::new([
        plain(&pool.name),
        state,
        format!("{}/{}", pool.in_flight, pool.size.unwrap_or_default().workers),
        format!("{}/{}", queue.jobs, queue.jobs_capacity),
        arrivals,
        ends,
        refusals,
        rough(duration(queue.expected_wait.as_ref())),
    ])
}

/// Jobs since the start: arrived, ended, refused.
fn flow(pool: &PoolStats) -> [u64; 3] {
    let jobs = pool.jobs.clone().unwrap_or_default();
    let JobCounts { accepted, completed, failed, cancelled, expired, panicked, shed, rejected } = jobs;
    let refused: u64 = rejected.iter().map(|rejected| rejected.count).sum();
    [accepted + refused, completed + failed + cancelled + expired + panicked + shed, refused]
}

fn job(job: &ListedJob) -> Row<'static> {
    let stage = match job.stage() {
        JobStage::Waiting => "waiting",
        JobStage::Queued => "queued",
        JobStage::Running => "running",
        JobStage::Completed | JobStage::Failed | JobStage::Unspecified => "ended",
    };
    let age = rough(duration(job.age.as_ref()));
    Row::new([plain(&job.job_id), plain(&job.kind), tenant(&job.tenant), stage.to_owned(), age])
}

fn tenants(tenants: &[TenantRate]) -> Vec<Row<'static>> {
    // A table of one tenant would say nothing.
    let shown = tenants.iter().take(if tenants.len() > 1 { MAX_TENANTS } else { 0 });
    shown
        .map(|rate| Row::new([tenant(&rate.tenant), format!("{:.1}", rate.asks), format!("{:.1}", rate.refusals)]))
        .collect()
}

fn tenant(name: &str) -> String {
    if name.is_empty() { "(default)".to_owned() } else { plain(name) }
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::proto::{QueueStats, RejectedCount, SizeStats};

    fn stats(seconds: u32, pools: u64, turn: u64) -> Stats {
        let pool = |at: u64| PoolStats {
            name: format!("pool{at}"),
            phase: Phase::Serving.into(),
            in_flight: 2,
            size: Some(SizeStats { workers: 2, ..SizeStats::default() }),
            queue: Some(QueueStats {
                jobs: 7,
                jobs_capacity: 64,
                expected_wait: Some("1.5s".parse().unwrap()),
                ..QueueStats::default()
            }),
            jobs: Some(JobCounts {
                accepted: 100 * turn,
                completed: 80 * turn,
                rejected: vec![RejectedCount { reason: "QUEUE_FULL".into(), count: 30 * turn }],
                ..JobCounts::default()
            }),
            paused: (at == 1).then(|| "3s".parse().unwrap()),
            ..PoolStats::default()
        };
        Stats {
            phase: Phase::Serving.into(),
            uptime: Some(format!("{seconds}s").parse().unwrap()),
            pools: (0..pools).map(pool).collect(),
        }
    }

    fn jobs(jobs: usize, tenants: usize) -> ListJobsResponse {
        let job = |at| ListedJob {
            job_id: format!("019f0e3b2c4d5e6f-{at:x}"),
            kind: "resize".into(),
            tenant: if at == 0 { String::new() } else { "a tenant with a name that is too long\x1b[31m".into() },
            stage: JobStage::Running.into(),
            age: Some("72s".parse().unwrap()),
            ..ListedJob::default()
        };
        let rate = |at| TenantRate { tenant: format!("tenant {at}"), asks: 12.34, refusals: 2.0 };
        ListJobsResponse {
            jobs: (0..jobs).map(job).collect(),
            all: 99,
            tenants: (0..tenants).map(rate).collect(),
            ..ListJobsResponse::default()
        }
    }

    fn shown(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(row).collect()
    }

    #[test]
    fn a_screen_of_80_by_24_has_its_head_the_pools_jobs_and_tenants() {
        let view = View { stats: stats(12, 2, 2), before: Some(stats(10, 2, 1)), jobs: Ok(jobs(64, 9)) };
        let lines = shown(&view, 80, 24);
        assert_eq!(
            lines[..6],
            [
                "SERVING  up 12s   q quits",
                "pool         state    busy     queued      arrive/s  end/s    refuse/s  wait",
                "pool0        serving  2/2      7/64        65.0      40.0     15.0      1.5s",
                "pool1        paused   2/2      7/64        65.0      40.0     15.0      1.5s",
                "",
                "oldest of 99 jobs        kind                   tenant         state    age",
            ]
        );
        assert_eq!(lines[6], "019f0e3b2c4d5e6f-0       resize                 (default)      running  1m 12s");
        assert_eq!(lines[7], "019f0e3b2c4d5e6f-1       resize                 a tenant with  running  1m 12s");
        assert_eq!(lines[18], "tenants that ask most    ask/s      refuse/s");
        assert_eq!(lines[23], "tenant 4                 12.3       2.0");
    }

    #[test]
    fn what_is_not_known_is_said_and_what_has_no_room_gives_way() {
        let unknown = View { stats: stats(1, 1, 1), before: None, jobs: Err("cannot reach the server".into()) };
        let lines = shown(&unknown, 80, 24);
        assert!(lines[2].contains("2/2      7/64        -         -        -         1.5s"), "{lines:?}");
        assert_eq!(lines[4], "no jobs and no tenants: cannot reach the server");
        let view = View { stats: stats(12, 2, 2), before: None, jobs: Ok(jobs(64, 9)) };
        for (width, height) in [(200, 60), (80, 10), (40, 5), (20, 3), (1, 1)] {
            let lines = shown(&view, width, height);
            assert!("SERVING  up 12s".starts_with(&lines[0]) || lines[0].starts_with("SERVING"), "{lines:?}");
        }
    }
}
