//! The sentences of `waterwheel reload --dry-run` about what a change would have done.

use super::{
    console::{FAINT, STRONG, WARN, paint},
    output::{duration, pluralized, sanitized, short, short_duration},
};
use crate::proto::{JobFigures, KindForecast, PoolForecast};

/// From this difference on, in percentage points, the measured figures are shown beside those of the replay.
const NOTEWORTHY: f64 = 2.0;

pub(super) fn text(forecast: &PoolForecast) -> String {
    let PoolForecast { pool, jobs, over, kinds, workers, fewest_workers } = forecast;
    let pool = paint(STRONG, format!("pool {}", sanitized(pool)));
    let all = pluralized(*jobs, "job");
    if kinds.is_empty() {
        return format!("\n{pool}: {all} recorded, too few to say what the change would have done");
    }
    let of = short_duration(duration(*over));
    let mut lines = vec![format!("\n{pool}: its last {all}, of {of}, replayed with the change and without")];
    lines.extend(kinds.iter().map(kind));
    let there = format!("there would be {workers}");
    lines.push(match fewest_workers {
        Some(fewest) => {
            let are = if *fewest == 1 { "is the fewest" } else { "are the fewest" };
            format!("  {} {are} for at most 1 % refused or missed; {there}", pluralized(*fewest, "worker"))
        }
        None => format!("  more workers alone do not bring refused and missed jobs to at most 1 %; {there}"),
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
    let refused = |figures: &JobFigures| percent(figures, figures.refused);
    let missed = |figures: &JobFigures| percent(figures, figures.missed);
    let mut line = format!(
        "  would have refused {} of {kind} {}, missed {} {}; p99 wait {} {}",
        shown(refused(then)),
        was(shown(refused(&now))),
        shown(missed(then)),
        was(shown(missed(&now))),
        short(then.wait_p99),
        was(short(now.wait_p99)),
    );
    let is_off = |of: &dyn Fn(&JobFigures) -> f64| (of(&measured) - of(&now)).abs() > NOTEWORTHY;
    if is_off(&refused) || is_off(&missed) {
        let wait = short(measured.wait_p99);
        let note = format!(
            "\n    the replay differs from what the server measured: refused {}, missed {}; p99 wait {wait}",
            shown(refused(&measured)),
            shown(missed(&measured)),
        );
        line.push_str(&paint(WARN, note));
    }
    line
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

    #[test]
    fn a_forecast_is_sentences() {
        let thumb = KindForecast {
            kind: "thumb".into(),
            measured: figures(30, 0, "0.040s"),
            now: figures(4, 0, "0.035s"),
            then: figures(31, 2, "0.410s"),
        };
        let page = KindForecast { kind: "page".into(), then: None, ..thumb.clone() };
        let mut forecast = PoolForecast {
            pool: "cpu".into(),
            jobs: 2000,
            over: Some("7200s".parse().expect("a duration")),
            kinds: vec![thumb, page],
            workers: 8,
            fewest_workers: Some(9),
        };
        let stripped = |forecast: &PoolForecast| anstream::adapter::strip_str(&text(forecast)).to_string();
        let expected = "
pool cpu: its last 2000 jobs, of 2h 0m, replayed with the change and without
  would have refused 3.1 % of thumb (now 0.4 %), missed 0.2 % (now 0.0 %); p99 wait 410ms (now 35ms)
    the replay differs from what the server measured: refused 3.0 %, missed 0.0 %; p99 wait 40ms
  would no longer serve page: 1000 jobs
  9 workers are the fewest for at most 1 % refused or missed; there would be 8";
        assert_eq!(stripped(&forecast), expected);
        forecast.fewest_workers = None;
        let end = "more workers alone do not bring refused and missed jobs to at most 1 %; there would be 8";
        assert_eq!(stripped(&forecast).lines().last().map(str::trim), Some(end));
        forecast.kinds.clear();
        assert_eq!(
            stripped(&forecast),
            "\npool cpu: 2000 jobs recorded, too few to say what the change would have done"
        );
    }
}
