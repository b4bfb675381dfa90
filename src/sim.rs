//! Simulates the scheduler on virtual time: runs seeded arrivals against a policy, hours within milliseconds.
//!
//! ```text
//! load ─▶ arrivals ─▶ world ─▶ policy (the machine of a pool)
//!         drawn, or     │        │
//!         recorded      └ tally ◀┘  the end of each job, in worker time
//! ```

mod load;
mod recording;
mod tally;
mod world;

pub(crate) use load::{Disturbance, LaterLoad, Load, Pattern, Retry, Service, Source};
pub(crate) use recording::{Recording, RecordingError};
pub(crate) use tally::{Outcome, Served, quantile_of};
pub(crate) use world::run;

#[cfg(test)]
mod tests;
