use super::{
    Job, Naive,
    law::{by_power, up_to},
};

impl Job {
    /// Whether no other job of its ordering key is before it.
    pub(super) fn is_free(&self) -> bool {
        self.ready.is_some() || self.at_gate.is_some()
    }
}

impl Naive {
    /// The queue changed. A job is ready from the moment when no job that was accepted before it has its key.
    pub(super) fn refresh(&mut self) {
        if self.queued.len() * 5 <= self.caps.jobs {
            self.saturated = false;
        } else if self.queued.len() as f64 >= 0.8 * self.caps.jobs as f64 {
            self.saturated = true;
        }
        for at in 0..self.queued.len() {
            let key = self.queued[at].offer.key;
            let earlier = self.queued[..at].iter().any(|job| job.offer.key == key);
            let behind = key != 0 && (earlier || self.running.iter().any(|run| run.job.offer.key == key));
            let offer = self.queued[at].offer;
            if behind || self.queued[at].is_free() {
                continue;
            }
            if self.limits[offer.kind].per_key.is_set() {
                self.queued[at].at_gate = Some(self.stamps);
                self.stamps += 1;
            } else {
                self.make_ready(at);
            }
        }
    }

    /// What the jobs of its own tenant count before an arrival: those that stand behind their keys pass it only where it
    /// will stand behind its own.
    pub(super) fn before_own(&self, lane: usize, of: u8, rank: usize, key: u8) -> f64 {
        if self.key_is_free(key) { self.free_backlog(lane, of, rank) } else { self.backlog(lane, of, rank) }
    }

    fn free_backlog(&self, lane: usize, of: u8, rank: usize) -> f64 {
        let jobs = self.queued.iter().filter(|job| job.is_free() && job.offer.tenant == of);
        let jobs = jobs.filter(|job| job.offer.class.rank() == rank && self.lane(job.offer.kind) == lane);
        jobs.map(|job| if lane == 0 { job.work } else { 1.0 }).sum()
    }

    /// As `ahead`, without what stands behind keys. The tenants of whom something does are taken apart.
    pub(super) fn free_ahead(&self, lane: usize, rank: usize, own: f64) -> f64 {
        let of_class = |rank: usize| [0, 1, 2, 3].map(|of| self.free_backlog(lane, of, rank));
        let above: f64 = (0..rank).flat_map(of_class).sum();
        let is_mixed = |of: &u8| {
            let blocked = self.queued.iter().filter(|job| !job.is_free() && job.offer.tenant == *of);
            blocked.filter(|job| job.offer.class.rank() == rank).any(|job| self.lane(job.offer.kind) == lane)
        };
        let mixed: Vec<u8> = (0..4).filter(is_mixed).collect();
        let all = |tenants: &[u8]| -> f64 {
            up_to(&tenants.iter().map(|of| self.backlog(lane, *of, rank)).collect::<Vec<_>>(), own)
        };
        let free: Vec<f64> = mixed.iter().map(|of| self.free_backlog(lane, *of, rank)).collect();
        above + all(&[0, 1, 2, 3]) - all(&mixed) + up_to(&free, own)
    }

    /// By key, the work of a class and of those above it that stands behind others of its key.
    pub(super) fn line_backlogs(&self, rank: usize) -> [f64; 3] {
        [1, 2, 3].map(|key| {
            let blocked = self.queued.iter().filter(|job| !job.is_free() && job.offer.key == key);
            blocked.filter(|job| job.offer.class.rank() <= rank).map(|job| job.work).sum()
        })
    }

    /// Seconds until a job starts, counted by the lines of ordering keys: none of them gets more than one worker until
    /// then, of the share `left` of whose time the result tells.
    pub(super) fn beside_lines(&self, rank: usize, own: f64, workers: f64, left: f64) -> f64 {
        let lines = self.line_backlogs(rank);
        if self.queued.iter().all(Job::is_free) {
            return f64::INFINITY;
        }
        let open = self.free_ahead(0, rank, own);
        let limited = self.limited_by(own, |lane, own| self.free_ahead(lane, rank, own));
        // Of each set of lines, that all of its jobs are through by then and the others get a worker each is a bound from
        // above. One of them is exact.
        let groups: Vec<(f64, f64)> = by_power(&lines).collect();
        let through = |work: f64| {
            let bound = |set: usize| {
                let (through, busy): (Vec<_>, Vec<_>) = (0..groups.len()).partition(|at| set & (1 << at) > 0);
                let work = work + through.iter().map(|at| groups[*at].1).sum::<f64>();
                let spare = workers - busy.iter().map(|at| groups[*at].0).sum::<f64>() / left;
                if spare > 0.0 { work / spare } else { f64::INFINITY }
            };
            (0..1 << groups.len()).map(bound).fold(f64::INFINITY, f64::min)
        };
        let all: f64 = limited.iter().map(|(work, _)| work).sum();
        let until = |wait: f64| limited.iter().map(|(work, pace)| work.min(pace * wait)).sum::<f64>();
        (0..7).fold(through(open + all), |wait, _| through(open + until(wait)))
    }
}
