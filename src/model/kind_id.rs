//! The number of a kind. Each shard, the scheduler and the figures keep their state of a kind under it.

/// Number of a kind in its pool. A kind that replaces another one has a new number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindId(pub(crate) usize);
