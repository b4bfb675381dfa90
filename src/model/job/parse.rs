//! Parsing of job ids.

use std::str::FromStr;

use super::JobId;

/// The text is not a job id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a job id")]
pub struct InvalidJobId;

impl FromStr for JobId {
    type Err = InvalidJobId;

    /// Parses an id in the form in which it is displayed.
    fn from_str(text: &str) -> Result<Self, InvalidJobId> {
        let (process, sequence) = text.split_once('-').ok_or(InvalidJobId)?;
        let number = |digits: &str| u64::from_str_radix(digits, 16).map_err(|_| InvalidJobId);
        let id = Self { process: number(process)?, sequence: number(sequence)? };
        // Another spelling of the same numbers is not an id.
        if id.to_string() == text { Ok(id) } else { Err(InvalidJobId) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_they_are_shown() {
        for (process, sequence) in [(0, 0), (1, 0xf), (u64::MAX, 0x10), (0xabc0_1234_5678_9def, u64::MAX)] {
            let id = JobId { process, sequence };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
        for text in ["", "-", "1-1", "0000000000000001-", "0000000000000001-01", "0000000000000001-+1", "g-1", "1"] {
            assert_eq!(text.parse::<JobId>(), Err(InvalidJobId), "{text:?}");
        }
    }
}
