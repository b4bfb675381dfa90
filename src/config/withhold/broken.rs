//! What is shown of a text that is no TOML: lines with a mistake, where all before them is TOML, so that no string or
//! table is open there, and where a reader of the schema would take as a value that may be shown what stands behind the
//! first `=`. Of all else a fault tells the place and no more.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::excerpt::Shown;
use super::is_name;
use crate::model::{WITHHELD, userinfo};

/// Lines that are looked at. Each costs a parse of all before it.
const MOST_LINES: usize = 16;

/// What opens a string, a table or an array that may go on in the next line.
const OPENING: [&str; 4] = ["\"\"\"", "'''", "{", "["];

/// What of a line behind its `=` may be another value than that of its key.
const OTHER: [&str; 4] = ["=", "{", "\"\"\"", "'''"];

/// The text with those lines alone.
pub(super) fn shown(text: &str) -> Shown<'_> {
    let mut shown = Shown::of(text);
    let mut hidden = 0;
    for line in lines(text) {
        shown.hide(hidden..line.start);
        hidden = line.end;
        let comment = text[line.clone()].find('#').map_or(line.end, |at| line.start + at);
        for cut in userinfo(&text[line.start..comment]) {
            shown.cut(cut.start + line.start..cut.end + line.start, WITHHELD);
        }
        let end = line.start + text[line].trim_end_matches('\n').len();
        shown.cut(comment.min(end)..end, "");
    }
    if hidden < text.len() {
        shown.hide(hidden..text.len());
    }
    shown.whole()
}

/// The lines that may be shown, with their ends.
fn lines(text: &str) -> Vec<Range<usize>> {
    let (_, errors) = DeTable::parse_recoverable(text);
    let mut places: Vec<usize> = errors.iter().filter_map(|error| Some(error.span()?.start)).collect();
    places.sort_unstable();
    let (mut good, mut end) = (String::new(), 0);
    let mut lines: Vec<Range<usize>> = Vec::new();
    for place in places {
        if place < end {
            continue;
        }
        let start = text[..place].rfind('\n').map_or(0, |at| at + 1);
        let next = text[place..].find('\n').map_or(text.len(), |at| place + at + 1);
        // A mistake at the end of the text may be one of a line before.
        good.push_str(text.get(end..start).unwrap_or_default());
        let line = &text[start..next];
        if lines.len() == MOST_LINES || !is_shown(&good, line) {
            break;
        }
        lines.push(start..next);
        end = next;
        if OPENING.iter().any(|opening| line.contains(opening)) {
            break;
        }
    }
    lines
}

/// Whether a line may be shown that stands behind what should be TOML.
fn is_shown(good: &str, line: &str) -> bool {
    let Some(section) = section(good) else { return false };
    let line = line.split('#').next().unwrap_or(line).trim();
    let Some((key, value)) = line.split_once('=') else {
        let keys = line.trim_matches(['[', ']']);
        return line.starts_with('[') && keys.split('.').all(|key| is_name(key.trim()));
    };
    let keys = section.into_iter().chain(key.split('.').map(|key| key.trim().to_owned()));
    let keys: Vec<String> = keys.collect();
    let value = value.trim();
    let is_bare = keys.iter().all(|key| !key.is_empty() && is_name(key));
    is_bare
        && !OTHER.iter().any(|other| value.contains(other))
        && super::super::takes_openly(&keys.join("."), value.trim_matches(['"', '\'']))
}

/// The keys of the section in which a text ends; none where it is no TOML, or something is still open.
fn section(good: &str) -> Option<Vec<String>> {
    let probed = format!("{good}\nwaterwheel-probe = 0");
    let table = DeTable::parse(&probed).ok()?;
    let mut keys = Vec::new();
    find(table.get_ref(), good.len(), &mut keys).then_some(keys)
}

fn find(table: &DeTable<'_>, from: usize, keys: &mut Vec<String>) -> bool {
    table.iter().any(|(key, value)| {
        if let DeValue::Table(inner) = value.get_ref() {
            keys.push(key.get_ref().to_string());
            return find(inner, from, keys) || keys.pop().is_none();
        }
        value.span().start > from
    })
}
