//! Attacks by hostile peers. Each test attacks a server that runs as a separate process.
//!
//! During the attack, and until the server has cleaned up after it, another client's calls succeed. Afterwards the
//! server's memory, open files and jobs return to the values from before the attack.

mod floods;
pub(crate) mod frames;
mod headers;
mod last_response;
mod memory;
pub(crate) mod peer;
mod resets;
mod silence;
mod target;

pub(crate) use self::target::Footprint;

/// The RPC that all attackers call.
pub(crate) const SUBMIT: &str = "/waterwheel.v1.WorkerPoolService/Submit";
