//! How long the message of a status may be.

/// Most bytes that a message may take on the wire. Message and details stay under 4 KiB together, for grpc's C core
/// answers longer trailers with RESOURCE_EXHAUSTED, which invites retries; the rest is for the other details.
const MOST: usize = 3_000;
/// Stands for what was left out.
const GAP: &str = " … ";

/// `text` without control characters, and without its middle where it is too long: it begins with what failed, and
/// what a program wrote ends with the reason.
pub(super) fn shorten(text: &str) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if clean.chars().map(cost).sum::<usize>() <= MOST {
        return clean;
    }
    let room = MOST - GAP.chars().map(cost).sum::<usize>();
    let head = fitting(clean.chars(), room / 3);
    let tail = fitting(clean.chars().rev(), room - room / 3);
    format!("{}{GAP}{}", &clean[..head], &clean[clean.len() - tail..])
}

/// Bytes of the characters that fit into `room`, one after the other.
fn fitting(characters: impl Iterator<Item = char>, room: usize) -> usize {
    let mut left = room;
    characters
        .map_while(|character| {
            left = left.checked_sub(cost(character))?;
            Some(character.len_utf8())
        })
        .sum()
}

/// Most bytes of a character on the wire, where a message goes twice: in `grpc-message`, which percent-encodes all
/// but letters, digits and some signs, and within the details, in base64.
fn cost(character: char) -> usize {
    let bytes = character.len_utf8();
    let encoded = if character.is_ascii_alphanumeric() { bytes } else { 3 * bytes };
    encoded + (4 * bytes).div_ceil(3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_message_stays_but_for_control_characters() {
        assert_eq!(shorten("cannot read\n\tit: \"ß\"\u{7}"), "cannot read  it: \"ß\" ");
        assert_eq!(shorten(""), "");
    }

    #[test]
    fn a_long_message_keeps_its_ends_and_fits() {
        for filler in ["x", " ", "%", "ß", "€", "🦀", "a €"] {
            let long = format!("/bin/p exited with code 1: {} no such bucket", filler.repeat(3_000));
            let short = shorten(&long);
            assert!(short.starts_with("/bin/p exited with code 1: ") && short.ends_with(" no such bucket"), "{short}");
            assert!(short.contains(GAP));
            let cost: usize = short.chars().map(cost).sum();
            assert!((MOST - 60..=MOST).contains(&cost), "{filler:?}: {cost}");
        }
    }
}
