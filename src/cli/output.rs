//! Formats figures, texts, tables and JSON. All functions are pure.

use std::{fmt::Display, io, sync::LazyLock, time::Duration};

use clap::ValueEnum;
use prost::Name;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};

use super::console::{FAINT, paint};
use crate::{
    config::{Config, Handler, Kind, Pool},
    proto::{self, Waterfall},
};

static MESSAGES: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS).expect("the build made valid descriptors"));

/// Output format of a command: text, or one JSON object per line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

/// Milliseconds, such as `0.02ms`, `0.4ms`, `1503ms`.
pub(crate) fn exact(duration: Duration) -> String {
    match duration.as_secs_f64() * 1e3 {
        0.0 => "0ms".to_owned(),
        ms @ ..0.095 => format!("{ms:.2}ms"),
        ms @ ..9.95 => format!("{ms:.1}ms"),
        ms => format!("{ms:.0}ms"),
    }
}

/// A time to two or three digits, such as `4.1ms`, `120ms`, `1.0s`, `12s`, `2m 3s`.
pub(crate) fn short_duration(duration: Duration) -> String {
    match duration.as_secs_f64() {
        ..0.9995 => exact(duration),
        seconds @ ..9.95 => format!("{seconds:.1}s"),
        seconds @ ..59.5 => format!("{seconds:.0}s"),
        _ => clock(duration),
    }
}

/// [`short_duration`] of a duration in a message.
pub(crate) fn short(time: Option<prost_types::Duration>) -> String {
    short_duration(duration(time))
}

/// A duration as a flag takes it, such as `2s`, `1.6s`, `500ms`, `10m`.
pub(crate) fn setting(duration: Duration) -> String {
    match (duration.as_secs(), duration.subsec_nanos()) {
        (0, _) => format!("{}ms", trimmed(duration.as_secs_f64() * 1e3)),
        (seconds, 0) if seconds.is_multiple_of(3600) => format!("{}h", seconds / 3600),
        (seconds, 0) if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        _ => format!("{}s", trimmed(duration.as_secs_f64())),
    }
}

/// A count with its noun, such as `1 pool`, `3 pools`.
pub(crate) fn pluralized<N: Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let plural = if count == 1.into() { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// The pools of a configuration, with their workers and the capacity of their queues, and its kinds.
pub(crate) fn contents(config: &Config) -> String {
    let pool = |Pool { name, settings }: &Pool| {
        let (min, max) = (settings.workers.get(), settings.most_workers());
        let is_remote = |kind: &Kind| kind.pool == *name && matches!(kind.handler, Handler::Remote { .. });
        let workers = match config.kinds.iter().any(is_remote) {
            true => "attached workers".to_owned(),
            false if min < max => format!("{min} to {max} workers"),
            false => pluralized(min, "worker"),
        };
        format!("{name} {workers} / {} queued", settings.queue_jobs)
    };
    let pools: Vec<String> = config.pools.iter().map(pool).collect();
    let kinds: Vec<&str> = config.kinds.iter().map(|kind| kind.name.as_str()).collect();
    format!("pools  {}\nkinds  {}", pools.join("   "), kinds.join(" "))
}

/// Name of a value in its flag.
pub(crate) fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// A share, such as `37%`.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0}%", share.clamp(0.0, 1.0) * 100.0)
}

/// The use of a job's budget, such as
/// `done in 1.5s budget 2s = queue 0.4ms + run 1503ms + left 497ms`.
pub(crate) fn waterfall(waterfall: &Waterfall) -> String {
    let Waterfall { budget_seconds, queue_seconds, run_seconds, left_seconds, worker: _ } = *waterfall;
    let [budget, queue, run, left] = [budget_seconds, queue_seconds, run_seconds, left_seconds].map(seconds);
    let (total, budget) = (short_duration(queue + run), setting(budget));
    let [queue, run, left] = [queue, run, left].map(exact);
    format!("done in {total}   budget {budget} = queue {queue} + run {run} + left {left}")
}

