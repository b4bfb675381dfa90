//! gRPC: what calls carry, and what handlers pass on to the servers that they call.

pub mod propagate;
pub mod timeout;
pub mod trace;
