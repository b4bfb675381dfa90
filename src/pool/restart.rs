//! The processes of programs: their first start, and new ones before the old ones leave, for a restart and for a
//! reload.

use std::sync::Arc;

use futures_util::future::try_join_all;

use super::{Pool, Pools};
use crate::handler::{Kind, Processes};

/// Why a pool was not restarted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestartFault {
    /// No program runs its jobs.
    #[error("no program runs its jobs; only the processes of [program.NAME] are restarted")]
    NoProgram,
    /// A new process was not ready. The old ones go on.
    #[error("program {program} cannot start, and replaces nothing: {cause}")]
    CannotStart {
        /// Name of the program.
        program: Arc<str>,
        /// How its process failed.
        cause: String,
    },
}

impl Pool {
    /// Replaces the processes of its programs, one after the other: a new one is ready before an old one leaves, and no
    /// job fails. Returns when each program has its first new process; the others follow.
    ///
    /// # Errors
    /// [`RestartFault`]; then the old processes of that program go on.
    pub async fn restart(&self) -> Result<(), RestartFault> {
        let programs = self.processes();
        if programs.is_empty() {
            return Err(RestartFault::NoProgram);
        }
        try_join_all(programs.iter().map(async |it| it.restart().await.map_err(|cause| cannot_start(it, cause))))
            .await?;
        Ok(())
    }

    /// Starts one process of each program that `kinds` name and that this pool does not run yet.
    pub(crate) async fn try_start(&self, kinds: &[Kind]) -> Result<(), RestartFault> {
        let known = self.processes();
        for new in kinds.iter().filter_map(Kind::external_of) {
            if !known.iter().any(|known| Arc::ptr_eq(known, &new)) {
                new.try_start(&self.inner().tasks).await.map_err(|cause| cannot_start(&new, cause))?;
            }
        }
        Ok(())
    }

    /// The processes of its programs.
    pub(crate) fn processes(&self) -> Vec<Arc<Processes>> {
        let mut all: Vec<Arc<Processes>> = Vec::new();
        for processes in self.inner().served().filter_map(|(_, kind)| kind.external_of()) {
            if !all.iter().any(|known| Arc::ptr_eq(known, &processes)) {
                all.push(processes);
            }
        }
        all
    }
}

fn cannot_start(processes: &Processes, cause: String) -> RestartFault {
    RestartFault::CannotStart { program: processes.program().name.as_str().into(), cause }
}

impl Pools {
    /// Returns when each process of the programs was ready once, or has failed. Cancel safe.
    pub async fn first_starts_settled(&self) {
        for processes in self.all().iter().flat_map(Pool::processes) {
            processes.first_starts_settled().await;
        }
    }
}
