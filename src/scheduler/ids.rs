//! Indices, each of its own type: none is taken for another.

/// A tenant that has jobs in the pool, or was given more worker time than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct TenantId(pub(super) usize);

/// An ordering key in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyQueueId(pub(super) usize);

/// A limit key of a kind that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct KeyLimiterId(pub(super) usize);
