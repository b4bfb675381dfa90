use rustc_hash::FxHashMap;
use slab::Slab;

use super::{
    Host,
    backlogs::Backlogs,
    entry::{Entry, LINE, Place},
    list::List,
};
use crate::model::Criticality;

/// The ordering keys in use. A key's line exists while a job with that key is ready, runs or is blocked; all but one
/// are blocked.
#[derive(Default)]
pub(super) struct Lines {
    by_key: FxHashMap<Box<str>, usize>,
    lines: Slab<Line>,
    /// Blocked jobs of all lines.
    blocked: usize,
    /// By class: of each line, the work of its blocked jobs of that class and of those above it.
    backlogs: [Backlogs; 4],
}

struct Line {
    key: Box<str>,
    blocked: List,
    /// Blocked jobs and their expected seconds, by class.
    behind: [(usize, f64); 4],
    /// Expected seconds of its jobs, running ones too.
    work: f64,
    jobs: usize,
}

impl Lines {
    /// Whether a job with that key may start at once.
    pub(super) fn is_free(&self, key: &str) -> bool {
        key.is_empty() || !self.by_key.contains_key(key)
    }

    /// Expected seconds of the jobs with that key, which run one after the other. `None` where there is none.
    pub(super) fn work(&self, key: &str) -> Option<f64> {
        if key.is_empty() {
            return None;
        }
        self.by_key.get(key).map(|line| self.lines[*line].work)
    }

    /// Of each line, what is blocked of `class` and of those above it; `None` where no job is blocked at all.
    pub(super) fn backlogs(&self, class: Criticality) -> Option<&Backlogs> {
        (self.blocked > 0).then(|| &self.backlogs[class.rank()])
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
    pub(super) fn revalue<H: Host>(&mut self, line: usize, entry: &Entry<H>, more: f64) {
        let work = &mut self.lines[line].work;
        *work = (*work + more).max(0.0);
        if entry.place == Place::Blocked {
            self.change(line, entry.class, |(jobs, work)| (jobs, (work + more).max(f64::MIN_POSITIVE)));
        }
    }

    fn find_or_make(&mut self, key: &str) -> usize {
        if let Some(line) = self.by_key.get(key) {
            return *line;
        }
        let line = self.lines.insert(Line {
            key: key.into(),
            blocked: List::default(),
            behind: [(0, 0.0); 4],
            work: 0.0,
            jobs: 0,
        });
        self.by_key.insert(key.into(), line);
        line
    }

    pub(super) fn block<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, line: usize, index: usize) {
        self.lines[line].blocked.push_back(entries, LINE, index);
        self.blocked += 1;
        let Entry { class, work, .. } = entries[index];
        self.change(line, class, |(jobs, before)| (jobs + 1, before + work));
    }

    pub(super) fn unblock<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, line: usize, index: usize) {
        self.lines[line].blocked.remove(entries, LINE, index);
        self.let_go(line, &entries[index]);
    }

    fn let_go<H: Host>(&mut self, line: usize, entry: &Entry<H>) {
        self.blocked -= 1;
        let work = entry.work;
        // Rounding does not outlive the last one.
        let less =
            |(jobs, before)| (jobs - 1, if jobs == 1 { 0.0 } else { f64::max(before - work, f64::MIN_POSITIVE) });
        self.change(line, entry.class, less);
    }

    /// What is blocked of one class in a line changed.
    fn change(&mut self, line: usize, class: Criticality, to: impl FnOnce((usize, f64)) -> (usize, f64)) {
        let behind = &mut self.lines[line].behind;
        let before = *behind;
        behind[class.rank()] = to(behind[class.rank()]);
        let of = |behind: &[(usize, f64); 4], rank: usize| behind[..=rank].iter().map(|(_, work)| work).sum();
        for (rank, backlogs) in self.backlogs.iter_mut().enumerate().skip(class.rank()) {
            backlogs.change(of(&before, rank), of(behind, rank));
        }
    }

    /// The job at the head of the line is gone: returns the next one, which may start, or ends the line.
    pub(super) fn advance<H: Host>(&mut self, entries: &mut Slab<Entry<H>>, line: usize) -> Option<usize> {
        let next = self.lines[line].blocked.pop_front(entries, LINE);
        match next {
            Some(next) => self.let_go(line, &entries[next]),
            None => {
                let line = self.lines.remove(line);
                self.by_key.remove(&line.key);
            }
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
        let with_jobs = self.lines.iter().filter(|(_, line)| !line.blocked.is_empty()).count();
        assert!(self.backlogs.iter().all(|backlogs| backlogs.tenants() <= with_jobs), "no backlog without a job");
        self.lines.len()
    }
}
