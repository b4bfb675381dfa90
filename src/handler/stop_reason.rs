//! Why a job must stop. `src/pool/stop_ladder.rs` has the stop ladder.

/// Why a job must stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// Its deadline, or a limit of its run.
    Deadline,
    /// Its caller disconnected or cancelled.
    Caller,
    /// The drain reached its time limit.
    Drain,
    /// An operator cancelled the job.
    Operator,
}

impl StopReason {
    /// Name in messages to workers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "DEADLINE",
            Self::Caller => "CALLER",
            Self::Drain => "DRAIN",
            Self::Operator => "OPERATOR",
        }
    }
}
