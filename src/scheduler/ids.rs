//! Indices, each of its own type, so that they cannot be confused.

/// A tenant with jobs in the pool, or with more worker time than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TenantId(pub(crate) usize);

/// An ordering key in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyQueueId(pub(crate) usize);

/// A limit key in use, of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KeyLimiterId(pub(crate) usize);
