//! The full screen of `stats --watch`: pools, detached jobs, oldest jobs, and the tenants with the highest request
//! rates.

use std::time::Duration;

use clap::builder::styling::Style;

use super::text::{DETACHED, detached_rows};
use crate::{
    cli::{
        console::{FAINT, STRONG, paint},
        output::{duration, sanitized, short_duration},
    },
    proto::{JobCounts, JobStage, ListJobsResponse, ListedJob, Phase, PoolStats, Stats, TenantRate},
};

/// Most tenants on the screen.
const MAX_TENANTS: usize = 5;
/// Most kinds with detached jobs on the screen.
const MAX_DETACHED: usize = 5;
/// Lines of the job list, with its heading, that stay when the list of tenants is cut.
const MIN_JOBS: usize = 5;

/// The data of the screen.
pub(super) struct View {
    pub(super) stats: Stats,
    /// The previous snapshot, for rates.
    pub(super) before: Option<Stats>,
    /// Queued and running jobs, oldest first, or why they are unknown.
    pub(super) jobs: Result<ListJobsResponse, String>,
}

/// The view in `height` lines of `width` characters. If `height` is small, the list of jobs shrinks to [`MIN_JOBS`]
/// lines; then lines at the end are cut.
pub(super) fn lines(view: &View, width: usize, height: usize) -> Vec<String> {
    let mut lines = vec![(STRONG, head(&view.stats))];
    let heads = ["pool", "state", "busy", "queued", "arrive/s", "end/s", "refuse/s", "wait"];
    lines.extend(table([12, 8, 8, 11, 9, 8, 9, 6], heads, pools(view)));
    lines.push(Default::default());
    lines.extend(detached(&view.stats));
    let below = match &view.jobs {
        Ok(answer) => tenants(&answer.tenants),
        Err(_) => Vec::new(),
    };
    let rest = height.saturating_sub(lines.len());
    let middle = match below.len() {
        0 => rest,
        below => rest.saturating_sub(below + 1).max(rest.min(MIN_JOBS)),
    };
    let end = lines.len() + middle;
    match &view.jobs {
        Ok(answer) => {
            let words = width.saturating_sub(24 + 8 + 8 + 4);
            let kind = (3 * words).div_ceil(5);
            let of_all = format!("oldest of {} jobs", answer.all);
            let heads = [&*of_all, "kind", "tenant", "state", "age"];
            lines.extend(table([24, kind, words - kind, 8, 8], heads, answer.jobs.iter().map(job)));
        }
        Err(why) => lines.push((FAINT, format!("no jobs and no tenants: {why}"))),
    }
    lines.resize(end, Default::default());
    if !below.is_empty() {
        lines.push(Default::default());
        lines.extend(below);
    }
    lines.resize(height, Default::default());
    lines.into_iter().map(|(style, line)| paint(style, cell(&line, width))).collect()
}

/// `text`, cut or padded to `width` characters; control characters become spaces.
fn cell(text: &str, width: usize) -> String {
    let shown: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(width).collect();
    format!("{shown:width$}")
}

fn head(stats: &Stats) -> String {
    let phase = stats.phase().as_str_name().trim_start_matches("PHASE_");
    format!("{phase}  up {}   q quits", short_duration(duration(stats.uptime.as_ref())))
}

