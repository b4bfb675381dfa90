//! The exit codes, and the table of them that `--help` shows.

use std::process::ExitCode;

/// Exit status of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Code 0: done.
    Done,
    /// Code 1: the job or the call failed, the server could not start, the output could not be written, the probed
    /// service does not serve, or `check --env` found the environment insufficient.
    Failed,
    /// Code 2: an argument, a file or a request is wrong, or the caller or the state of the job does not allow it.
    Usage,
    /// Code 3: the drain lost jobs, or left answers unfinished.
    JobsLost,
    /// Code 4: refused before the job started; sending it again is safe.
    Refused,
    /// Code 5: the deadline passed.
    DeadlineExceeded,
    /// Code 6: no connection to the server.
    Unreachable,
    /// Code 2 of `probe` alone: no answer from the probed server.
    ProbeUnreachable,
    /// Code 130: interrupted; the code that shells give for SIGINT.
    Interrupted,
    /// Code 141: the reader of the output closed it, as a shell reports SIGPIPE.
    OutputClosed,
}

impl Exit {
    /// The number of the exit status.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage | Self::ProbeUnreachable => 2,
            Self::JobsLost => 3,
            Self::Refused => 4,
            Self::DeadlineExceeded => 5,
            Self::Unreachable => 6,
            Self::Interrupted => 130,
            Self::OutputClosed => 141,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// The last part of the program's `--help`.
pub(super) const TABLE: &str = "\
Exit codes:
    0  done
    1  the job or the call failed, the server could not start (as on a taken address), the
       output could not be written, or `check --env` found the environment insufficient
    2  wrong usage: an argument, a file, or a request that the server calls invalid or denies,
       or that the state of the job does not allow
    3  a drain lost jobs or left answers unfinished
    4  refused: the job did not start, so that sending it again is safe
    5  the deadline passed
    6  the server cannot be reached
  130  interrupted (Ctrl-C cancels the call)
  141  the reader of the output closed it
`probe` has its own: 0 serving, 1 not serving, 2 no answer.";

#[cfg(test)]
mod tests {
    use super::{Exit, TABLE};

    #[test]
    fn the_table_names_every_code() {
        let all = [
            Exit::Done,
            Exit::Failed,
            Exit::Usage,
            Exit::JobsLost,
            Exit::Refused,
            Exit::DeadlineExceeded,
            Exit::Unreachable,
            Exit::Interrupted,
            Exit::OutputClosed,
        ];
        for exit in all {
            let row = format!("{:>5}  ", exit.code());
            assert!(TABLE.lines().any(|line| line.starts_with(&row)), "no row for {exit:?}");
        }
    }
}
