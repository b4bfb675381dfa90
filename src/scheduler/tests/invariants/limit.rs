use super::{
    super::entry::{KeyLimiterId, KindQueueId},
    Limits,
};

impl Limits {
    pub(in super::super) fn throttled(&self) -> usize {
        self.key_limiters.iter().map(|(_, key_limiter)| key_limiter.throttled.len()).sum()
    }

    /// Checks that a key is kept only for its jobs, or until its bucket is full. Only keys with a job have a wake-up
    /// time.
    pub(in super::super) fn assert_bounded(&self, jobs: &[KeyLimiterId]) {
        let keys: usize = self.kind_limiters.iter().map(|limited| limited.by_key.len()).sum();
        assert_eq!(keys, self.key_limiters.len(), "each key has one key limiter");
        for (index, key_limiter) in &self.key_limiters {
            let index = KeyLimiterId(index);
            let jobs = jobs.iter().filter(|key_limiter| **key_limiter == index).count();
            assert_eq!(key_limiter.jobs as usize, jobs, "jobs of a key");
            let idles = key_limiter.used.idle_at().is_some_and(|idle_at| self.idle.contains(&(idle_at, index)));
            assert_eq!(idles, jobs == 0, "a key without a job is remembered until its bucket is full");
            let wakes = key_limiter.waiting_for_token.is_some_and(|at| self.waiting_for_token.contains(&(at, index)));
            assert!(
                !(wakes || self.changed.contains(&index)) || !key_limiter.throttled.is_empty(),
                "a key without a throttled job has no wake-up time"
            );
        }
        let is_limiter = |key_limiter: &KeyLimiterId| self.key_limiters.contains(key_limiter.0);
        assert!(
            self.changed.iter().all(is_limiter) && self.idle.iter().all(|(_, key_limiter)| is_limiter(key_limiter)),
            "all key limiters exist"
        );
        assert!(
            self.waiting_for_token
                .iter()
                .all(|(at, key_limiter)| self.key_limiters[key_limiter.0].waiting_for_token == Some(*at)),
            "each wake-up time is current"
        );
        assert_eq!(
            self.idle.len(),
            self.key_limiters.iter().filter(|(_, key_limiter)| key_limiter.jobs == 0).count(),
            "each idle key limiter is listed once"
        );
    }

    /// Checks the limits against the running jobs, given by kind queue and key limiter.
    pub(in super::super) fn assert_kept(&self, running: &[(KindQueueId, Option<KeyLimiterId>)]) {
        for (index, limited) in self.kind_limiters.iter().enumerate() {
            let count = running.iter().filter(|(kind_queue, _)| kind_queue.0 == index).count();
            assert_eq!(limited.used.running as usize, count, "running jobs of a kind");
            assert!(limited.used.has_place(limited.whole.all, 0), "a kind within its limit");
            assert!(limited.by_key.len() <= limited.limits.keys + 1, "keys within their cap");
        }
        for (index, key_limiter) in &self.key_limiters {
            let index = KeyLimiterId(index);
            let count = running.iter().filter(|(_, key_limiter)| *key_limiter == Some(index)).count();
            assert_eq!(key_limiter.used.running as usize, count, "running jobs of a key");
            let limit = self.kind_limiters[key_limiter.kind_queue.0].whole.per_key;
            assert!(key_limiter.used.has_place(limit, key_limiter.ready), "a key within its limit");
        }
    }
}
