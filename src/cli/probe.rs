//! `waterwheel probe`: health for scripts and containers.

use std::time::Duration;

use clap::Args;
use tokio::time::Instant;
use tonic::Code;

use super::{
    access::Access,
    connect::{Address, Connection, ServerArgs},
    console::{BAD, Console, GOOD, paint},
    exit::Exit,
    failure::Failure,
    output::{Format, OutputArgs, json, setting},
};
use crate::proto::health::{HealthCheckRequest, health_check_response::ServingStatus};

const EXAMPLE: &str = "\
Exit codes:
  0  serving
  1  not serving, or no such service
  2  no answer
They describe the server, even if the line with its health cannot be written.

Example:
  waterwheel probe --service readiness --wait 10s";

/// Time between two checks of `--wait`.
const POLL: Duration = Duration::from_millis(100);

/// Ask the server for its health, for scripts and containers.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct ProbeArgs {
    /// Name to ask for: readiness, liveness, capacity, pool/NAME, or a gRPC service [default: the whole server].
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    service: String,
    /// Longest wait for one answer.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = humantime::parse_duration)]
    timeout: Duration,
    /// Ask again until it is SERVING, at most this long.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    pub(super) output: OutputArgs,
}

/// What one check found, or why there was no answer.
type Health = Result<ServingStatus, String>;

pub(super) async fn run(args: ProbeArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let address = &args.server.server;
    let access = args.server.access.load(address)?;
    let until = args.wait.map(|wait| Instant::now() + wait);
    let health = loop {
        let health = check(address, &access, &args.service, args.timeout).await;
        let more = until.is_some_and(|until| Instant::now() + POLL < until);
        if health == Ok(ServingStatus::Serving) || !more {
            break health;
        }
        tokio::time::sleep(POLL).await;
    };
    let line = match args.output.format {
        Format::Text => text(&health, &args.service, address),
        Format::Json => json(&health, &args.service),
    };
    let printed = match (&health, args.output.format) {
        (Err(_), Format::Text) => console.err.line(&line).await,
        _ => console.out.line(&line).await,
    };
    if let Err(failure) = printed.map_err(Failure::from)
        && failure.exit() != Exit::OutputClosed
    {
        // The exit code is the answer, and must not become that of this failure.
        drop(console.err.line(&failure.text()).await);
    }
    Ok(match health {
        Ok(ServingStatus::Serving) => Exit::Done,
        Ok(_) => Exit::Failed,
        Err(_) => Exit::ProbeUnreachable,
    })
}

async fn check(address: &Address, access: &Access, service: &str, timeout: Duration) -> Health {
    let asked = tokio::time::timeout(timeout, async {
        let connection = Connection::open(address, access, timeout).await?;
        let request = HealthCheckRequest { service: service.to_owned() };
        match connection.health().check(request).await {
            Ok(response) => Ok(response.into_inner().status()),
            Err(status) if status.code() == Code::NotFound => Ok(ServingStatus::ServiceUnknown),
            Err(status) => Err(Failure::of_status(status, address)),
        }
    });
    match asked.await {
        Ok(Ok(ServingStatus::Unknown)) => Ok(ServingStatus::ServiceUnknown),
        Ok(Ok(status)) => Ok(status),
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(_) => {
            let waited = setting(timeout);
            Err(format!("cannot reach {address}: no answer within {waited}"))
        }
    }
}

fn text(health: &Health, service: &str, address: &Address) -> String {
    let (status, style) = match health {
        Ok(status @ ServingStatus::Serving) => (status, GOOD),
        Ok(status) => (status, BAD),
        Err(cause) => return cause.clone(),
    };
    let asked = format!("{service} {address}");
    format!("{}  {}", paint(style, status.as_str_name()), asked.trim_start())
}

fn json(health: &Health, service: &str) -> String {
    let status = health.as_ref().map_or("NO_ANSWER", ServingStatus::as_str_name);
    json::line(&serde_json::json!({ "service": service, "status": status, "cause": health.as_ref().err() }))
}

#[cfg(test)]
mod tests;
