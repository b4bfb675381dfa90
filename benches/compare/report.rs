//! The report: a table of paired ratios, and all figures as JSON.

use std::{collections::BTreeMap, fmt, thread, time::Duration};

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    Round,
    regime::{Aim, Figure, Regime, Side},
};

const HEAD: [&str; 8] = ["regime", "figure", "waterwheel", "beside", "ratio", "quartiles", "aim", "met"];

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: Value,
    rounds: u16,
    burst_s: f64,
    compare_bare: Value,
    submit_many: Value,
    rows: Vec<Line>,
    /// Every burst, by regime and side.
    bursts: BTreeMap<&'static str, Vec<Burst>>,
}

/// The figures of each side in one burst.
type Burst = BTreeMap<String, BTreeMap<Figure, f64>>;

/// One comparison, in medians.
#[derive(Debug, Serialize)]
struct Line {
    regime: &'static str,
    what: &'static str,
    figure: Figure,
    waterwheel: Option<f64>,
    beside: Side,
    there: Option<f64>,
    /// Spread of the ratios of all rounds.
    ratio: Option<Spread>,
    aim: Option<String>,
    met: Option<bool>,
}

/// Quartiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Spread {
    lower_quartile: f64,
    median: f64,
    upper_quartile: f64,
}

impl Report {
    pub(crate) fn new(rounds: u16, burst: Duration, has_go: bool, measured: &[(&Regime, Vec<Round>)]) -> Self {
        let mut rows = Vec::new();
        let mut bursts = BTreeMap::new();
        for (regime, rounds) in measured {
            let sides: Vec<Side> = regime.sides().into_iter().filter(|side| *side != Side::Go || has_go).collect();
            let named = |round: &Round| sides.iter().map(name).zip(round.iter().cloned()).collect();
            bursts.insert(regime.name, rounds.iter().map(named).collect());
            for row in regime.rows {
                let Some(there) = sides.iter().position(|side| *side == row.beside) else { continue };
                let figure = |side: usize| rounds.iter().map(move |round| round[side].get(&row.figure).copied());
                let ratio = Spread::of(figure(0).zip(figure(there)).filter_map(|(ours, theirs)| Some(ours? / theirs?)));
                let median = |side| Spread::of(figure(side).flatten()).map(|spread| spread.median);
                rows.push(Line {
                    regime: regime.name,
                    what: regime.what,
                    figure: row.figure,
                    waterwheel: median(0),
                    beside: row.beside,
                    there: median(there),
                    ratio,
                    aim: row.aim.map(|aim| aim.to_string()),
                    met: row.aim.zip(ratio).map(|(aim, ratio)| aim.is_met(ratio.median)),
                });
            }
        }
        let ratio = |regime, figure, beside| {
            let line = |line: &&Line| (line.regime, line.figure, line.beside) == (regime, figure, beside);
            rows.iter().find(line).and_then(|line| line.ratio)
        };
        let cpu = ratio("echo", Figure::CpuUsPerRequest, Side::Bare);
        let throughput = ratio("echo", Figure::RequestsPerS, Side::Bare);
        let many = ratio("many", Figure::JobsPerCpuSecond, Side::Submit);
        let median = |spread: Option<Spread>| spread.map(|spread| spread.median);
        Self {
            machine: json!({
                "cores": thread::available_parallelism().map_or(1, Into::into),
                "build": build(),
                "version": env!("CARGO_PKG_VERSION"),
                "go": has_go,
            }),
            rounds,
            burst_s: burst.as_secs_f64(),
            compare_bare: json!({
                "cpu_ratio": median(cpu),
                "throughput_ratio": median(throughput),
                "cpu_ratio_spread": cpu,
                "throughput_ratio_spread": throughput,
            }),
            submit_many: json!({
                "jobs_per_cpu_second_ratio": median(many),
                "jobs_per_cpu_second_ratio_spread": many,
            }),
            rows,
            bursts,
        }
    }
}

/// The cargo profile of this build, from the name of its target directory.
fn build() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let profile = program.parent()?.parent()?.file_name()?;
    Some(profile.to_string_lossy().into_owned())
}

impl Spread {
    /// The spread of `values`. `None` without values.
    fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        // Interpolates between the two nearest values.
        let at = |share: f64| {
            let place = share * last as f64;
            let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Some(Self { lower_quartile: at(0.25), median: at(0.5), upper_quartile: at(0.75) })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.rows.iter().map(Line::cells);
        let rows: Vec<[String; HEAD.len()]> = std::iter::once(HEAD.map(str::to_owned)).chain(lines).collect();
        let mut widths = [0; HEAD.len()];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                line += &format!("{cell:<width$}  ");
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        let (rounds, burst, machine) = (self.rounds, self.burst_s, &self.machine);
        writeln!(f, "medians of {rounds} paired ratios, bursts of {burst} s; {machine}")
    }
}

impl Line {
    fn cells(&self) -> [String; HEAD.len()] {
        let beside = format!("{} {}", name(&self.beside), number(self.there));
        let (ratio, quartiles) = self.ratio.map_or(("-".into(), "-".into()), |spread| {
            let Spread { lower_quartile, median, upper_quartile } = spread;
            (format!("{median:.2}"), format!("{lower_quartile:.2}–{upper_quartile:.2}"))
        });
        let met = self.met.map_or("", |met| if met { "yes" } else { "no" });
        [
            self.what.to_owned(),
            self.figure.to_string(),
            number(self.waterwheel),
            beside,
            ratio,
            quartiles,
            self.aim.clone().unwrap_or_default(),
            met.to_owned(),
        ]
    }
}

/// A number with three significant digits.
fn number(figure: Option<f64>) -> String {
    match figure {
        None => "-".to_owned(),
        Some(figure) if figure >= 100.0 => format!("{figure:.0}"),
        Some(figure) if figure >= 10.0 => format!("{figure:.1}"),
        Some(figure) => format!("{figure:.2}"),
    }
}

fn name(side: &Side) -> String {
    match side {
        Side::Waterwheel => "waterwheel",
        Side::Mute => "mute",
        Side::Submit => "Submit",
        Side::Bare => "bare",
        Side::Go => "go",
    }
    .to_owned()
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CpuUsPerRequest => "CPU µs/job",
            Self::JobsPerCpuSecond => "jobs/CPU s",
            Self::RequestsPerS => "jobs/s",
            Self::P50Ms => "p50 ms",
            Self::P99Ms => "p99 ms",
            Self::WritesPerReply => "writes/reply",
            Self::ServedShare => "served share",
            Self::PeakMib => "peak MiB",
        })
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "≤ {most}"),
            Self::AtLeast(least) => write!(f, "≥ {least}"),
        }
    }
}
