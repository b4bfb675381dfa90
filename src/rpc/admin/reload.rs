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

/// A key of the configuration whose value differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingChange {
    /// Dotted key.
    pub key: String,
    /// The value before.
    pub old: String,
    /// The value that it is to have.
    pub new: String,
    /// Whether it is taken over by a start alone.
    pub needs_restart: bool,
}

/// Why nothing of a configuration was taken over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadFault {
    /// The service was not told where its configuration comes from.
    #[error("this service was started without a configuration that could be read again")]
    NoSource,
    /// It is too late for it.
    #[error("the server is draining")]
    Draining,
    /// The configuration has faults: the report of them, one after an empty line each.
    #[error("{}", in_one_line(.0))]
    Faulty(String),
    /// All that differs, some of which a start alone takes over.
    #[error("a restart is needed for {}", keys(.0))]
    NeedsRestart(Vec<SettingChange>),
}

/// `Reload`.
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

/// What each fault is, and where.
fn in_one_line(report: &str) -> String {
    let told =
        |line: &str| ["error: ", "--> "].iter().find_map(|mark| line.trim().strip_prefix(mark).map(str::to_owned));
    let faults = report.split("\n\n").map(|fault| fault.lines().filter_map(told).collect::<Vec<_>>().join(" at "));
    faults.collect::<Vec<_>>().join("; ")
}

fn keys(changes: &[SettingChange]) -> String {
    let keys = changes.iter().filter(|change| change.needs_restart).map(|change| change.key.as_str());
    keys.collect::<Vec<_>>().join(", ")
}
