//! Linked lists of entries, through links that the entries hold.

use slab::Slab;

/// The links of an entry, one pair for each kind of list.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Links([Neighbours; 3]);

#[derive(Debug, Clone, Copy, Default)]
struct Neighbours {
    previous: Option<u32>,
    next: Option<u32>,
}

/// Kind of list. An entry is in at most one list of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    /// A queue: a tenant's callers or ready jobs, the blocked jobs of an ordering key, or the throttled ones of a limit
    /// key.
    Line,
    /// The queued jobs of a class, or its waiting callers.
    Class,
    /// All queued jobs by acceptance.
    Age,
}

/// A doubly linked list through a slab: push, pop and removal from the middle in constant time, without allocation.
#[derive(Debug, Default)]
pub(crate) struct List {
    head: Option<u32>,
    tail: Option<u32>,
    len: usize,
}

impl Links {
    fn of(&mut self, link: Link) -> &mut Neighbours {
        &mut self.0[link as usize]
    }

    fn next(self, link: Link) -> Option<usize> {
        self.0[link as usize].next.map(|index| index as usize)
    }
}

impl List {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn head(&self) -> Option<usize> {
        self.head.map(|index| index as usize)
    }

    pub(crate) fn tail(&self) -> Option<usize> {
        self.tail.map(|index| index as usize)
    }

    pub(crate) fn push_back<T: AsMut<Links>>(&mut self, entries: &mut Slab<T>, link: Link, index: usize) {
        let index = u32::try_from(index).expect("the caps keep the number of entries within u32");
        *entries[index as usize].as_mut().of(link) = Neighbours { previous: self.tail, next: None };
        match self.tail {
            Some(tail) => entries[tail as usize].as_mut().of(link).next = Some(index),
            None => self.head = Some(index),
        }
        self.tail = Some(index);
        self.len += 1;
    }

    pub(crate) fn pop_front<T: AsMut<Links>>(&mut self, entries: &mut Slab<T>, link: Link) -> Option<usize> {
        let head = self.head()?;
        self.remove(entries, link, head);
        Some(head)
    }

    /// Removes `index`, which must be in this list.
    pub(crate) fn remove<T: AsMut<Links>>(&mut self, entries: &mut Slab<T>, link: Link, index: usize) {
        let gone = std::mem::take(entries[index].as_mut().of(link));
        match gone.previous {
            Some(previous) => entries[previous as usize].as_mut().of(link).next = gone.next,
            None => self.head = gone.next,
        }
        match gone.next {
            Some(next) => entries[next as usize].as_mut().of(link).previous = gone.previous,
            None => self.tail = gone.previous,
        }
        self.len -= 1;
    }

    /// The entry behind `index` in its list.
    pub(crate) fn next<T: AsRef<Links>>(entries: &Slab<T>, link: Link, index: usize) -> Option<usize> {
        entries[index].as_ref().next(link)
    }

    /// The indexes from the front.
    pub(crate) fn iter<T: AsRef<Links>>(&self, entries: &Slab<T>, link: Link) -> impl Iterator<Item = usize> {
        std::iter::successors(self.head(), move |index| entries[*index].as_ref().next(link))
    }
}
