//! The full screen of `stats --watch`: pools, detached jobs, the tenants with the highest request rates, and as many of
//! the oldest jobs as fit below.

use std::time::Duration;

use super::{problems::problems, text::detached};
use crate::{
    cli::{
        console::{FAINT, STRONG, paint},
        jobs,
        output::{duration, row, sanitized, short, short_duration, table},
    },
    proto::{JobCounts, ListJobsResponse, Phase, PoolStats, Stats, TenantRate},
};

/// Maximum number of tenants on the screen.
const MAX_TENANTS: usize = 5;
/// Maximum number of kinds with detached jobs on the screen.
const MAX_DETACHED: usize = 5;

/// The data of the screen.
pub(super) struct View {
    pub(super) stats: Stats,
    /// The previous snapshot, for rates.
    pub(super) before: Option<Stats>,
    /// Queued and running jobs, oldest first, or why they are unknown.
    pub(super) jobs: Result<ListJobsResponse, String>,
}

/// The view in `height` lines of `width` characters. Lines at the end are cut.
pub(super) fn lines(view: &View, width: usize, height: usize) -> Vec<String> {
    let mut lines = vec![paint(STRONG, head(&view.stats))];
    lines.extend(problems(&view.stats));
    let mut detached = detached(view.stats.pools.iter().flat_map(|pool| &pool.kinds));
    detached.truncate(1 + MAX_DETACHED);
    let tenants = view.jobs.as_ref().map_or(Vec::new(), |answer| tenants(&answer.tenants));
    for block in [pools(view), detached, tenants].into_iter().filter(|block| !block.is_empty()) {
        lines.extend(block);
        lines.push(String::new());
    }
    match &view.jobs {
        Ok(answer) => {
            lines.push(paint(FAINT, jobs::summary(answer)));
            lines.extend(jobs::lines(answer, Some(width)));
        }
        Err(why) => lines.push(paint(FAINT, format!("no jobs and no tenants: {why}"))),
    }
    lines.resize(height, String::new());
    lines.iter().map(|line| fit(line, width)).collect()
}

/// A line of `width` characters on one row. A line that is cut loses its styles.
fn fit(line: &str, width: usize) -> String {
    let line = line.replace(['\n', '\t'], " ");
    let plain = anstream::adapter::strip_str(&line).to_string();
    match width.checked_sub(plain.chars().count()) {
        Some(space) => line + &" ".repeat(space),
        None => plain.chars().take(width).collect(),
    }
}

fn head(stats: &Stats) -> String {
    let phase = stats.phase().as_str_name().trim_start_matches("PHASE_");
    format!("{phase}  up {}   q quits", short(stats.uptime))
}

fn pools(view: &View) -> Vec<String> {
    let before = |pool: &PoolStats| view.before.as_ref()?.pools.iter().find(|before| before.name == pool.name);
    let uptime = |stats: &Stats| duration(stats.uptime);
    let time = view.before.as_ref().map_or(Duration::ZERO, |before| uptime(&view.stats).saturating_sub(uptime(before)));
    let row = |pool| self::pool(pool, before(pool).filter(|_| !time.is_zero()), time);
    let heads =
        ["pool", "state", ">busy", ">queued", ">arrive/s", ">end/s", ">fail/s", ">refuse/s", ">wait", "refused"];
    table(&heads, view.stats.pools.iter().map(row).collect())
}

fn pool(pool: &PoolStats, before: Option<&PoolStats>, time: Duration) -> Vec<String> {
    let queue = pool.queue.unwrap_or_default();
    let state = match (pool.phase(), &pool.paused) {
        (Phase::Serving, Some(_)) => "paused".to_owned(),
        (phase, _) => phase.as_str_name().trim_start_matches("PHASE_").to_ascii_lowercase(),
    };
    let now = flow(pool);
    let rates = before.map(flow).map(|before| {
        std::array::from_fn(|at| format!("{:.1}", now[at].saturating_sub(before[at]) as f64 / time.as_secs_f64()))
    });
    let [arrived, ended, failed, refused] = rates.unwrap_or_else(|| ["-"; 4].map(str::to_owned));
    let reasons = pool.recent.iter().flat_map(|recent| &recent.refused);
    let reasons: Vec<_> = reasons.map(|it| format!("{} {:.1}", sanitized(&it.reason), it.per_second)).collect();
    let busy = format!("{}/{}", pool.in_flight, pool.size.unwrap_or_default().workers);
    let queued = format!("{}/{}", queue.jobs, queue.jobs_capacity);
    let waits = pool.kinds.iter().map(|kind| duration(kind.expected_wait));
    let wait = short_duration(waits.fold(duration(queue.expected_wait), Duration::max));
    row![sanitized(&pool.name), state, busy, queued, arrived, ended, failed, refused, wait, reasons.join("  ")]
}

