//! Bounds of the texts that handlers return, so that any store, status and log can take them.

use super::job::MAX_CONTENT_TYPE;

/// Longest message of a handler, in bytes.
const MAX_MESSAGE: usize = 4 << 10;
/// Replaces the removed part of a text.
const GAP: &str = " … ";

/// A content type, with the bounds of a caller's.
pub(super) fn content_type(text: String) -> String {
    bounded(text, MAX_CONTENT_TYPE, &[])
}

/// A message for people, in which line ends and tabs stay.
pub(crate) fn message(text: String) -> String {
    bounded(text, MAX_MESSAGE, &['\n', '\t'])
}

/// A text in at most `max` bytes, without other control characters than those of `kept`. A long one loses its middle:
/// its begin says what failed, and its end, if it is the output of a program, says why.
fn bounded(text: String, max: usize, kept: &[char]) -> String {
    let is_fine = |c: char| !c.is_control() || kept.contains(&c);
    if text.len() <= max && text.chars().all(is_fine) {
        return text;
    }
    let clean: String = text.chars().map(|c| if is_fine(c) { c } else { ' ' }).collect();
    if clean.len() <= max {
        return clean;
    }
    let room = max - GAP.len();
    let head = clean.floor_char_boundary(room / 3);
    let tail = clean.ceil_char_boundary(clean.len() - (room - room / 3));
    format!("{}{GAP}{}", &clean[..head], &clean[tail..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_printable_and_bounded() {
        let long = format!("\u{9f}failed{}because", "€".repeat(3_000));
        for (text, kind, expected) in [
            ("text/plain", content_type as fn(String) -> String, "text/plain"),
            ("a\0b\n\tc\u{7f}", content_type, "a b  c "),
            ("a\0b\n\tc\u{1b}[0m", message, "a b\n\tc [0m"),
            ("", message, ""),
        ] {
            assert_eq!(kind(text.to_owned()), expected);
        }
        for (kind, max) in [(content_type as fn(String) -> String, MAX_CONTENT_TYPE), (message, MAX_MESSAGE)] {
            let cut = kind(long.clone());
            assert!((max - 6..=max).contains(&cut.len()), "{} of {max}", cut.len());
            assert!(cut.starts_with(" failed€") && cut.contains(GAP) && cut.ends_with("€because"), "{cut}");
        }
    }
}
