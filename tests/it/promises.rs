//! The promises of the service, for each way in, each way to run a job, and each store. [`table`] is the overview.

mod every_way;
mod rows;
mod runs;
mod table;
mod ways;
