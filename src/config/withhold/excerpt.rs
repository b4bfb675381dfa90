//! A text without what is cut out of it, and where its places are then.

use std::ops::Range;

use crate::model::WITHHELD;

/// A text as it may be shown. Its lines have the numbers of the source.
pub(in super::super) struct Shown<'t> {
    source: &'t str,
    /// How much of the source is shown or cut.
    end: usize,
    text: String,
    cuts: Vec<Cut>,
    /// Where the lines of `text` begin.
    lines: Vec<usize>,
}

/// What is cut, and what stands in its place.
struct Cut {
    source: Range<usize>,
    at: usize,
    /// Length of the words in its place, after which the ends of its lines follow.
    words: usize,
    length: usize,
    /// Whether nothing can be pointed at in there.
    is_hidden: bool,
}

/// The lines of a text that some places are in.
pub(in super::super) struct Excerpt<'s> {
    /// Number of the first line, from 1.
    pub(in super::super) line: usize,
    pub(in super::super) text: &'s str,
    /// Where the places are in it.
    pub(in super::super) places: Vec<Range<usize>>,
}

impl<'t> Shown<'t> {
    pub(super) fn of(source: &'t str) -> Self {
        Self { source, end: 0, text: String::with_capacity(source.len()), cuts: Vec::new(), lines: Vec::new() }
    }

    /// Puts words in place of what is behind the last cut.
    pub(super) fn cut(&mut self, source: Range<usize>, words: &str) {
        self.push(source, words, false);
    }

    /// Leaves out lines behind the last cut.
    pub(super) fn hide(&mut self, lines: Range<usize>) {
        self.push(lines, "", true);
    }

    fn push(&mut self, source: Range<usize>, words: &str, is_hidden: bool) {
        if source.is_empty() && !is_hidden {
            return;
        }
        self.text.push_str(&self.source[self.end..source.start]);
        let at = self.text.len();
        self.text.push_str(words);
        // What follows keeps its number.
        let lines = self.source[source.clone()].matches('\n');
        lines.for_each(|line| self.text.push_str(line));
        self.end = source.end;
        self.cuts.push(Cut { source, at, words: words.len(), length: self.text.len() - at, is_hidden });
    }

    /// Takes the rest of the source as it is.
    pub(super) fn whole(mut self) -> Self {
        self.text.push_str(&self.source[self.end..]);
        self.end = self.source.len();
        self.lines = std::iter::once(0).chain(self.text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        self
    }

    /// The lines that ranges of the source are in; none where one is in a line that is left out.
    pub(in super::super) fn excerpt<'r>(&self, ranges: impl Iterator<Item = &'r Range<usize>>) -> Option<Excerpt<'_>> {
        let places: Option<Vec<_>> = ranges.map(|range| self.range(range)).collect();
        let mut places = places?;
        let first = places.iter().map(|place| place.start).min()?;
        let last = places.iter().map(|place| place.end).max()?;
        let line = self.lines.partition_point(|start| *start <= first) - 1;
        let start = self.lines[line];
        let end = self.lines.get(self.lines.partition_point(|start| *start <= last));
        for place in &mut places {
            *place = place.start - start..place.end - start;
        }
        let text = &self.text[start..end.copied().unwrap_or(self.text.len())];
        #[cfg(test)]
        super::EXCERPTED.set(super::EXCERPTED.get() + text.len());
        Some(Excerpt { line: line + 1, text, places })
    }

    /// Where a range of the source is in what is shown of it.
    fn range(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let (start, _) = self.place(range.start)?;
        let (first, last) = self.place(range.end)?;
        // Behind what is cut the range ends with the words in its place.
        Some(start..if range.is_empty() { first } else { last.max(start) })
    }

    /// The first and the last place that may stand for one of the source.
    fn place(&self, place: usize) -> Option<(usize, usize)> {
        let hidden = self.cuts.partition_point(|cut| cut.source.start <= place);
        let hidden = self.cuts[..hidden].last().filter(|cut| cut.is_hidden);
        if hidden.is_some_and(|cut| place < cut.source.end || cut.source.end == self.source.len()) {
            return None;
        }
        let before = self.cuts.partition_point(|cut| cut.source.start < place);
        let Some(cut) = self.cuts[..before].last() else { return Some((place, place)) };
        if place < cut.source.end {
            return Some((cut.at, cut.at + cut.words));
        }
        // The end of a value over several lines is the end of the words in its place.
        if place == cut.source.end && cut.words == WITHHELD.len() {
            return Some((cut.at + cut.words, cut.at + cut.words));
        }
        let place = place - cut.source.end + cut.at + cut.length;
        Some((place, place))
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;

    #[test]
    fn lines_keep_their_numbers_and_places_their_words() {
        let source = "a = 1\nb = \"\"\"x\ny\"\"\" # c\nd = 2 # e\nf";
        let mut shown = Shown::of(source);
        for (cut, words) in [("\"\"\"x\ny\"\"\"", WITHHELD), ("# c", ""), ("# e", "")] {
            let at = source.find(cut).unwrap();
            shown.cut(at..at + cut.len(), words);
        }
        let shown = shown.whole();
        assert_eq!(shown.text, "a = 1\nb = (withheld)\n \nd = 2 \nf");
        let at = source.find("\"\"\"x").unwrap();
        let excerpt = shown.excerpt([at..at + 9, 0..1].iter()).unwrap();
        assert_eq!((excerpt.line, excerpt.text), (1, "a = 1\nb = (withheld)\n"));
        assert_eq!(excerpt.places, [10..20, 0..1]);
        let at = source.find("2 #").unwrap();
        let excerpt = shown.excerpt(once(&(at..at + 1))).unwrap();
        assert_eq!((excerpt.line, excerpt.text, excerpt.places[0].clone()), (4, "d = 2 \n", 4..5));
    }

    #[test]
    fn nothing_points_into_lines_that_are_left_out() {
        let source = "a\nb\nc\nd";
        let mut shown = Shown::of(source);
        shown.hide(2..4);
        shown.hide(6..7);
        let shown = shown.whole();
        assert_eq!(shown.text, "a\n\nc\n");
        for (place, line) in [(0, Some(1)), (2, None), (3, None), (4, Some(3)), (6, None), (7, None)] {
            assert_eq!(shown.excerpt(once(&(place..place))).map(|excerpt| excerpt.line), line, "{place}");
        }
    }
}