/// The id of a job, as the line below its text.
pub(crate) fn job_id(id: &str) -> String {
    paint(FAINT, format!("  job {}", sanitized(id)))
}

/// The duration in a message; zero if absent or negative.
pub(crate) fn duration(duration: Option<prost_types::Duration>) -> Duration {
    duration.and_then(|duration| Duration::try_from(duration).ok()).unwrap_or_default()
}

/// A duration in seconds; zero if the number is not a valid duration.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// A peer's text without control characters, which could control the terminal. Line ends and tabs stay.
pub(crate) fn sanitized(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "\u{FFFD}")
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

/// A protobuf message as one line of proto3 JSON: with field names of the proto, with default values, and with numbers
/// as numbers. Fails for a duration that is longer than the format allows.
pub(crate) fn message_json<M: Name>(message: &M) -> io::Result<String> {
    let known = MESSAGES.get_message_by_name(&M::full_name()).expect("the contract has all its messages");
    let mut dynamic = DynamicMessage::new(known);
    dynamic.transcode_from(message).map_err(io::Error::other)?;
    let options =
        SerializeOptions::new().use_proto_field_name(true).skip_default_fields(false).stringify_64_bit_integers(false);
    let mut line = Vec::new();
    dynamic.serialize_with_options(&mut serde_json::Serializer::new(&mut line), &options)?;
    String::from_utf8(line).map_err(io::Error::other)
}

/// The cells of a row, from anything that can be displayed.
macro_rules! row {
    ($($cell:expr),+ $(,)?) => {
        vec![$($cell.to_string()),+]
    };
}
pub(crate) use row;

/// Smallest width of a shortened column.
const MIN_WIDTH: usize = 6;

/// Rows of cells below their heading, two spaces apart; empty without rows. Each column is as wide as its widest cell;
/// styles have no width. A heading that begins with `>` aligns its column to the right.
pub(crate) fn table(heads: &[&str], rows: Vec<Vec<String>>) -> Vec<String> {
    fitted(heads, rows, &[], None)
}

/// A [`table`] of at most `max` columns of the terminal. To fit, the columns in `cut` are shortened, in that order.
pub(crate) fn fitted(heads: &[&str], mut rows: Vec<Vec<String>>, cut: &[usize], max: Option<usize>) -> Vec<String> {
    if rows.is_empty() {
        return Vec::new();
    }
    rows.insert(0, heads.iter().map(|head| paint(FAINT, head.trim_start_matches('>'))).collect());
    let widest = |rows: &[Vec<String>], column: usize| rows.iter().map(|row| width(&row[column])).max().unwrap_or(0);
    for column in cut {
        let whole = (0..heads.len()).map(|column| widest(&rows, column) + 2).sum::<usize>() - 2;
        let over = max.map_or(0, |max| whole.saturating_sub(max));
        let space = widest(&rows, *column).saturating_sub(over).max(MIN_WIDTH);
        for row in rows.iter_mut().filter(|row| width(&row[*column]) > space) {
            let cell = anstream::adapter::strip_str(&row[*column]).to_string();
            row[*column] = cell.chars().take(space - 1).chain(['…']).collect();
        }
    }
    let widths: Vec<usize> = (0..heads.len()).map(|column| widest(&rows, column)).collect();
    let line = |row: Vec<String>| {
        let cells = row.into_iter().zip(heads.iter().zip(&widths)).map(|(cell, (head, to))| {
            let space = " ".repeat(to - width(&cell));
            if head.starts_with('>') { space + &cell } else { cell + &space }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.into_iter().map(line).collect()
}

fn width(cell: &str) -> usize {
    anstream::adapter::strip_str(cell).to_string().chars().count()
}

#[cfg(test)]
#[path = "tests/output.rs"]
mod tests;
