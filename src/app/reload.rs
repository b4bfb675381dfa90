//! Reload of the configuration while the process serves. Certificates and keys reload by `src/reload.rs`.

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tracing::{info, warn};

use super::{
    Control, OwnKind, assemble,
    assemble::{Setup, Shared},
    store,
};
use crate::{
    auth::Quotas,
    config::{self, Faults, Loaded},
    detached::Detached,
    file::NamedFile,
    phase::Phase,
    pool::Pools,
    reload::{Contents, Reload, Seen, keep_fresh},
    rpc::{Guard, ReloadFault, SettingChange},
    telemetry::LogControl,
};

/// Reads the configuration again.
pub(super) type Load = Box<dyn Fn() -> Result<Loaded, Faults> + Send + Sync>;

/// The loaded configuration, and everything that a reload changes.
pub(super) struct Reloading {
    pub(super) current: Mutex<Loaded>,
    pub(super) load: Load,
    pub(super) own: Vec<OwnKind>,
    pub(super) guard: Guard,
    pub(super) log: LogControl,
}

impl Control {
    /// Reads the configuration again, and applies all changes or none. The result is logged. It may block while it
    /// reads files, and does nothing unless [`App::reload_by`](super::App::reload_by) enabled it.
    ///
    /// # Errors
    /// Why nothing was changed.
    pub fn reload(&self) -> Result<Vec<SettingChange>, ReloadFault> {
        let reloaded = self.read_again(false);
        reloaded
            .inspect_err(|fault| warn!(cause = %fault, "the configuration was not reloaded, and nothing was changed"))
    }

    /// The same; a dry run changes nothing, and is not logged.
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
        let setups = assemble::setups(&new.config, &self.own, make);
        let setups = setups.map_err(|error| ReloadFault::Faulty(format!("error: {error}")))?;
        if is_dry_run {
            return Ok(changes);
        }
        // Logged with the old filter: the new one may suppress these lines.
        for SettingChange { key, old, new, .. } in &changes {
            info!(key, "{key}: {old} → {new}");
        }
        info!(changes = changes.len(), "the configuration was reloaded");
        if changes.is_empty() {
            return Ok(changes);
        }
        self.log.set(&new.config.telemetry.log).map_err(|error| ReloadFault::Faulty(format!("error: {error}")))?;
        for Setup { name, settings, kinds } in setups {
            pools.get(&name).expect("a new pool needs a restart").reconfigure(settings, kinds);
        }
        pools.refresh();
        if let Some(detached) = detached {
            detached.set_policies(store::policies(&new.config));
            if new.config.schedules != current.config.schedules {
                detached.set_schedules(new.config.schedules.clone());
            }
        }
        if let (Some(gate), Some(auth)) = (&self.guard.gate, &new.config.auth) {
            gate.set_rules(&auth.rules);
        }
        if new.config.quota != current.config.quota {
            self.guard.quotas.store(Quotas::new(&new.config.quota).map(Into::into));
        }
        *current = new;
        Ok(changes)
    }
}

/// Time between two looks at a file.
const LOOK: Duration = Duration::from_millis(300);
/// Most bytes of a file that is looked at.
const MAX_FILE: u64 = 64 << 20;

/// Reloads the configuration whenever the contents of the file change.
pub(super) async fn watch(path: PathBuf, control: Control) {
    let file = NamedFile { what: "worker", path, max: MAX_FILE };
    let seen = Seen::new(&[&file.read()]);
    keep_fresh(Arc::new(Watched { file, seen, control }), LOOK).await;
}

struct Watched {
    file: NamedFile,
    seen: Seen,
    control: Control,
}

impl Reload for Watched {
    fn files(&self) -> Vec<NamedFile> {
        vec![self.file.clone()]
    }

    fn reload(&self, contents: Vec<Contents>) {
        if self.seen.is_new(&contents.iter().collect::<Vec<_>>()) {
            // What became of it is in the log.
            let _ = self.control.reload();
        }
    }
}
