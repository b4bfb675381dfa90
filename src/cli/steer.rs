//! Flags and output of the operators' commands.

use std::time::Duration;

use clap::Args;
use tonic::{Request, Response, Status};

use super::{
    access::AccessArgs,
    call::{Call, CallArgs},
    connect::{Address, Connection},
    console::{Console, GOOD, STRONG, WARN, paint},
    exit::Exit,
    failure::Failure,
    output::{Format, OutputArgs, counted, duration, json, plain, rough},
};
use crate::proto::{Phase, PoolState, SizeStats, admin_service_client::AdminServiceClient};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Flags for the operators' listener.
#[derive(Debug, Args)]
pub(super) struct OperatorArgs {
    /// Address of the operators' listener: HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH. It has no TLS
    /// of its own: https://, --tls, --ca and --cert are for a proxy in front of it.
    #[arg(long, value_name = "ADDR", env = "WATERWHEEL_OPS", default_value = "127.0.0.1:7071")]
    pub(super) ops: Address,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Flags of a command that changes something.
#[derive(Debug, Args)]
pub(super) struct SteerArgs {
    /// Reason, for the server's log.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub(super) reason: String,
    #[command(flatten)]
    pub(super) operator: OperatorArgs,
}

impl OperatorArgs {
    pub(super) fn format(&self) -> Format {
        self.output.format
    }

    pub(super) async fn begin(&self) -> Result<(Call, Connection), Failure> {
        let patient = CallArgs { deadline: Some(PATIENCE), ..CallArgs::none() };
        self.begin_with(patient).await
    }

    pub(super) async fn begin_with(&self, call: CallArgs) -> Result<(Call, Connection), Failure> {
        Call::begin(&self.ops, &self.access, call).await.map_err(|failure| failure.of_ops(&self.ops))
    }

    /// Makes one call, and returns its answer.
    pub(super) async fn ask<Q, A>(
        &self,
        request: Q,
        ask: impl AsyncFnOnce(AdminServiceClient<Connection>, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Failure> {
        let (call, connection) = self.begin().await?;
        let request = call.request(request);
        let answer = call.wait(ask(connection.admin(), request)).await;
        Ok(answer.map_err(|failure| failure.of_ops(&self.ops))?.into_inner())
    }
}

impl SteerArgs {
    /// Shows the pool that an answer holds.
    pub(super) async fn show(&self, pool: Option<PoolState>, console: &mut Console<'_>) -> Result<Exit, Failure> {
        let missing = || Failure::Incomplete { address: self.operator.ops.clone(), missing: "pool" };
        let pool = pool.ok_or_else(missing)?;
        let line = match self.operator.format() {
            Format::Text => text(&pool),
            Format::Json => json::message(&pool)?,
        };
        console.out.line(&line).await?;
        Ok(Exit::Done)
    }
}

/// One line: the state of the pool, its jobs and its size.
pub(super) fn text(pool: &PoolState) -> String {
    let state = match (pool.phase(), pool.paused) {
        (Phase::Serving, Some(paused)) => paint(WARN, format!("PAUSED for {}", rough(duration(Some(&paused))))),
        (Phase::Serving, None) => paint(GOOD, "SERVING"),
        (phase, _) => paint(WARN, phase.as_str_name().trim_start_matches("PHASE_")),
    };
    let name = paint(STRONG, format!("pool {}", plain(&pool.name)));
    format!(
        "{name}  {state}  {} queued  {} running  {}",
        pool.queued,
        pool.running,
        size(&pool.size.unwrap_or_default())
    )
}

/// Number of workers, and what decides it.
pub(super) fn size(size: &SizeStats) -> String {
    let SizeStats { min, max, workers, retiring, slowdown, held_back } = *size;
    let mut text = counted(workers as usize, "worker");
    if min < max {
        text.push_str(&format!(" of {min} to {max}"));
    }
    if retiring > 0 {
        text.push_str(&format!(", {retiring} more until their jobs end"));
    }
    if held_back {
        let slow = format!(", not growing: jobs take {slowdown:.1} times as long as before");
        text.push_str(&paint(WARN, slow));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(phase: Phase, paused: Option<&str>, size: SizeStats) -> PoolState {
        PoolState {
            name: "cpu".into(),
            phase: phase.into(),
            paused: paused.map(|paused| paused.parse().unwrap()),
            queued: 3,
            running: 2,
            size: Some(size),
        }
    }

    #[test]
    fn a_pool_is_one_line() {
        let fixed = SizeStats { min: 2, max: 2, workers: 2, slowdown: 1.0, ..SizeStats::default() };
        let plain = |state: &PoolState| anstream::adapter::strip_str(&text(state)).to_string();
        assert_eq!(
            plain(&pool(Phase::Serving, Some("12s"), fixed)),
            "pool cpu  PAUSED for 12s  3 queued  2 running  2 workers"
        );
        let one = SizeStats { min: 1, max: 1, workers: 1, retiring: 1, ..fixed };
        assert_eq!(
            plain(&pool(Phase::Draining, None, one)),
            "pool cpu  DRAINING  3 queued  2 running  1 worker, 1 more until their jobs end"
        );
        let slow = SizeStats { min: 2, max: 16, workers: 5, held_back: true, slowdown: 4.04, ..fixed };
        assert_eq!(
            plain(&pool(Phase::Serving, None, slow)),
            "pool cpu  SERVING  3 queued  2 running  5 workers of 2 to 16, not growing: jobs take 4.0 times as long as before"
        );
    }
}
