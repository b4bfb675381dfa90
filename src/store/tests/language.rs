//! Words of a line: `name=value` pairs beside plain words.

/// The words of a line.
#[derive(Debug)]
pub(super) struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    pub(super) fn of(text: &'a str, separator: char) -> Self {
        Self(text.split(separator).filter(|word| !word.is_empty()).collect())
    }

    /// The words that are no pairs.
    pub(super) fn plain(&self) -> Vec<String> {
        self.0.iter().filter(|word| !word.contains('=')).map(|word| (*word).to_owned()).collect()
    }

    /// Words that are jobs, whatever they contain.
    pub(super) fn rest(&self, from: usize) -> impl Iterator<Item = &'a str> {
        self.0[from..].iter().copied()
    }

    pub(super) fn find(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find_map(|word| word.split_once('=').filter(|(found, _)| *found == name)).map(|(_, value)| value)
    }

    pub(super) fn text(&self, name: &str, default: &'a str) -> &'a str {
        self.find(name).unwrap_or(default)
    }

    pub(super) fn number(&self, name: &str, default: u64) -> u64 {
        self.find(name).map_or(default, |text| text.parse().expect("a number"))
    }
}
