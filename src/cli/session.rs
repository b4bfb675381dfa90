//! Runs a client command: runtime, Ctrl-C, and reporting of failures.

use super::{
    console::{Console, complain},
    exit::Exit,
    failure::{self, Failure},
    output::Format,
};

/// Runs `command` on its own runtime, and returns its exit code.
///
/// Ctrl-C drops the command, which cancels its call.
pub(super) fn client<F>(format: Format, command: F) -> Exit
where
    F: AsyncFnOnce(&mut Console<'static>) -> Result<Exit, Failure>,
{
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let report = Failure::Runtime(error).text();
            complain(&report);
            return Exit::Failed;
        }
    };
    let exit = runtime.block_on(async {
        let mut console = Console::standard();
        let ended = tokio::select! {
            // Polled before the command starts, so that an early Ctrl-C is not missed.
            biased;
            _ = tokio::signal::ctrl_c() => Ok(Exit::Interrupted),
            ended = command(&mut console) => ended,
        };
        match ended {
            Ok(exit) => exit,
            Err(failure) => failure::report(&failure, format, &mut console).await,
        }
    });
    // A thread may still be blocked reading standard input; nothing waits for it.
    runtime.shutdown_background();
    exit
}
