//! What `serve` and `dev` share: the life of a server process, from its configuration to its exit code.

use std::{io, process::id};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use super::{
    connect::explain,
    console::{complain, say},
    core_dumps::keep_out_of_core_dumps,
    exit::Exit,
};
use crate::{
    app::{App, Control, OwnKind, Receipt, ServiceManager, StartError},
    config::Config,
    telemetry::{self, TelemetryError},
};

/// Why a server process could not do its work.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// Serves `config`, and handlers of the caller's own beside it, until a signal, or an operator, has drained it: the
/// life of `waterwheel serve`, for a program with handlers in Rust. `greet` runs once calls are taken.
///
/// The first SIGTERM or SIGINT starts the drain, the second goes straight to its kill phase. The receipt of the drain
/// is the last line on standard output, or on standard error where the former cannot be written, and the exit is
/// [`Exit::Done`], or [`Exit::JobsLost`] where it names a job. What keeps it from serving is told on standard error, and
/// the exit is [`Exit::Failed`].
pub fn run_server(config: &Config, own: Vec<OwnKind>, greet: impl AsyncFnOnce(&App) -> io::Result<()>) -> Exit {
    match serve(config, own, greet) {
        Ok(receipt) if receipt.is_clean() => Exit::Done,
        Ok(_) => Exit::JobsLost,
        Err(error) => {
            complain(&format!("error: {error}"));
            Exit::Failed
        }
    }
}

/// Where calls are taken, as scripts and people read it.
pub(super) fn announcement(app: &App) -> String {
    format!("grpc {} (reflection on)   ops http://{} (metrics, health)", addresses(app), app.ops_address())
}

fn addresses(app: &App) -> String {
    app.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn serve(
    config: &Config,
    own: Vec<OwnKind>,
    greet: impl AsyncFnOnce(&App) -> io::Result<()>,
) -> Result<Receipt, ServerError> {
    let telemetry = telemetry::init(&config.telemetry)?;
    // Not every configuration was read by a command, which does it before.
    keep_out_of_core_dumps();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let receipt = runtime.block_on(async {
        let signals = Signals::new()?;
        let app = App::start_with(config, own, telemetry.sample_ratio())?;
        info!(address = addresses(&app), ops_address = %app.ops_address(), pid = id(), "serving");
        greet(&app).await?;
        let control = app.control();
        let informed = app.keep_informed(ServiceManager::from_env()?);
        let receipt = tokio::select! {
            receipt = app.run() => receipt,
            never = signals.steer(&control) => match never {},
            never = informed => match never {},
        };
        Ok::<_, ServerError>(receipt)
    })?;
    // Jobs that do not stop may hold this runtime; the process does not wait for them.
    runtime.shutdown_background();
    telemetry.shutdown(receipt.flush_within());
    hand_out(&receipt);
    Ok(receipt)
}

/// Whether standard output took what was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    Yes,
    No,
}

/// Tells something of a server that serves. That nobody can be told is no reason not to serve.
pub(super) fn tell(text: &str) -> Told {
    match say(text) {
        Ok(()) => Told::Yes,
        Err(error) => {
            if error.kind() != io::ErrorKind::BrokenPipe {
                warn!(error = explain(&error), "cannot write to standard output; serving all the same");
            }
            Told::No
        }
    }
}

/// Prints the receipt, which must reach somebody.
fn hand_out(receipt: &Receipt) {
    let json = receipt.to_json();
    if let Err(error) = say(&json) {
        complain(&format!("error: cannot write to standard output: {}; the receipt is {json}", explain(&error)));
    }
}

/// SIGTERM, SIGINT and SIGHUP: a terminal that closes ends the service as an operator does, but for one that `nohup` started.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Option<Signal>,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: if ignores_hang_up() { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    async fn steer(mut self, control: &Control) -> std::convert::Infallible {
        self.next().await;
        control.drain();
        loop {
            self.next().await;
            info!("a second signal: stopping what still runs");
            control.kill();
        }
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = received(self.hang_up.as_mut()) => {}
        }
    }
}

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether whoever started the process had it ignore SIGHUP. Where `/proc` does not tell, nobody did.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    // SIGHUP is the first of the signals.
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
