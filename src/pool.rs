//! The heart: pools.
mod core;
