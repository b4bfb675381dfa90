//! The promises of the service, for each way in, each way to run a job, and each store.

mod every_way;
mod runs;
mod ways;
