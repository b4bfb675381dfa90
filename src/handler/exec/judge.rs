//! Turns the end of an `exec` program into the result of its job: exit codes, signals, standard error.

use std::io;

use super::ExecCommand;
use crate::handler::child::{Tail, quoting, shown};
use crate::model::{FailureCode, HandlerError, ProgramEnd};

/// What the end of a program that was left alone means.
pub(super) fn judge(command: &ExecCommand, end: io::Result<ProgramEnd>, tail: &Tail) -> Result<(), HandlerError> {
    let ProgramEnd { told, exit_code, signal, stderr: _ } = end.map_err(|fault| {
        let program = shown(&command.program);
        let message = format!("the exit code of {program} is lost: {fault}; start the server with SIGCHLD not ignored");
        HandlerError::Crashed { message }
    })?;
    match exit_code {
        Some(0) => Ok(()),
        Some(code) => {
            let failure = u8::try_from(code).ok().map_or(FailureCode::Unknown, |code| failure_code(command, code));
            Err(HandlerError::new(failure, quoting(told, tail, command.stderr_tail)))
        }
        None => {
            let hint = if signal == Some(9) { ", as the kernel does when memory runs out" } else { "" };
            Err(HandlerError::Crashed { message: quoting(told + hint, tail, command.stderr_tail) })
        }
    }
}

fn failure_code(command: &ExecCommand, code: u8) -> FailureCode {
    command.exit_codes.get(&code).copied().unwrap_or(match code {
        // EX_USAGE, EX_DATAERR
        64 | 65 => FailureCode::InvalidArgument,
        // EX_NOINPUT
        66 => FailureCode::NotFound,
        // EX_UNAVAILABLE, EX_TEMPFAIL
        69 | 75 => FailureCode::Unavailable,
        // EX_CANTCREAT
        73 => FailureCode::AlreadyExists,
        // EX_NOPERM
        77 => FailureCode::PermissionDenied,
        // EX_CONFIG
        78 => FailureCode::FailedPrecondition,
        _ => FailureCode::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::ExitStatus};

    use super::*;
    use crate::handler::child::end;

    fn judged(command: &ExecCommand, wait_status: i32, stderr: &[u8]) -> Result<(), HandlerError> {
        let mut tail = Tail::new(command.stderr_tail);
        tail.push(stderr);
        judge(command, Ok(end(&command.program, ExitStatus::from_raw(wait_status), &tail)), &tail)
    }

    #[test]
    fn exit_codes_follow_the_table_then_sysexits() {
        let mut command = ExecCommand::new("/bin/p", [""; 0]);
        command.exit_codes = [(3, FailureCode::DataLoss), (66, FailureCode::OutOfRange)].into();
        let cases = [
            (1, FailureCode::Unknown),
            (3, FailureCode::DataLoss),
            (64, FailureCode::InvalidArgument),
            (65, FailureCode::InvalidArgument),
            (66, FailureCode::OutOfRange),
            (69, FailureCode::Unavailable),
            (73, FailureCode::AlreadyExists),
            (75, FailureCode::Unavailable),
            (77, FailureCode::PermissionDenied),
            (78, FailureCode::FailedPrecondition),
            (255, FailureCode::Unknown),
        ];
        assert_eq!(judged(&command, 0, b"a warning"), Ok(()));
        for (code, failure) in cases {
            let message = format!("/bin/p exited with code {code}: why");
            assert_eq!(judged(&command, code << 8, b"why\n"), Err(HandlerError::new(failure, message)));
        }
        command.exit_codes.clear();
        let message = "/bin/p exited with code 66";
        assert_eq!(judged(&command, 66 << 8, b""), Err(HandlerError::new(FailureCode::NotFound, message)));
    }

    #[test]
    fn a_signal_is_named() {
        let command = ExecCommand::new("/bin/p", [""; 0]);
        let message = "/bin/p was ended by signal: 11 (SIGSEGV): bad pointer".into();
        assert_eq!(judged(&command, 11, b"bad pointer"), Err(HandlerError::Crashed { message }));
        let message = "/bin/p was ended by signal: 9 (SIGKILL), as the kernel does when memory runs out".into();
        assert_eq!(judged(&command, 9, b""), Err(HandlerError::Crashed { message }));
    }

    #[test]
    fn messages_stay_under_three_kibibytes() {
        let mut command = ExecCommand::new(format!("/{}", "€".repeat(2_000)), [""; 0]);
        command.stderr_tail = ExecCommand::MAX_STDERR_TAIL;
        for byte in [b"x", b"\x01", b"\xff"] {
            let message = judged(&command, 1 << 8, &byte.repeat(10_000)).expect_err("a failure").to_string();
            assert!((3_000..3_072).contains(&message.len()), "{}", message.len());
        }
    }
}
