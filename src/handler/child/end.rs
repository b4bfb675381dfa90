//! How a program ended, as a message. SIGTERM and SIGKILL are sent by `src/handler/child.rs`; the grace
//! of a job ends in `src/pool/stop.rs`.

use std::{os::unix::process::ExitStatusExt, path::Path, process::ExitStatus};

use super::Tail;
use crate::model::ProgramEnd;

/// Bytes that a message stays under.
const MAX_MESSAGE: usize = 3 << 10;
/// Most characters of a program's path in a message.
const MAX_PROGRAM: usize = 256;

/// How a program ended.
pub(in crate::handler) fn end(program: &Path, status: ExitStatus, tail: &Tail) -> ProgramEnd {
    let program = shown(program);
    let told = match status.code() {
        Some(code) => format!("{program} exited with code {code}"),
        // Displayed as `signal: 9 (SIGKILL)`.
        None => format!("{program} was ended by {status}"),
    };
    ProgramEnd { told, exit_code: status.code(), signal: status.signal(), stderr: tail.text() }
}

/// The path of a program in a message: it may be 4 KiB long, more than a message can hold.
pub(in crate::handler) fn shown(program: &Path) -> String {
    program.display().to_string().chars().take(MAX_PROGRAM).collect()
}

/// `what`, and at most `most` bytes of what the program said last.
pub(in crate::handler) fn quoting(what: String, tail: &Tail, most: usize) -> String {
    const SEPARATOR: &str = ": ";
    let room = most.min((MAX_MESSAGE - 1).saturating_sub(what.len() + SEPARATOR.len()));
    match tail.printable(room) {
        quote if quote.is_empty() => what,
        quote => what + SEPARATOR + &quote,
    }
}
