use super::Limits;

impl Limits {
    pub(in super::super) fn held(&self) -> usize {
        self.gates.iter().map(|(_, gate)| gate.held.len()).sum()
    }

    /// Checks that a key is kept for its jobs alone, which have these gates, or until its bucket is full; and that only
    /// keys that hold a job wait for anything.
    pub(in super::super) fn assert_bounded(&self, jobs: &[usize]) {
        let keys: usize = self.lanes.iter().map(|limited| limited.by_key.len()).sum();
        assert_eq!(keys, self.gates.len(), "each key has one gate");
        for (index, gate) in &self.gates {
            let jobs = jobs.iter().filter(|gate| **gate == index).count();
            assert_eq!(gate.jobs as usize, jobs, "jobs of a key");
            let idles = gate.used.bucket.full_at().is_some_and(|full_at| self.idle.contains(&(full_at, index)));
            assert_eq!(idles, jobs == 0, "a key without a job is remembered until its bucket is full");
            let wakes = gate.asleep.is_some_and(|at| self.asleep.contains(&(at, index)));
            assert!(
                !(wakes || self.stirred.contains(&index)) || !gate.held.is_empty(),
                "a key that holds no job waits for nothing"
            );
        }
        let is_gate = |gate: &usize| self.gates.contains(*gate);
        assert!(self.stirred.iter().all(is_gate) && self.idle.iter().all(|(_, gate)| is_gate(gate)), "no gate is gone");
        assert!(self.asleep.iter().all(|(at, gate)| self.gates[*gate].asleep == Some(*at)), "each sleeps once");
        assert_eq!(self.idle.len(), self.gates.iter().filter(|(_, gate)| gate.jobs == 0).count(), "each idles once");
    }

    /// Checks the limits against what runs: lane and gate of each job that holds a worker.
    pub(in super::super) fn assert_kept(&self, running: &[(usize, Option<usize>)]) {
        for (index, limited) in self.lanes.iter().enumerate() {
            let count = running.iter().filter(|(lane, _)| *lane == index + 1).count();
            assert_eq!(limited.used.running as usize, count, "running jobs of a kind");
            assert!(limited.used.has_place(limited.limits.all, 0), "a kind within its limit");
            assert!(limited.by_key.len() <= limited.limits.keys + 1, "keys within their cap");
        }
        for (index, gate) in &self.gates {
            let count = running.iter().filter(|(_, gate)| *gate == Some(index)).count();
            assert_eq!(gate.used.running as usize, count, "running jobs of a key");
            let limit = self.lanes[gate.lane - 1].limits.per_key;
            assert!(gate.used.has_place(limit, gate.ready), "a key within its limit");
        }
    }
}
