//! Simulates the scheduler on virtual time: runs drawn or recorded arrivals against a policy, hours within seconds.
//!
//! ```text
//! load ─▶ arrivals ─▶ world ─▶ policy (the machine of a pool)
//!         drawn, or     │        │
//!         recorded      └ tally ◀┘  the end of each job, in worker time
//! ```

mod load;
mod policy;
mod recording;
mod replay;
mod tally;
mod world;

pub(crate) use load::{Disturbance, LaterLoad, Load, Pattern, Retry, Service, Source};
pub(crate) use policy::{KindPlan, Plan};
pub(crate) use recording::{Recording, RecordingError};
pub(crate) use replay::{KindFigures, Replay, measured};
pub(crate) use tally::{Outcome, Served, quantile_of};
pub(crate) use world::run;

#[cfg(test)]
mod tests;
