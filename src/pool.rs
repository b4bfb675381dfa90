//! Runs jobs on workers.

mod trace;
