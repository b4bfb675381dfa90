//! The sentences of `waterwheel reload --dry-run` about what a change would have done, and of `waterwheel advise` about
//! other numbers of workers.

use clap::builder::styling::Style;

use super::{
    console::{FAINT, STRONG, WARN, paint},
    output::{duration, pluralized, row, sanitized, short, short_duration, table},
};
use crate::proto::{JobFigures, KindForecast, PoolForecast, SizeForecast};

/// From this difference on, in percentage points, the measured figures are shown beside those of the replay.
const NOTEWORTHY: f64 = 2.0;
/// A server makes no forecast of fewer jobs.
const MIN_JOBS: u64 = 200;

/// What a change would have done.
pub(super) fn of_change(forecast: &PoolForecast) -> String {
    let kinds = forecast.kinds.iter().map(kind).collect();
    format!("\n{}", text(forecast, "with the change and without", "would be", kinds))
}

/// What other numbers of workers would have done.
pub(super) fn of_sizes(forecast: &PoolForecast) -> String {
    let row = |SizeForecast { workers, jobs, busy }: &SizeForecast| {
        let jobs = jobs.unwrap_or_default();
        let style = if *workers == forecast.workers { STRONG } else { Style::new() };
        let [refused, missed] = [jobs.refused, jobs.missed].map(|count| shown(percent(&jobs, count)));
        row![paint(style, workers), refused, missed, short(jobs.wait_p99), shown(busy * 100.0)]
    };
    let heads = [">  workers", ">refused", ">missed", ">p99 wait", ">busy"];
    let sizes = table(&heads, forecast.sizes.iter().map(row).collect()).into_iter();
    text(
        forecast,
        "with other numbers of workers",
        "are up to",
        sizes.chain(forecast.kinds.iter().filter_map(note)).collect(),
    )
}

fn text(forecast: &PoolForecast, how: &str, there: &str, replayed: Vec<String>) -> String {
    let PoolForecast { pool: name, jobs, over, kinds, workers, fewest_workers, sizes: _, recorded_jobs } = forecast;
    let name = sanitized(name);
    let pool = paint(STRONG, format!("pool {name}"));
    if *recorded_jobs < MIN_JOBS {
        return format!(
            "{pool} records at most {}, too few for a forecast: set pool.{name}.recorded_jobs to {MIN_JOBS} or more, by \
             default 65536, and restart the server",
            pluralized(*recorded_jobs, "job")
        );
    }
    let all = pluralized(*jobs, "job");
    if kinds.is_empty() {
        return format!(
            "{pool}: {all} recorded, too few for a forecast; {MIN_JOBS} are enough if some ran to their end"
        );
    }
    let of = short_duration(duration(*over));
    let mut lines = vec![format!("{pool}: its last {all}, of {of}, replayed {how}")];
    lines.extend(replayed);
    lines.push(match fewest_workers {
        Some(fewest) => {
            let are = if *fewest == 1 { "is the fewest" } else { "are the fewest" };
            format!(
                "  {} {are} for at most 1 % refused or missed; there {there} {workers}",
                pluralized(*fewest, "worker")
            )
        }
        None => {
            format!("  more workers alone do not bring refused and missed jobs to at most 1 %; there {there} {workers}")
        }
    });
    lines.join("\n")
}

fn kind(forecast: &KindForecast) -> String {
    let KindForecast { kind, measured, now, then } = forecast;
    let kind = paint(STRONG, sanitized(kind));
    let [measured, now] = [measured, now].map(|figures| figures.unwrap_or_default());
    let Some(then) = then else {
        return format!("  would no longer serve {kind}: {}", pluralized(measured.jobs, "job"));
    };
    let was = |text: String| paint(FAINT, format!("(now {text})"));
    let line = format!(
        "  would have refused {} of {kind} {}, missed {} {}; p99 wait {} {}",
        shown(percent(then, then.refused)),
        was(shown(percent(&now, now.refused))),
        shown(percent(then, then.missed)),
        was(shown(percent(&now, now.missed))),
        short(then.wait_p99),
        was(short(now.wait_p99)),
    );
    [Some(line), note(forecast)].into_iter().flatten().collect::<Vec<_>>().join("\n")
}

