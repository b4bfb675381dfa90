//! Indices, each of its own type: none is taken for another.

/// A tenant that has jobs in the pool, or was given more worker time than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TenantId(pub(crate) usize);

/// An ordering key in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyQueueId(pub(crate) usize);

/// A limit key of a kind that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyLimiterId(pub(crate) usize);
