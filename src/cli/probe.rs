//! `waterwheel probe`: health for scripts and containers.

use std::time::Duration;

use clap::Args;
use tokio::time::Instant;
use tonic::Code;

use super::{
    access::{Access, Address, ReadArgs},
    connect::{Connection, Target},
    console::{BAD, Console, GOOD, paint},
    failure::{Exit, Failure},
    flags::any_duration,
    output::{Format, setting},
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
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = any_duration)]
    timeout: Duration,
    /// Ask again until it is SERVING, at most this long.
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    server: ReadArgs,
}

/// The result of one check, or why there was no answer.
type Health = Result<ServingStatus, String>;

pub(super) async fn run(args: ProbeArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let access = args.server.access().load(args.server.address())?;
    let until = args.wait.map(|wait| Instant::now() + wait);
    let health = loop {
        let health = check(&access, &args.service, args.timeout).await;
        let is_last = until.is_none_or(|until| Instant::now() + POLL >= until);
        if health == Ok(ServingStatus::Serving) || is_last {
            break health;
        }
        tokio::time::sleep(POLL).await;
    };
    let printed = match (&health, console.format) {
        (Err(cause), Format::Text) => console.err.line(cause).await,
        (Ok(status), Format::Text) => console.out.line(&text(*status, &args.service, &access.address)).await,
        (_, Format::Json) => console.out.line(&json(&health, &args.service).to_string()).await,
    };
    if let Err(failure) = printed.map_err(Failure::from)
        && failure.exit() != Exit::OutputClosed
    {
        // The exit code is the result, so it must not become the code of this failure.
        drop(console.err.line(&failure.text()).await);
    }
    Ok(match health {
        Ok(ServingStatus::Serving) => Exit::Done,
        Ok(_) => Exit::Failed,
        Err(_) => Exit::Usage,
    })
}

async fn check(access: &Access, service: &str, timeout: Duration) -> Health {
    let asked = tokio::time::timeout(timeout, async {
        let connection = Connection::open(access, timeout).await?;
        let request = HealthCheckRequest { service: service.to_owned() };
        match connection.health().check(request).await {
            Ok(response) => Ok(response.into_inner().status()),
            Err(status) if status.code() == Code::NotFound => Ok(ServingStatus::ServiceUnknown),
            Err(status) => Err(Failure::of_status(status, &access.address)),
        }
    });
    match asked.await {
        Ok(Ok(ServingStatus::Unknown)) => Ok(ServingStatus::ServiceUnknown),
        Ok(Ok(status)) => Ok(status),
        Ok(Err(failure)) => Err(failure.to_string()),
        Err(_) => Err(format!("cannot reach {}: no answer within {}", access.address, setting(timeout))),
    }
}

fn text(status: ServingStatus, service: &str, address: &Address) -> String {
    let style = if status == ServingStatus::Serving { GOOD } else { BAD };
    let asked = format!("{service} {address}");
    format!("{}  {}", paint(style, status.as_str_name()), asked.trim_start())
}

fn json(health: &Health, service: &str) -> serde_json::Value {
    let status = health.as_ref().map_or("NO_ANSWER", ServingStatus::as_str_name);
    serde_json::json!({ "service": service, "status": status, "cause": health.as_ref().err() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::{ProbeArgs, run};
    use crate::{
        cli::{
            console::Console,
            failure::Exit,
            fake::{self, Line, Ran, ReadBy, Script},
        },
        proto::health::health_check_response::ServingStatus::{self, NotServing, Serving},
    };

    async fn probe(line: &[&str], script: Script) -> Ran {
        let line = Line::<ProbeArgs>::try_parse_from(["probe"].iter().chain(line)).unwrap();
        let format = line.format;
        fake::run(script, ReadBy::Program, format, async |address, console| {
            let mut args = line.args;
            args.server.server = Some(address);
            run(args, console).await
        })
        .await
    }

    fn health(health: Vec<(&'static str, Vec<ServingStatus>)>) -> Script {
        Script { health, ..Script::default() }
    }

    #[tokio::test]
    async fn each_answer_has_its_line_and_its_code() {
        let script = || {
            health(vec![
                ("", vec![Serving]),
                ("readiness", vec![NotServing]),
                ("pool/x", vec![ServingStatus::ServiceUnknown]),
            ])
        };
        let cases = [
            ("", "SERVING  ", Exit::Done),
            ("readiness", "NOT_SERVING  readiness ", Exit::Failed),
            ("pool/x", "SERVICE_UNKNOWN  pool/x ", Exit::Failed),
            ("nobody", "SERVICE_UNKNOWN  nobody ", Exit::Failed),
        ];
        for (service, start, exit) in cases {
            let ran = probe(&["--service", service], script()).await;
            assert!(ran.text().starts_with(start), "{}", ran.text());
            assert_eq!(ran.text().lines().count(), 1);
            assert_eq!(ran.exit, exit, "{service}");
        }
    }

    #[tokio::test]
    async fn waiting_asks_until_it_serves() {
        let starts = || health(vec![("", vec![NotServing, NotServing, Serving])]);
        assert_eq!(probe(&["--wait", "10s"], starts()).await.exit, Exit::Done);
        assert_eq!(probe(&[], starts()).await.exit, Exit::Failed);
        assert_eq!(probe(&["--wait", "0s"], starts()).await.exit, Exit::Failed);
    }

    #[tokio::test]
    async fn no_answer_is_told_in_one_line() {
        let silent = Script { delay: Duration::from_secs(60), ..Script::default() };
        let ran = probe(&["--timeout", "50ms"], silent).await;
        assert!(ran.err.ends_with(": no answer within 50ms\n"), "{}", ran.err);
        assert_eq!(ran.exit.code(), 2);

        let mut line = Line::<ProbeArgs>::try_parse_from(["probe"]).unwrap();
        line.args.server.server = Some(fake::closed_address().await);
        let mut err = Vec::new();
        let mut console = Console::pipes(tokio::io::sink(), &mut err);
        let exit = run(line.args, &mut console).await.unwrap();
        drop(console);
        let err = String::from_utf8(err).unwrap();
        assert!(err.ends_with(": connection refused\n"), "{err}");
        assert_eq!((exit.code(), err.lines().count()), (2, 1));
    }

    #[tokio::test]
    async fn json_names_the_status() {
        let ran = probe(&["--output", "json"], health(vec![("", vec![Serving])])).await;
        let value: serde_json::Value = serde_json::from_str(&ran.text()).unwrap();
        assert_eq!(value["status"], "SERVING");
    }
}
