use rustc_hash::FxHashMap;
use slab::Slab;

use super::{
    Host,
    entry::{Entry, LINE},
    list::List,
};

/// The ordering keys in use. A key's line exists while a job with that key is ready, runs or is blocked; all but one
/// are blocked.
#[derive(Default)]
pub(super) struct Lines {
    by_key: FxHashMap<Box<str>, usize>,
    lines: Slab<Line>,
}

struct Line {
    key: Box<str>,
    blocked: List,
    /// Expected seconds of its jobs, running ones too.
    work: f64,
    jobs: usize,
}

impl Lines {
    /// Whether a job with that key may start at once.
    pub(super) fn is_free(&self, key: &str) -> bool {
        key.is_empty() || !self.by_key.contains_key(key)
    }

    /// Expected seconds of the jobs with that key, which run one after the other.
    pub(super) fn work(&self, key: &str) -> f64 {
        self.by_key.get(key).map_or(0.0, |line| self.lines[*line].work)
    }

    /// Joins the line of `key`, making it where the job is the first. `None` for the empty key.
    pub(super) fn join(&mut self, key: &str, work: f64) -> Option<usize> {
        if key.is_empty() {
            return None;
        }
        let line = self.find_or_make(key);
        self.lines[line].jobs += 1;
        self.lines[line].work += work;
        Some(line)
    }

    /// A job is out of its line, wherever it stood.
    pub(super) fn quit(&mut self, line: usize, work: f64) {
        let line = &mut self.lines[line];
        line.jobs -= 1;
        // Rounding does not outlive the last job.
        line.work = if line.jobs == 0 { 0.0 } else { (line.work - work).max(0.0) };
    }

    /// A job of the line is expected to take so many seconds more.
    pub(super) fn revalue(&mut self, line: usize, more: f64) {
        let line = &mut self.lines[line];
        line.work = (line.work + more).max(0.0);
    }

    fn find_or_make(&mut self, key: &str) -> usize {
        if let Some(line) = self.by_key.get(key) {
            return *line;
        }
        let line = self.lines.insert(Line { key: key.into(), blocked: List::default(), work: 0.0, jobs: 0 });
        self.by_key.insert(key.into(), line);
        line
    }

    pub(super) fn block<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, line: usize, index: usize) {
        self.lines[line].blocked.push_back(entries, LINE, index);
    }

    pub(super) fn unblock<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, line: usize, index: usize) {
        self.lines[line].blocked.remove(entries, LINE, index);
    }

    /// The job at the head of the line is gone: returns the next one, which may start, or ends the line.
    pub(super) fn advance<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, line: usize) -> Option<usize> {
        let next = self.lines[line].blocked.pop_front(entries, LINE);
        if next.is_none() {
            let line = self.lines.remove(line);
            self.by_key.remove(&line.key);
        }
        next
    }

    #[cfg(test)]
    pub(super) fn blocked(&self) -> usize {
        self.lines.iter().map(|(_, line)| line.blocked.len()).sum()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.lines.len(), self.by_key.len());
        self.lines.len()
    }
}
