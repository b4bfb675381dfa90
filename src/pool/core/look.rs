//! Which callers are asked whether there is room for them by now.
//!
//! Callers may be tens of thousands, of thousands of tenants, and whatever changes may let any of them in. Asking all of
//! them under the lock would take too long, so that a look asks a few, and those first who came first. A caller that may
//! not be queued hides at most others of its own tenant: tenants that are too many for one look are asked in turn.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    ops::Bound::{Excluded, Included, Unbounded},
};

/// Callers of a class that are asked in vain in one look.
pub(super) const LOOKED_AT: usize = 32;
/// Tenants that a look asks: half of them are those whose first callers have been there for the longest time, the others
/// follow in turn.
pub(super) const TENANTS: usize = 16;

/// The first callers of the tenants that wait in a class, in order of arrival: number of arrival, and index.
#[derive(Default)]
pub(super) struct Fronts {
    firsts: BTreeSet<(u64, usize)>,
    /// The last one that was asked in its turn.
    asked: (u64, usize),
}

/// Callers to be asked, in order of arrival.
pub(super) struct Look {
    turns: BinaryHeap<Reverse<Turn>>,
    /// The last one that is asked in its turn, where not all are asked.
    last: Option<(u64, usize)>,
}

/// A caller to be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    arrival: u64,
    pub(super) index: usize,
    /// How many of its tenant may be asked in vain, itself included.
    tries: usize,
}

impl Fronts {
    pub(super) fn insert(&mut self, arrival: u64, index: usize) {
        self.firsts.insert((arrival, index));
    }

    pub(super) fn remove(&mut self, arrival: u64, index: usize) {
        self.firsts.remove(&(arrival, index));
    }

    /// As many as one look asks of callers.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.firsts.iter().take(LOOKED_AT).map(|(_, index)| *index)
    }

    pub(super) fn look(&self) -> Look {
        let tries = LOOKED_AT / self.firsts.len().clamp(1, TENANTS);
        let oldest = self.firsts.iter().take(TENANTS / 2);
        // Counted from the front: the end of `oldest` would be looked for from the back, through all of them.
        let last = self.firsts.len().min(TENANTS / 2).checked_sub(1).and_then(|at| self.firsts.iter().nth(at));
        let Some(last) = last else { return Look { turns: BinaryHeap::new(), last: None } };
        // Whoever came or went meanwhile, those behind the last one that was asked go on, and then those before it.
        let asked = self.asked.max(*last);
        let behind = self.firsts.range((Excluded(asked), Unbounded));
        let before = self.firsts.range((Excluded(*last), Included(asked)));
        let in_turn = behind.chain(before).take(TENANTS / 2);
        let last = in_turn.clone().last().copied();
        let turns =
            oldest.chain(in_turn).map(|(arrival, index)| Reverse(Turn { arrival: *arrival, index: *index, tries }));
        Look { turns: turns.collect(), last }
    }

    /// All whom a look asked stay where they are: the next one asks others.
    pub(super) fn pass(&mut self, look: &Look) {
        self.asked = look.last.unwrap_or_default();
    }

    #[cfg(test)]
    pub(super) fn all(&self) -> Vec<(u64, usize)> {
        self.firsts.iter().copied().collect()
    }
}

impl Look {
    /// The next caller to ask.
    pub(super) fn next(&mut self) -> Option<Turn> {
        self.turns.pop().map(|Reverse(turn)| turn)
    }

    /// `asked` has left its line, or stays there; the `next` one of its tenant may be asked, too.
    pub(super) fn go_on(&mut self, asked: Turn, left: bool, next: Option<(u64, usize)>) {
        let tries = if left { asked.tries } else { asked.tries - 1 };
        if let Some((arrival, index)) = next.filter(|_| tries > 0) {
            self.turns.push(Reverse(Turn { arrival, index, tries }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fronts(tenants: u64) -> Fronts {
        let mut fronts = Fronts::default();
        (0..tenants).for_each(|arrival| fronts.insert(arrival, 0));
        fronts
    }

    fn arrivals(mut look: Look) -> Vec<u64> {
        std::iter::from_fn(|| look.next()).map(|turn| turn.arrival).collect()
    }

    #[test]
    fn all_of_few_tenants_are_asked_each_time() {
        for tenants in 0..=TENANTS as u64 {
            let mut fronts = fronts(tenants);
            for _ in 0..3 {
                let look = fronts.look();
                fronts.pass(&look);
                assert_eq!(arrivals(look), (0..tenants).collect::<Vec<_>>(), "of {tenants}");
            }
        }
    }

    #[test]
    fn of_many_tenants_the_first_are_asked_each_time_and_the_others_in_turn() {
        let mut fronts = fronts(27);
        let mut look = || {
            let look = fronts.look();
            fronts.pass(&look);
            arrivals(look)
        };
        let with_oldest = |others: [u64; 8]| -> Vec<u64> { (0..8).chain(others).collect() };
        assert_eq!(look(), with_oldest([8, 9, 10, 11, 12, 13, 14, 15]));
        assert_eq!(look(), with_oldest([16, 17, 18, 19, 20, 21, 22, 23]));
        assert_eq!(look(), with_oldest([8, 9, 10, 11, 12, 24, 25, 26]));
        assert_eq!(look(), with_oldest([13, 14, 15, 16, 17, 18, 19, 20]));
    }

    #[test]
    fn no_look_asks_more_in_vain_than_it_may() {
        for (tenants, most) in [(1, 32), (2, 32), (5, 30), (16, 32), (1000, 32)] {
            let mut look = fronts(tenants).look();
            let mut asked = 0;
            while let Some(turn) = look.next() {
                asked += 1;
                look.go_on(turn, false, Some((turn.arrival, turn.index)));
            }
            assert_eq!(asked, most, "of {tenants} tenants");
        }
    }
}