/// Jobs since the start: arrived, ended, failed and refused.
fn flow(pool: &PoolStats) -> [u64; 4] {
    let jobs = pool.jobs.clone().unwrap_or_default();
    let JobCounts { accepted, completed, failed, cancelled, expired, panicked, shed, rejected } = jobs;
    let refused: u64 = rejected.iter().map(|rejected| rejected.count).sum();
    let ended = completed + failed + cancelled + expired + panicked + shed;
    [accepted + refused, ended, failed + panicked, refused]
}

/// The busiest tenants; empty if there are fewer than two.
fn tenants(tenants: &[TenantRate]) -> Vec<String> {
    if tenants.len() < 2 {
        return Vec::new();
    }
    let row = |rate: &TenantRate| {
        let name = if rate.tenant.is_empty() { "(default)".to_owned() } else { sanitized(&rate.tenant) };
        row![name, format!("{:.1}", rate.asks), format!("{:.1}", rate.refusals)]
    };
    let rows = tenants.iter().take(MAX_TENANTS).map(row);
    table(&["tenants that ask most", ">ask/s", ">refuse/s"], rows.collect())
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;
    use crate::proto::{
        DetachedStats, JobOrder, JobStage, KindStats, ListedJob, QueueStats, RefusalRate, RejectedCount, SizeStats,
        Window,
    };

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
                completed: 77 * turn,
                failed: 3 * turn,
                rejected: vec![RejectedCount { reason: "QUEUE_FULL".into(), count: 30 * turn }],
                ..JobCounts::default()
            }),
            recent: Some(Window {
                refused: vec![RefusalRate { reason: "QUEUE_FULL".into(), per_second: 15.0 }],
                ..Window::default()
            }),
            paused: (at == 1).then(|| "3s".parse().unwrap()),
            ..PoolStats::default()
        };
        Stats {
            phase: Phase::Serving.into(),
            uptime: Some(format!("{seconds}s").parse().unwrap()),
            pools: (0..pools).map(pool).collect(),
            ..Stats::default()
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
            order: JobOrder::Oldest.into(),
            tenants: (0..tenants).map(rate).collect(),
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
            lines[..5],
            [
                "SERVING  up 12s   q quits",
                "pool   state    busy  queued  arrive/s  end/s  fail/s  refuse/s  wait  refused",
                "pool0  serving   2/2    7/64      65.0   40.0     1.5      15.0  1.5s  QUEUE_FUL",
                "pool1  paused    2/2    7/64      65.0   40.0     1.5      15.0  1.5s  QUEUE_FUL",
                "",
            ]
        );
        assert_eq!(lines[5], "tenants that ask most  ask/s  refuse/s");
        assert_eq!(lines[10], "tenant 4                12.3       2.0");
        assert_eq!(
            lines[11..16],
            [
                "",
                "64 of 99 jobs, the oldest first",
                "job                  state       age  run  kind    tenant                 reque…",
                "019f0e3b2c4d5e6f-0   running  1m 12s    -  resize",
                "019f0e3b2c4d5e6f-1   running  1m 12s    -  resize  a tenant with a name…",
            ]
        );
        assert!(lines[23].starts_with("019f0e3b2c4d5e6f-9"), "{lines:?}");
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
                "detached  scheduled  ready  blocked  running  dead  oldest ready",
                "resize            0  12000        0        0     3        1m 30s",
                "",
            ]
        );
        assert!(lines[7].starts_with("tenants") && lines[14].starts_with("64 of 99 jobs"), "{lines:?}");
    }

    #[test]
    fn what_is_not_known_is_said_and_what_has_no_room_gives_way() {
        let unknown = View { stats: stats(1, 1, 1), before: None, jobs: Err("cannot reach the server".into()) };
        let lines = shown(&unknown, 80, 24);
        assert!(lines[2].contains("2/2    7/64         -      -       -         -  1.5s"), "{lines:?}");
        assert_eq!(lines[4], "no jobs and no tenants: cannot reach the server");
        let view = View { stats: stats(12, 2, 2), before: None, jobs: Ok(jobs(64, 9)) };
        for (width, height) in [(200, 60), (80, 10), (40, 5), (20, 3), (1, 1)] {
            let lines = shown(&view, width, height);
            assert!("SERVING  up 12s".starts_with(&lines[0]) || lines[0].starts_with("SERVING"), "{lines:?}");
        }
    }
}
