//! The pattern of an error: its message without what differs from job to job, so that jobs with the same error are
//! found together.

/// Longest pattern in bytes.
const MAX_PATTERN: usize = 200;
/// Longest quoted text that a pattern keeps, in characters.
const MAX_QUOTED: usize = 16;
/// Characters within ids, numbers, names and addresses, beside letters and digits.
const JOINS: [char; 5] = ['-', '.', ':', '@', '_'];

/// The pattern of a message. `#` stands for an id, a number or an address, and `…` for a long quoted text. A pattern is
/// its own pattern.
#[must_use]
pub fn pattern(message: &str) -> String {
    let mut text = without_details(message);
    loop {
        // What is cut or replaced may make other parts look like an id. Each round leaves fewer characters or digits.
        let next = without_details(&text);
        if next == text {
            return text;
        }
        text = next;
    }
}

fn without_details(message: &str) -> String {
    let (mut found, mut rest, mut last) = (String::new(), message, ' ');
    while let Some(first) = rest.chars().next()
        && found.len() < MAX_PATTERN
    {
        let (piece, shown) = piece(rest, first, last);
        last = piece.chars().next_back().unwrap_or(first);
        // One space stands for many.
        if shown != " " || !found.ends_with(' ') {
            found.push_str(&shown);
        }
        rest = &rest[piece.len()..];
    }
    found.truncate(found.floor_char_boundary(MAX_PATTERN));
    found.truncate(found.trim_end().len());
    found
}

/// The piece at the start of a text, and what stands for it. `last` is the character before it.
fn piece(rest: &str, first: char, last: char) -> (&str, String) {
    if first.is_whitespace() || first.is_control() {
        return (&rest[..first.len_utf8()], " ".to_owned());
    }
    if matches!(first, '"' | '\'' | '`')
        && !last.is_alphanumeric()
        && let Some(end) = rest[1..].find(first)
        && rest[1..=end].chars().nth(MAX_QUOTED).is_some()
    {
        return (&rest[..end + 2], format!("{first}…{first}"));
    }
    let is_of_run = |c: char| c.is_alphanumeric() || JOINS.contains(&c);
    let run = &rest[..rest.find(|c| !is_of_run(c)).unwrap_or(rest.len())];
    // A full stop or a colon at the end belongs to the sentence.
    let run = run.trim_end_matches(JOINS);
    if run.is_empty() {
        return (&rest[..first.len_utf8()], first.to_string());
    }
    (run, if is_detail(run) { "#".to_owned() } else { shortened(run) })
}

/// A run of letters, digits and [`JOINS`], in which `#` stands for the parts that are numbers or ids, and once for
/// several in a row.
fn shortened(run: &str) -> String {
    let mut shown = String::new();
    for part in run.split_inclusive(JOINS) {
        let word = part.trim_end_matches(JOINS);
        if is_detail(word) {
            let before = shown.trim_end_matches(JOINS);
            if before.ends_with('#') {
                shown.truncate(before.len())
            } else {
                shown.push('#')
            }
            shown.push_str(&part[word.len()..]);
        } else {
            shown.push_str(part);
        }
    }
    shown
}

/// Whether it is a number, an id or an address: a mail address, a word that begins with a digit, digits of base 16 as
/// in UUIDs and addresses, or a long word with several digits.
fn is_detail(word: &str) -> bool {
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let is_hex = word.bytes().all(|c| c.is_ascii_hexdigit() || matches!(c, b'-' | b'.' | b':'));
    let is_word = !word.contains(JOINS);
    word.trim_matches('@').contains('@')
        || digits > 0 && is_hex && (word.len() >= 8 || word.matches(':').count() > 1)
        || is_word && word.starts_with(|c: char| c.is_ascii_digit())
        || is_word && word.len() >= 12 && digits > 1
        || digits > 0 && !word.contains(char::is_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_no_ids_numbers_and_addresses() {
        let long = "x".repeat(300);
        for (message, expected) in [
            ("", ""),
            ("no such table", "no such table"),
            ("bank.internal answered 502 Bad Gateway", "bank.internal answered # Bad Gateway"),
            ("process 8356 of program pay answered UNAVAILABLE", "process # of program pay answered UNAVAILABLE"),
            ("order 550e8400-e29b-41d4-a716-446655440000 is gone.", "order # is gone."),
            ("commit 9fceb02d0ae598e95dc970b74767f19372d61af8: lost", "commit #: lost"),
            ("read 0x7ffdeadbeef0, then 8f14e45fceea", "read #, then #"),
            ("connect to 10.0.0.5:8080: refused", "connect to #: refused"),
            ("connect to [2001:db8::7]:443: refused", "connect to [#]#: refused"),
            ("connect to ::1: refused", "connect to #: refused"),
            ("db-3.internal:5432 does not answer", "db-#.internal:# does not answer"),
            ("mail to ann.b@example.org bounced", "mail to # bounced"),
            ("at 2026-11-28T01:02:03.123Z, after 1.5s and 30 ms", "at #, after # and # ms"),
            ("no key 'a'; no file \"/srv/data/of/some/tenant.png\"", "no key 'a'; no file \"…\""),
            ("can't open 'abc' or isn't allowed to", "can't open 'abc' or isn't allowed to"),
            ("req 01HF3ZKXQ2E9 of sha256 v2 deadline-exceeded", "req # of sha256 v2 deadline-exceeded"),
            ("two\n\n\tlines \u{0} of it ", "two lines of it"),
            ("größe 5 überschritten: naïve", "größe # überschritten: naïve"),
            (&long, &long[..200]),
        ] {
            assert_eq!(pattern(message), expected, "{message}");
        }
    }

    #[test]
    fn a_pattern_is_bounded_and_its_own_pattern() {
        let parts =
            ["a1", "b2.", "-", ":", "99", "'", "\"", " ", "deadbeef", "0x", "ü", "…", "#", "@", "é1f00", "_z9", "/"];
        for seed in 0..20_000_u64 {
            let mut state = seed;
            let mut message = String::new();
            while message.len() < 20 + seed as usize % 400 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                message.push_str(parts[(state >> 33) as usize % parts.len()]);
            }
            let found = pattern(&message);
            assert!(found.len() <= MAX_PATTERN && !found.contains(char::is_control), "{message}: {found}");
            assert_eq!(pattern(&found), found, "{message}");
        }
    }
}
