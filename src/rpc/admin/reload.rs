//! `Reload`. The reload itself is in `src/app/reload.rs`.

use std::sync::Arc;

use tonic::{Response, Status};
use tracing::Span;

use super::Admin;
use crate::{
    model::Reason,
    proto::{self, ReloadRequest, ReloadResponse},
    rpc::status::{self, failed_precondition},
    task::off_thread,
};

/// A changed key of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingChange {
    /// Dotted key.
    pub key: String,
    /// The old value.
    pub old: String,
    /// The new value.
    pub new: String,
    /// Whether only a restart applies it.
    pub needs_restart: bool,
}

/// Why no change was applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadFault {
    /// The service does not know where its configuration comes from.
    #[error("this service has no configuration file to reload")]
    NoSource,
    /// The server is draining.
    #[error("the server is draining")]
    Draining,
    /// The configuration has faults. Their report separates them by empty lines.
    #[error("{}", in_one_line(.0))]
    Faulty(String),
    /// All changes, some of which need a restart.
    #[error("a restart is needed for {}", keys(.0))]
    NeedsRestart(Vec<SettingChange>),
}

/// Reloads the configuration.
pub(super) async fn reload(admin: &Admin, request: ReloadRequest) -> Result<Response<ReloadResponse>, Status> {
    let ReloadRequest { dry_run, reason: _ } = request;
    let control = Arc::clone(&admin.control);
    let span = Span::current();
    let reloaded = off_thread(move || span.in_scope(|| control.reload(dry_run))).await;
    let (changes, faults, applied) = match reloaded.map_err(|_| status::internal("the reload panicked"))? {
        Ok(changes) => (changes, String::new(), !dry_run),
        Err(ReloadFault::NeedsRestart(changes)) => (changes, String::new(), false),
        Err(ReloadFault::Faulty(faults)) => (Vec::new(), faults, false),
        Err(fault @ ReloadFault::NoSource) => return Err(failed_precondition(Reason::NoConfig, fault.to_string())),
        Err(fault @ ReloadFault::Draining) => return Err(failed_precondition(Reason::Draining, fault.to_string())),
    };
    let change = |SettingChange { key, old, new, needs_restart }| proto::SettingChange {
        key,
        old_value: old,
        new_value: new,
        needs_restart,
    };
    let changes = changes.into_iter().map(change).collect();
    Ok(Response::new(ReloadResponse { applied, changes, faults }))
}

/// Each fault and its place, in one line.
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
