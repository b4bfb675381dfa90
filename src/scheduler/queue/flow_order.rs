//! The order of tenants with ready jobs, by their tags. The fair sharing that sets the tags is in
//! `src/scheduler/queue.rs`.

use std::collections::BTreeSet;

use super::super::entry::TenantId;

/// A tenant's place in the order: its tag, when it got the place, and its id.
pub(crate) type Position = (u64, u64, TenantId);

/// The tenants of a kind queue with a ready job, in order. The first is kept separately: every start reads it, and a
/// single tenant needs no search.
#[derive(Default)]
pub(crate) struct FlowOrder {
    first: Option<Position>,
    /// All behind the first.
    rest: BTreeSet<Position>,
}

impl FlowOrder {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub(crate) fn first(&self) -> Option<Position> {
        self.first
    }

    pub(crate) fn insert(&mut self, position: Position) {
        match self.first {
            Some(first) if first < position => {
                self.rest.insert(position);
            }
            displaced => {
                self.first = Some(position);
                self.rest.extend(displaced);
            }
        }
    }

    /// Returns whether it was present.
    pub(crate) fn remove(&mut self, position: Position) -> bool {
        if self.first == Some(position) {
            self.first = self.rest.pop_first();
            return true;
        }
        self.rest.remove(&position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_come_in_order_whichever_way_they_are_taken() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut order, mut all) = (FlowOrder::default(), BTreeSet::new());
        for place in 0..2_000 {
            if next(5) < 3 {
                let position = (next(20), place, TenantId(0));
                order.insert(position);
                all.insert(position);
            } else {
                let at = usize::try_from(next(9)).unwrap_or_default();
                let position = all.iter().nth(at).copied().unwrap_or((99, place, TenantId(0)));
                assert_eq!(order.remove(position), all.remove(&position));
            }
            assert_eq!((order.first(), order.len()), (all.first().copied(), all.len()));
            assert_eq!(order.is_empty(), all.is_empty());
        }
    }
}
