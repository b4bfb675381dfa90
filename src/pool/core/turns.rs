use std::collections::BTreeSet;

/// A tenant's place in the order: its tag, when it got the place, and which it is.
pub(super) type Turn = (u64, u64, usize);

/// The tenants of a lane with a ready job, in order. The first is kept at hand: it is looked at with every start, and
/// where there is but one, its turns come and go without a search.
#[derive(Default)]
pub(super) struct Turns {
    first: Option<Turn>,
    /// All behind it.
    rest: BTreeSet<Turn>,
}

impl Turns {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    pub(super) fn first(&self) -> Option<Turn> {
        self.first
    }

    pub(super) fn insert(&mut self, turn: Turn) {
        match self.first {
            Some(first) if first < turn => {
                self.rest.insert(turn);
            }
            displaced => {
                self.first = Some(turn);
                self.rest.extend(displaced);
            }
        }
    }

    /// Returns whether it was there.
    pub(super) fn remove(&mut self, turn: Turn) -> bool {
        if self.first == Some(turn) {
            self.first = self.rest.pop_first();
            return true;
        }
        self.rest.remove(&turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_in_order_whichever_way_they_are_taken() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let (mut turns, mut all) = (Turns::default(), BTreeSet::new());
        for place in 0..2_000 {
            if next(5) < 3 {
                let turn = (next(20), place, 0);
                turns.insert(turn);
                all.insert(turn);
            } else {
                let at = usize::try_from(next(9)).unwrap_or_default();
                let turn = all.iter().nth(at).copied().unwrap_or((99, place, 0));
                assert_eq!(turns.remove(turn), all.remove(&turn));
            }
            assert_eq!((turns.first(), turns.len()), (all.first().copied(), all.len()));
            assert_eq!(turns.is_empty(), all.is_empty());
        }
    }
}
