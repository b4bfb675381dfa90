//! The heart on virtual time: seeded arrivals against a policy, hours in milliseconds.
//!
//! ```text
//! load ─▶ world ─▶ policy (the real machine, or one that others use)
//! arrivals  │        │
//!           └ tally ◀┘  what became of each job, in worker time
//! ```

mod load;
mod policy;
mod tally;
mod world;

pub(crate) use load::{Load, Service};
pub(crate) use policy::PolicyName;
pub(crate) use tally::Outcome;
pub(crate) use world::run;

#[cfg(test)]
mod tests;
