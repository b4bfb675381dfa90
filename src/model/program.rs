//! How the program of a job ended; `src/handler/child/end.rs` writes its message.

/// The end of a job's program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramEnd {
    /// A sentence for people, without the program's own output.
    pub told: String,
    /// Its exit code; `None` if a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The end of its standard error.
    pub stderr: String,
}
