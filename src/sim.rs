//! The heart on virtual time: seeded arrivals against a policy, hours in milliseconds.
//!
//! ```text
//! load ─▶ arrivals ─▶ world ─▶ policy (the machine of a pool)
//!         drawn, or     │        │
//!         recorded      └ tally ◀┘  what became of each job, in worker time
//! ```

mod arrivals;
mod bound;
mod load;
mod ours;
mod policy;
mod recording;
mod tally;
mod world;

pub(crate) use load::{Load, Pattern, Retry, Service, Source, Spell};
pub(crate) use recording::{PassedOver, Recording, RecordingError};
pub(crate) use tally::Outcome;
pub(crate) use world::run;

#[cfg(test)]
mod tests;
