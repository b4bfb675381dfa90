//! Formats figures and texts. All functions are pure.

pub(super) mod json;
pub(super) mod table;

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::console::{FAINT, paint};
use crate::{
    config::{Config, Handler, Kind, Pool},
    proto::Waterfall,
};

/// Output format of a command: text, or one JSON object per line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// The flag that chooses the format.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArgs {
    /// Output format: text, or JSON lines with the field names of the contract.
    // Without this, clap prints it under the heading of the flags before it.
    #[arg(id = "output", long, value_name = "FORMAT", default_value = "text", help_heading = None::<&str>)]
    pub(crate) format: Format,
}

/// Milliseconds, as in `0.02ms`, `0.4ms`, `1503ms`.
pub(crate) fn exact(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    if duration.is_zero() {
        "0ms".to_owned()
    } else if ms < 0.095 {
        format!("{ms:.2}ms")
    } else if ms < 9.95 {
        format!("{ms:.1}ms")
    } else {
        format!("{ms:.0}ms")
    }
}

/// A time to the millisecond, as in `0.4ms`, `497ms`, `1.503s`, `2m 3s`.
pub(crate) fn elapsed(duration: Duration) -> String {
    match duration.as_secs() {
        0 => exact(duration),
        1..100 => format!("{:.3}s", duration.as_secs_f64()),
        _ => clock(duration),
    }
}

/// A time to two or three digits, as in `4.1ms`, `120ms`, `1.0s`, `12s`, `2m 3s`.
pub(crate) fn rough(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    if seconds < 0.9995 {
        exact(duration)
    } else if seconds < 9.95 {
        format!("{seconds:.1}s")
    } else if seconds < 59.5 {
        format!("{seconds:.0}s")
    } else {
        clock(duration)
    }
}

/// Time left, rounded up to whole seconds, as in `7s`, `1m 30s`.
pub(crate) fn countdown(duration: Duration) -> String {
    let whole = Duration::from_secs(duration.as_secs_f64().ceil() as u64);
    if whole.as_secs() < 60 { format!("{}s", whole.as_secs()) } else { clock(whole) }
}

/// A duration as in a flag, such as `2s`, `1.6s`, `500ms`, `10m`.
pub(crate) fn setting(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let whole = duration.subsec_nanos() == 0 && seconds > 0;
    if whole && seconds.is_multiple_of(3600) {
        format!("{}h", seconds / 3600)
    } else if whole && seconds.is_multiple_of(60) {
        format!("{}m", seconds / 60)
    } else if seconds > 0 {
        format!("{}s", trimmed(duration.as_secs_f64()))
    } else {
        format!("{}ms", trimmed(duration.as_secs_f64() * 1e3))
    }
}

/// A number of bytes, as in `512B`, `1.5KiB`, `64MiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count}B");
    }
    let mut size = count as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1023.95 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = format!("{size:.1}");
    let digits = digits.strip_suffix(".0").unwrap_or(&digits);
    format!("{digits}{}", UNITS[unit])
}

/// A count with its noun, as in `1 pool`, `3 pools`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// The pools of a configuration, with their workers and the capacity of their queues, and its kinds.
pub(crate) fn contents(config: &Config) -> String {
    let pool = |Pool { name, workers: min, max_workers: max, queue, .. }: &Pool| {
        let is_remote = |kind: &Kind| kind.pool == *name && matches!(kind.handler, Handler::Remote { .. });
        let workers = match config.kinds.iter().any(is_remote) {
            true => "attached workers".to_owned(),
            false if min < max => format!("{min} to {max} workers"),
            false => counted(*min, "worker"),
        };
        format!("{name} {workers} / {} queued", queue.jobs)
    };
    let pools: Vec<String> = config.pools.iter().map(pool).collect();
    let kinds: Vec<&str> = config.kinds.iter().map(|kind| kind.name.as_str()).collect();
    format!("pools  {}\nkinds  {}", pools.join("   "), kinds.join(" "))
}

/// A share, as in `37%`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0}%", share.clamp(0.0, 1.0) * 100.0)
}

/// The use of a job's budget, as in
/// `done in 1.503s budget 2s = queue 0.4ms + run 1503ms + left 497ms`.
pub(crate) fn waterfall(waterfall: &Waterfall) -> String {
    let parts = waterfall.parts();
    let queue = duration(parts.queue.as_ref());
    let run = duration(parts.run.as_ref());
    format!(
        "done in {}   budget {} = queue {} + run {} + left {}",
        elapsed(queue + run),
        setting(duration(parts.budget.as_ref())),
        exact(queue),
        exact(run),
        exact(duration(parts.left.as_ref())),
    )
}

/// The id of a job, as the line below its text.
pub(crate) fn job_id(id: &str) -> String {
    paint(FAINT, format!("  job {}", plain(id)))
}

/// The duration in a message; zero if absent or negative.
pub(crate) fn duration(duration: Option<&prost_types::Duration>) -> Duration {
    duration.and_then(|duration| Duration::try_from(*duration).ok()).unwrap_or_default()
}

/// A peer's text without control characters, which could control a terminal. Line ends and tabs stay.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => c,
            c if c.is_control() => char::REPLACEMENT_CHARACTER,
            c => c,
        })
        .collect()
}

fn clock(duration: Duration) -> String {
    let seconds = duration.as_secs_f64().round() as u64;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, _) => format!("{minutes}m {}s", seconds % 60),
        (0, _, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

fn trimmed(number: f64) -> String {
    let digits = format!("{number:.3}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests;