/// How the replay under the settings in use differs from what happened, if it does.
fn note(KindForecast { kind, measured, now, .. }: &KindForecast) -> Option<String> {
    let [measured, now] = [measured, now].map(|figures| figures.unwrap_or_default());
    let [refused, missed] = [(measured.refused, now.refused), (measured.missed, now.missed)]
        .map(|(measured_count, now_count)| (percent(&measured, measured_count), percent(&now, now_count)));
    let is_off = |(measured, now): (f64, f64)| (measured - now).abs() > NOTEWORTHY;
    (is_off(refused) || is_off(missed)).then(|| {
        let wait = short(measured.wait_p99);
        let note = format!(
            "    the replay of {} differs from what the server measured: refused {}, missed {}; p99 wait {wait}",
            sanitized(kind),
            shown(refused.0),
            shown(missed.0),
        );
        paint(WARN, note)
    })
}

fn percent(figures: &JobFigures, of: u64) -> f64 {
    of as f64 / figures.jobs.max(1) as f64 * 100.0
}

fn shown(percent: f64) -> String {
    format!("{percent:.1} %")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(refused: u64, missed: u64, wait: &str) -> Option<JobFigures> {
        Some(JobFigures { jobs: 1000, refused, missed, wait_p99: Some(wait.parse().expect("a duration")) })
    }

    fn stripped(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    fn pool(kinds: Vec<KindForecast>) -> PoolForecast {
        PoolForecast {
            pool: "cpu".into(),
            jobs: 2000,
            over: Some("7200s".parse().expect("a duration")),
            kinds,
            workers: 8,
            fewest_workers: Some(9),
            sizes: Vec::new(),
            recorded_jobs: 65536,
        }
    }

    fn thumb() -> KindForecast {
        KindForecast {
            kind: "thumb".into(),
            measured: figures(30, 0, "0.040s"),
            now: figures(4, 0, "0.035s"),
            then: figures(31, 2, "0.410s"),
        }
    }

    #[test]
    fn a_forecast_is_sentences() {
        let page = KindForecast { kind: "page".into(), then: None, ..thumb() };
        let mut forecast = pool(vec![thumb(), page]);
        let expected = "
pool cpu: its last 2000 jobs, of 2h 0m, replayed with the change and without
  would have refused 3.1 % of thumb (now 0.4 %), missed 0.2 % (now 0.0 %); p99 wait 410ms (now 35ms)
    the replay of thumb differs from what the server measured: refused 3.0 %, missed 0.0 %; p99 wait 40ms
  would no longer serve page: 1000 jobs
  9 workers are the fewest for at most 1 % refused or missed; there would be 8";
        assert_eq!(stripped(&of_change(&forecast)), expected);
        forecast.fewest_workers = None;
        let end = "more workers alone do not bring refused and missed jobs to at most 1 %; there would be 8";
        assert_eq!(stripped(&of_change(&forecast)).lines().last().map(str::trim), Some(end));
        forecast.kinds.clear();
        let few = "pool cpu: 2000 jobs recorded, too few for a forecast; 200 are enough if some ran to their end";
        assert_eq!(stripped(&of_sizes(&forecast)), few);
        forecast.recorded_jobs = 0;
        let none = "pool cpu records at most 0 jobs, too few for a forecast: set pool.cpu.recorded_jobs to 200 or more, by \
                    default 65536, and restart the server";
        assert_eq!(stripped(&of_sizes(&forecast)), none);
    }

    #[test]
    fn sizes_are_a_table() {
        let size = |workers, refused, busy| SizeForecast { workers, jobs: figures(refused, 5, "0.2s"), busy };
        let same = KindForecast { measured: thumb().now, ..thumb() };
        let forecast = PoolForecast { sizes: vec![size(4, 300, 0.999), size(9, 0, 0.5)], ..pool(vec![same, thumb()]) };
        let expected = "\
pool cpu: its last 2000 jobs, of 2h 0m, replayed with other numbers of workers
  workers  refused  missed  p99 wait    busy
        4   30.0 %   0.5 %     200ms  99.9 %
        9    0.0 %   0.5 %     200ms  50.0 %
    the replay of thumb differs from what the server measured: refused 3.0 %, missed 0.0 %; p99 wait 40ms
  9 workers are the fewest for at most 1 % refused or missed; there are up to 8";
        assert_eq!(stripped(&of_sizes(&forecast)), expected);
    }
}
