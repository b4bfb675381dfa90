//! The open files that a configuration needs.

use super::{Config, Handler, Pool};

/// Descriptors of listeners, standard streams and timers, and of a runtime for each thread.
const BASE: u64 = 64;
const PER_THREAD: u64 = 4;

/// Both ends of three pipes while a program starts, the pipe that reports its start, and its pidfd.
pub const FILES_OF_PROGRAM: u64 = 9;

/// The open files that a server needs in addition to one for each connection of its callers.
#[derive(Debug, Clone, Copy)]
pub struct OpenFiles {
    /// Files of the server itself, with connections of operators.
    pub own: u64,
    /// Maximum number of programs that run at once; each has [`FILES_OF_PROGRAM`].
    pub programs: u64,
}

impl OpenFiles {
    /// The needs of this configuration.
    pub fn of(config: &Config) -> Self {
        let runs_programs = |pool: &&Pool| {
            let mut kinds = config.kinds.iter().filter(|kind| kind.pool == pool.name);
            kinds.any(|kind| matches!(kind.handler, Handler::Exec(_) | Handler::Program(_)))
        };
        let pools = config.pools.iter().filter(runs_programs);
        Self {
            own: BASE + PER_THREAD * config.server.threads as u64,
            programs: pools.map(|pool| pool.settings.most_workers() as u64).sum(),
        }
    }

    /// All of them.
    pub fn all(self) -> u64 {
        self.own + FILES_OF_PROGRAM * self.programs
    }
}
