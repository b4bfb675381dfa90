//! Reloads the configuration while the process serves. `src/reload.rs` reloads certificates and keys.

use std::{path::PathBuf, time::Duration};

use parking_lot::Mutex;
use tracing::{info, warn};

use super::{
    Control, OwnKind,
    assemble::{self, Shared},
    services,
};
use crate::{
    auth::Quotas,
    config::{self, Faults, Loaded},
    detached::Detached,
    phase::Phase,
    pool::Pools,
    reload::{Seen, keep_fresh, read},
    rpc::{AccessControl, ReloadFault, SettingChange},
    telemetry::LogControl,
};

/// Reads the configuration again.
pub(super) type Load = Box<dyn Fn() -> Result<Loaded, Faults> + Send + Sync>;

/// The current configuration, and the parts of the process that a reload changes.
pub(super) struct Reloading {
    pub(super) current: Mutex<Loaded>,
    pub(super) load: Load,
    pub(super) own: Vec<OwnKind>,
    pub(super) access: AccessControl,
    pub(super) log: LogControl,
}

impl Control {
    /// Reads the configuration again, and applies all changes or none. The result is logged. May block while reading
    /// files. Does nothing unless [`App::reload_by`](super::App::reload_by) enabled it.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    pub fn reload(&self) -> Result<Vec<SettingChange>, ReloadFault> {
        let reloaded = self.read_again(false);
        reloaded.inspect_err(|fault| warn!(cause = %fault, "the configuration was not reloaded; nothing was changed"))
    }

    /// The same, but a dry run changes nothing and is not logged.
    pub(super) fn read_again(&self, is_dry_run: bool) -> Result<Vec<SettingChange>, ReloadFault> {
        let Some(reloading) = self.reloading() else { return Err(ReloadFault::NoSource) };
        if self.phase().get() >= Phase::Draining {
            return Err(ReloadFault::Draining);
        }
        reloading.reload(self.pools(), self.detached(), is_dry_run)
    }
}

impl Reloading {
    fn reload(
        &self,
        pools: &Pools,
        detached: Option<&Detached>,
        is_dry_run: bool,
    ) -> Result<Vec<SettingChange>, ReloadFault> {
        let mut current = self.current.lock();
        let new = (self.load)().map_err(|faults| ReloadFault::Faulty(faults.to_string()))?;
        let changes = current.changes(&new);
        if changes.iter().any(|change| change.needs_restart) {
            return Err(ReloadFault::NeedsRestart(changes));
        }
        let shared = Shared::of(pools.all());
        let make = |kind: &config::Kind| {
            let is_kept = current.config.kinds.contains(kind);
            let live = || pools.get(&kind.pool).and_then(|pool| pool.kind(&kind.name)).cloned();
            live().filter(|_| is_kept).map_or_else(|| assemble::make(kind, &shared), Ok)
        };
        let kinds = assemble::kinds(&new.config, &self.own, make);
        let kinds = kinds.map_err(|error| ReloadFault::Faulty(format!("error: {error}")))?;
        if is_dry_run {
            return Ok(changes);
        }
        // Logged with the old filter, because the new one may suppress these lines.
        for SettingChange { key, old, new, .. } in &changes {
            info!(key, "{key}: {old} → {new}");
        }
        info!(changes = changes.len(), "the configuration was reloaded");
        if changes.is_empty() {
            return Ok(changes);
        }
        self.log.set(&new.config.telemetry.log).map_err(|error| ReloadFault::Faulty(format!("error: {error}")))?;
        for (config::Pool { name, settings }, kinds) in new.config.pools.iter().zip(kinds) {
            pools.get(name).expect("a new pool needs a restart").reconfigure(settings.clone(), kinds);
        }
        pools.refresh();
        if let Some(detached) = detached {
            detached.set_policies(services::policies(&new.config));
            if new.config.schedules != current.config.schedules {
                detached.set_schedules(new.config.schedules.clone());
            }
        }
        if let (Some(authenticator), Some(auth)) = (&self.access.authenticator, &new.config.auth) {
            authenticator.set_rules(&auth.rules);
        }
        if new.config.quota != current.config.quota {
            self.access.quotas.store(Quotas::new(&new.config.quota).map(Into::into));
        }
        *current = new;
        Ok(changes)
    }
}

/// Time between two checks of a file.
const CHECK_INTERVAL: Duration = Duration::from_millis(300);
/// Largest file that is checked, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// Reloads the configuration whenever the contents of the file change.
pub(super) async fn watch(path: PathBuf, control: Control) {
    let seen = Seen::new(&[read(&path, MAX_FILE)]);
    let look = move || {
        if seen.is_new(&[read(&path, MAX_FILE)]) {
            // The result is in the log.
            let _ = control.reload();
        }
    };
    keep_fresh(CHECK_INTERVAL, look).await;
}
