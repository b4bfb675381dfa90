//! Servers that share a store divide the limits of calls. A job that the store lets a server take is counted there for
//! the whole limit, so it must not wait for a part.

use std::iter;

use super::{Limits, Used};
use crate::{
    model::Share,
    scheduler::{
        Host,
        entry::{Entry, EntryStage},
    },
};

impl Limits {
    /// Counts an accepted job.
    pub(in super::super) fn count<H: Host>(&mut self, entry: &Entry<H>) {
        self.uses_of_stored(entry).for_each(|used| used.stored += 1);
        self.uses_of_stored(entry).for_each(|used| used.given += 1);
    }

    /// A counted job is over.
    pub(super) fn uncount<H: Host>(&mut self, entry: &Entry<H>) {
        self.uses_of_stored(entry).for_each(|used| used.stored -= 1);
        if !matches!(entry.stage, EntryStage::Running { .. }) {
            self.uses_of_stored(entry).for_each(|used| used.given = used.given.saturating_sub(1));
        }
    }

    /// The uses of the limits of which this server has a part, and a stored job needs none.
    fn uses_of_stored<H: Host>(&mut self, entry: &Entry<H>) -> impl Iterator<Item = &mut Used> {
        let limited = &mut self.kind_limiters[entry.kind_queue.0];
        let needs_none = entry.is_stored && limited.whole.share == Share::Divide;
        let of_key = entry.key_limiter.map(|key_limiter| &mut self.key_limiters[key_limiter.0].used);
        iter::once(&mut limited.used).chain(of_key).filter(move |_| needs_none)
    }
}

#[cfg(any(test, feature = "server"))]
mod divide {
    use std::num::NonZeroU32;

    use tokio::time::Instant;

    use super::Limits;
    use crate::scheduler::{Core, Effect, Host, entry::KeyLimiterId};

    impl<H: Host> Core<H> {
        /// The number of servers that divide the limits; one while others are not known.
        pub(crate) fn servers(&self) -> NonZeroU32 {
            self.limits.servers.unwrap_or(NonZeroU32::MIN)
        }

        /// So many servers divide the limits that are to be divided.
        pub(crate) fn divide_limits(&mut self, now: Instant, servers: NonZeroU32, effects: &mut Vec<Effect<H>>) {
            if self.limits.divide(servers) {
                self.dispatch(now, effects);
            }
        }
    }

    impl Limits {
        /// Returns whether the number has changed.
        fn divide(&mut self, servers: NonZeroU32) -> bool {
            if self.servers.replace(servers) == Some(servers) {
                return false;
            }
            for limited in &mut self.kind_limiters {
                limited.limits = limited.whole.part_of(servers);
            }
            // Their next jobs may pass, or get their tokens at other times.
            let all: Vec<_> = self.key_limiters.iter().map(|(index, _)| KeyLimiterId(index)).collect();
            all.into_iter().for_each(|key_limiter| self.mark_changed(key_limiter));
            true
        }
    }
}
