use thiserror::Error;

/// Why a program cannot be started.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ProgramFault {
    /// It would be looked up in a search path.
    #[error("is not an absolute path")]
    Relative,
    /// There is no such file.
    #[error("does not exist")]
    Missing,
    /// It is a directory or a device.
    #[error("is not a file")]
    NotAFile,
    /// This user may not execute it.
    #[error("is not executable for this user")]
    NotExecutable,
}

impl ProgramFault {
    pub(super) fn help(self, program: &str) -> String {
        match self {
            Self::Relative => "there is no shell and no search path; `command -v NAME` prints the whole path".into(),
            Self::Missing => "install it, or correct the path".into(),
            Self::NotAFile => "name the program itself".into(),
            Self::NotExecutable => {
                format!("`chmod +x {program}`, or run the server as a user who may")
            }
        }
    }
}
