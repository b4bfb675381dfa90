/// How the program of a job ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramEnd {
    /// That in a sentence, without what the program wrote.
    pub told: String,
    /// Its exit code; `None` where a signal ended it.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The end of its standard error.
    pub stderr: String,
}
