//! `Reload`: what would change, what did, or why nothing.

use tonic::Status;

use super::DrainControl;
use crate::{
    model::Reason,
    proto::{self, ReloadResponse},
    rpc::status::{self, failed_precondition},
};

/// A changed configuration key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingChange {
    /// Dotted key.
    pub key: String,
    /// The old value.
    pub old: String,
    /// The new value.
    pub new: String,
    /// Whether the change needs a restart.
    pub needs_restart: bool,
}

/// What a reload would do.
#[derive(Debug, Clone, PartialEq)]
pub struct DryRun {
    /// The changes.
    pub changes: Vec<SettingChange>,
    /// What they would have done to the last jobs of the pools that they concern.
    pub forecasts: Vec<proto::PoolForecast>,
}

/// Why a reload applied nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadFault {
    /// The service does not know the source of its configuration.
    #[error("this service has no configuration file to reload")]
    NoSource,
    /// The server is draining.
    #[error("the server is draining")]
    Draining,
    /// The configuration has faults. Empty lines separate them in the report.
    #[error("{}", in_one_line(.0))]
    Faulty(String),
    /// The code that reads it panicked.
    #[error("the reload panicked")]
    Panicked,
    /// Some of these changes need a restart.
    #[error("a restart is needed for {}", keys(.0))]
    NeedsRestart(Vec<SettingChange>),
}

/// Reads the configuration again, and applies the changes unless it is a dry run.
pub(super) async fn reload(control: &dyn DrainControl, dry_run: bool) -> Result<ReloadResponse, Status> {
    let done = async {
        if dry_run {
            return control.try_reload().await;
        }
        control.reload().await.map(|changes| DryRun { changes, forecasts: Vec::new() })
    };
    let mut forecasts = Vec::new();
    let (changes, faults, applied) = match done.await {
        Ok(done) => {
            forecasts = done.forecasts;
            (done.changes, String::new(), !dry_run)
        }
        Err(ReloadFault::NeedsRestart(changes)) => (changes, String::new(), false),
        Err(ReloadFault::Faulty(faults)) => (Vec::new(), faults, false),
        Err(fault) => return Err(status_of(&fault)),
    };
    let change = |SettingChange { key, old, new, needs_restart }| proto::SettingChange {
        key,
        old_value: old,
        new_value: new,
        needs_restart,
    };
    let changes = changes.into_iter().map(change).collect();
    Ok(ReloadResponse { applied, changes, faults, forecasts })
}

/// The status of a fault that the configuration does not explain.
pub(super) fn status_of(fault: &ReloadFault) -> Status {
    match fault {
        ReloadFault::NoSource => failed_precondition(Reason::NoConfig, fault.to_string()),
        ReloadFault::Draining => failed_precondition(Reason::Draining, fault.to_string()),
        ReloadFault::Panicked | ReloadFault::Faulty(_) | ReloadFault::NeedsRestart(_) => {
            status::internal("the reload or the forecast panicked")
        }
    }
}

/// Each fault with its position, joined in one line.
fn in_one_line(report: &str) -> String {
    let headline =
        |line: &str| ["error: ", "--> "].iter().find_map(|mark| line.trim().strip_prefix(mark).map(str::to_owned));
    let faults = report.split("\n\n").map(|fault| fault.lines().filter_map(headline).collect::<Vec<_>>().join(" at "));
    faults.collect::<Vec<_>>().join("; ")
}

fn keys(changes: &[SettingChange]) -> String {
    let keys = changes.iter().filter(|change| change.needs_restart).map(|change| change.key.as_str());
    keys.collect::<Vec<_>>().join(", ")
}
