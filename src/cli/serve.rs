//! `waterwheel serve`, and the lifecycle of every server process.

use std::{io, process::id, time::Duration};

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{info, warn};

use super::{
    config::{ConfigArgs, sources},
    console::complain,
    failure::Exit,
};
use crate::{
    app::{App, Control, OwnKind, Receipt, ServiceManager, StartError},
    config::{Config, Faults, Loaded, Warning},
    file::explain,
    net::ListenAddress,
    telemetry::{self, STDERR, STDOUT, TelemetryError},
};

/// Longest time to write the last log lines of a server that cannot start.
const MAX_FLUSH: Duration = Duration::from_secs(1);

/// Serve the configured pools until a signal or "waterwheel drain".
///
/// SIGTERM and SIGINT start the drain: health says NOT_SERVING, new jobs are refused after the notice, queued and
/// running jobs are finished. A second signal stops running jobs at once. SIGHUP reloads the configuration, as
/// "waterwheel reload" does.
///
/// The last line on standard output is the receipt of the drain, which names every job that was not finished. The exit
/// code is 0 if no job was lost and no answer was cut, else 3. A stopped detached job runs again, and is not lost. If
/// standard output cannot be written, the server still serves, and the receipt goes to standard error.
#[derive(Debug, Args)]
#[command(after_help = "Example:
  waterwheel serve --config waterwheel.toml")]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

pub(super) fn run(args: &ServeArgs) -> Exit {
    let args = args.config.clone();
    let greet = async |app: &App, _: &Config| {
        print(&announcement(app));
        Ok(())
    };
    run_server(move || args.load(sources(), None), Vec::new(), greet)
}

/// Why a server process failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerError {
    #[error(transparent)]
    Config(#[from] Faults),
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// Serves the configuration that `load` reads, with additional Rust handlers, until a signal or an operator drains it.
/// It is `waterwheel serve` for programs with their own handlers. `greet` runs once calls are accepted.
///
/// The first SIGTERM or SIGINT starts the drain, the second starts its kill phase. SIGHUP and `waterwheel reload` [call
/// `load` again](App::reload_by).
///
/// The receipt of the drain is the last line on standard output, or on standard error if that fails. The exit is
/// [`Exit::Done`], or [`Exit::JobsLost`] if the receipt names a job. Errors before serving are printed to standard
/// error; then the exit is [`Exit::Failed`], or [`Exit::Usage`] for faults of the configuration.
pub fn run_server(
    load: impl Fn() -> Result<Loaded, Faults> + Send + Sync + 'static,
    own: Vec<OwnKind>,
    greet: impl AsyncFnOnce(&App, &Config) -> io::Result<()>,
) -> Exit {
    exit_of(serve(HangUp::Reload, load, own, greet))
}

/// What SIGHUP does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HangUp {
    /// For services, which have no terminal.
    Reload,
    /// For servers that end with their terminal.
    Drain,
}

/// The exit of a server process. Prints why it failed.
pub(super) fn exit_of(served: Result<Receipt, ServerError>) -> Exit {
    match served {
        Ok(receipt) if receipt.is_clean() => Exit::Done,
        Ok(_) => Exit::JobsLost,
        Err(ServerError::Config(faults)) => refuse(&faults),
        Err(error) => {
            complain(&format!("error: {error}"));
            Exit::Failed
        }
    }
}

/// Prints why the configuration cannot be served.
pub(super) fn refuse(faults: &Faults) -> Exit {
    complain(&faults.styled());
    Exit::Usage
}

/// The addresses, for scripts and people.
pub(super) fn announcement(app: &App) -> String {
    let link = |address: &ListenAddress| match address.tcp() {
        Some(address) => format!("http://{address}"),
        None => address.to_string(),
    };
    let ops = app.ops_addresses().iter().map(link).collect::<Vec<_>>().join(" ");
    format!("grpc {} (reflection on)   ops {ops} (metrics, health)", all(app.addresses()))
}

fn all(addresses: &[ListenAddress]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Serves as [`run_server`] does, with a choice of what SIGHUP does.
pub(super) fn serve(
    hang_up: HangUp,
    load: impl Fn() -> Result<Loaded, Faults> + Send + Sync + 'static,
    own: Vec<OwnKind>,
    greet: impl AsyncFnOnce(&App, &Config) -> io::Result<()>,
) -> Result<Receipt, ServerError> {
    let loaded = load()?;
    let config = &loaded.config;
    let telemetry = telemetry::init(&config.telemetry)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served: Result<_, ServerError> = runtime.block_on(async {
        let (terminate, interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let hang_ups = signal(SignalKind::hangup())?;
        let app = App::start_with(config, own, telemetry.sample_ratio())?;
        info!(address = all(app.addresses()), ops_address = all(app.ops_addresses()), pid = id(), "serving");
        app.reload_by(loaded.clone(), load, telemetry.log());
        for Warning { message, help } in &loaded.warnings {
            warn!(help, "{message}");
        }
        greet(&app, config).await?;
        let control = app.control();
        let informed = app.keep_informed(ServiceManager::from_env()?);
        let receipt = tokio::select! {
            receipt = app.run() => receipt,
            never = stop(terminate, interrupt, &control) => match never {},
            never = follow_hang_ups(hang_up, hang_ups, &control) => match never {},
            never = informed => match never {},
        };
        Ok(receipt)
    });
    // Jobs that do not stop may block this runtime; the process does not wait for them.
    runtime.shutdown_background();
    telemetry.shutdown(served.as_ref().map_or(MAX_FLUSH, Receipt::flush_within));
    let receipt = served?;
    print_receipt(&receipt);
    Ok(receipt)
}

/// Prints a line, without waiting for its reader. The server goes on if it cannot be written.
pub(super) fn print(text: &str) {
    STDOUT.push(format!("{text}\n").as_bytes());
}

/// Prints the receipt, to standard error if standard output fails.
fn print_receipt(receipt: &Receipt) {
    let json = receipt.to_json();
    print(&json);
    if let Err(error) = STDOUT.flush(receipt.flush_within()) {
        let error = explain(&error);
        let line = format!("error: cannot write to standard output: {error}; the receipt is {json}\n");
        STDERR.push(line.as_bytes());
        // If this cannot be written either, only the exit code remains.
        let _ = STDERR.flush(receipt.flush_within());
    }
}

/// Reloads the configuration at each SIGHUP, or drains.
async fn follow_hang_ups(hang_up: HangUp, mut signals: Signal, control: &Control) -> std::convert::Infallible {
    loop {
        signals.recv().await;
        match hang_up {
            HangUp::Drain => control.drain(),
            // The reload logs its result.
            HangUp::Reload => drop(control.reload().await),
        }
    }
}

/// Drains at the first SIGTERM or SIGINT, and stops running jobs at each other one.
async fn stop(mut terminate: Signal, mut interrupt: Signal, control: &Control) -> std::convert::Infallible {
    let mut is_draining = false;
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if is_draining {
            info!("a second signal: stopping running jobs");
            control.kill();
        } else {
            control.drain();
        }
        is_draining = true;
    }
}