/// A heading and rows of cells, each as wide as its column.
fn table<const N: usize>(
    widths: [usize; N],
    heads: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> Vec<(Style, String)> {
    let line = |cells: [String; N]| {
        let cells = cells.iter().zip(widths).map(|(text, width)| cell(text, width));
        cells.collect::<Vec<_>>().join(" ")
    };
    let heading = (FAINT, line(heads.map(str::to_owned)));
    [heading].into_iter().chain(rows.into_iter().map(|row| (Style::new(), line(row)))).collect()
}

fn pools(view: &View) -> Vec<[String; 8]> {
    let before = |pool: &PoolStats| view.before.as_ref()?.pools.iter().find(|before| before.name == pool.name);
    let uptime = |stats: &Stats| duration(stats.uptime.as_ref());
    let time = view.before.as_ref().map_or(Duration::ZERO, |before| uptime(&view.stats).saturating_sub(uptime(before)));
    let pools = view.stats.pools.iter();
    pools.map(|pool| self::pool(pool, before(pool).filter(|_| !time.is_zero()), time)).collect()
}

fn pool(pool: &PoolStats, before: Option<&PoolStats>, time: Duration) -> [String; 8] {
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
    [
        sanitized(&pool.name),
        state,
        format!("{}/{}", pool.in_flight, pool.size.unwrap_or_default().workers),
        format!("{}/{}", queue.jobs, queue.jobs_capacity),
        arrivals,
        ends,
        refusals,
        short_duration(duration(queue.expected_wait.as_ref())),
    ]
}

/// The kinds with detached jobs, and a blank line; empty without any.
fn detached(stats: &Stats) -> Vec<(Style, String)> {
    let rows: Vec<_> = stats.pools.iter().flat_map(|pool| detached_rows(&pool.kinds)).take(MAX_DETACHED).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let mut lines = table([24, 9, 7, 7, 7, 7, 12], DETACHED, rows);
    lines.push(Default::default());
    lines
}

/// Jobs since the start: arrived, ended and refused.
fn flow(pool: &PoolStats) -> [u64; 3] {
    let jobs = pool.jobs.clone().unwrap_or_default();
    let JobCounts { accepted, completed, failed, cancelled, expired, panicked, shed, rejected } = jobs;
    let refused: u64 = rejected.iter().map(|rejected| rejected.count).sum();
    [accepted + refused, completed + failed + cancelled + expired + panicked + shed, refused]
}

fn job(job: &ListedJob) -> [String; 5] {
    let stage = match job.stage() {
        JobStage::Waiting => "waiting",
        JobStage::Queued => "queued",
        JobStage::Running => "running",
        JobStage::Completed | JobStage::Failed | JobStage::Unspecified => "ended",
    };
    let age = short_duration(duration(job.age.as_ref()));
    [sanitized(&job.job_id), sanitized(&job.kind), tenant(&job.tenant), stage.to_owned(), age]
}

/// The busiest tenants; empty if there are fewer than two.
fn tenants(tenants: &[TenantRate]) -> Vec<(Style, String)> {
    if tenants.len() < 2 {
        return Vec::new();
    }
    let row = |rate: &TenantRate| [tenant(&rate.tenant), format!("{:.1}", rate.asks), format!("{:.1}", rate.refusals)];
    let rows = tenants.iter().take(MAX_TENANTS).map(row);
    table([24, 10, 10], ["tenants that ask most", "ask/s", "refuse/s"], rows)
}

fn tenant(name: &str) -> String {
    if name.is_empty() { "(default)".to_owned() } else { sanitized(name) }
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;
    use crate::proto::{DetachedStats, KindStats, QueueStats, RejectedCount, SizeStats};

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

    fn shown(view: &View, width: usize, height: usize) -> Vec<String> {
        let lines: Vec<_> = lines(view, width, height).iter().map(|line| strip_str(line).to_string()).collect();
        assert!(lines.len() == height && lines.iter().all(|line| line.chars().count() == width), "{lines:?}");
        lines.iter().map(|line| line.trim_end().to_owned()).collect()
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
    fn detached_jobs_are_between_pools_and_jobs() {
        let mut stats = stats(12, 1, 1);
        let age = Some("90s".parse().unwrap());
        let detached = DetachedStats { ready: 12_000, dead: 3, oldest_ready_age: age, ..DetachedStats::default() };
        let kind = |name: &str, detached| KindStats { name: name.to_owned(), detached, ..KindStats::default() };
        stats.pools[0].kinds = vec![kind("resize", Some(detached)), kind("echo", None)];
        let lines = shown(&View { stats, before: None, jobs: Ok(jobs(64, 9)) }, 80, 24);
        assert_eq!(
            lines[3..7],
            [
                "",
                "detached                 scheduled ready   blocked running dead    oldest ready",
                "resize                   0         12000   0       0       3       1m 30s",
                "",
            ]
        );
        assert!(lines[7].starts_with("oldest of 99 jobs"), "{lines:?}");
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
