//! Reloads the configuration while the process serves. `src/reload.rs` reloads certificates and keys.

use std::{path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::{Span, info, warn};

use super::{
    Control, OwnKind,
    assemble::{self, Runners},
    forecast::{advice, changes, forecasts},
    services,
};
use crate::{
    auth::Quotas,
    config::{self, Faults, Loaded},
    detached::Detached,
    handler::Kind,
    phase::Phase,
    pool::{Pool, Pools},
    proto::PoolForecast,
    reload::{Seen, keep_fresh, read},
    rpc::{AccessControl, DryRun, ReloadFault, SettingChange},
    task::off_thread,
    telemetry::LogControl,
};

/// Reads the configuration again.
pub(super) type Load = Box<dyn Fn() -> Result<Loaded, Faults> + Send + Sync>;

#[expect(clippy::disallowed_types, reason = "held while new programs start, which only other reloads wait for")]
type Turn = tokio::sync::Mutex<()>;

/// The current configuration, and the parts of the process that a reload changes.
pub(super) struct Reloading {
    /// Reloads come one after the other.
    pub(super) turn: Turn,
    pub(super) current: Mutex<Loaded>,
    pub(super) load: Load,
    pub(super) own: Vec<OwnKind>,
    pub(super) access: AccessControl,
    pub(super) log: LogControl,
}

/// A configuration that was read again, and may be applied.
struct Next {
    new: Loaded,
    changes: Vec<SettingChange>,
    /// The kinds of each pool.
    kinds: Vec<Vec<Kind>>,
}

impl Control {
    /// Reads the configuration again, and applies all changes or none. The result is logged. Each program that is new
    /// or changed must first start one process; meanwhile the old ones go on. Does nothing unless
    /// [`App::reload_by`](super::App::reload_by) enabled it. Cancel safe.
    ///
    /// # Errors
    /// The reason why nothing was changed.
    pub async fn reload(&self) -> Result<Vec<SettingChange>, ReloadFault> {
        let reloaded = async {
            let Some(reloading) = self.reloading() else { return Err(ReloadFault::NoSource) };
            let _turn = reloading.turn.lock().await;
            reloading.apply(self.read_again().await?, self.pools(), self.detached())
        };
        reloaded
            .await
            .inspect_err(|fault| warn!(cause = %fault, "the configuration was not reloaded; nothing was changed"))
    }

    /// What [`reload`](Self::reload) would change, and what that would have done to the last jobs. It is not logged.
    pub(super) async fn try_reload(&self) -> Result<DryRun, ReloadFault> {
        let Some(reloading) = self.reloading() else { return Err(ReloadFault::NoSource) };
        let turn = reloading.turn.lock().await;
        let Next { new, changes: changed, kinds } = self.read_again().await?;
        let changes = changes(self.pools(), &new.config.pools, &kinds);
        drop((kinds, turn));
        Ok(DryRun { changes: changed, forecasts: self.unless_draining(forecasts(changes)).await? })
    }

    /// What other numbers of workers would have done to the last jobs of `pools`.
    pub(super) async fn advise(&self, pools: Vec<Pool>) -> Result<Vec<PoolForecast>, ReloadFault> {
        self.unless_draining(forecasts(advice(&pools))).await
    }

    /// Ends the replays when the drain begins.
    async fn unless_draining(
        &self,
        replays: impl Future<Output = Option<Vec<PoolForecast>>>,
    ) -> Result<Vec<PoolForecast>, ReloadFault> {
        tokio::select! {
            biased;
            () = self.phase().reached(Phase::Draining) => Err(ReloadFault::Draining),
            made = replays => made.ok_or(ReloadFault::Panicked),
        }
    }

    async fn read_again(&self) -> Result<Next, ReloadFault> {
        if self.phase().get() >= Phase::Draining {
            return Err(ReloadFault::Draining);
        }
        let (control, span) = (self.clone(), Span::current());
        let read = move || span.in_scope(|| control.reloading().map(|it| it.read(control.pools())));
        let next = off_thread(read).await.ok().flatten().ok_or(ReloadFault::Panicked)??;
        tokio::select! {
            biased;
            () = self.phase().reached(Phase::Draining) => Err(ReloadFault::Draining),
            started = start_programs(self.pools(), &next) => started.map(|()| next).map_err(ReloadFault::Faulty),
        }
    }
}

/// Starts a process of each program that is new. Dropping `next` kills them.
async fn start_programs(pools: &Pools, next: &Next) -> Result<(), String> {
    for (config::Pool { name, .. }, kinds) in next.new.config.pools.iter().zip(&next.kinds) {
        pools.get(name).expect(KNOWN).try_start(kinds).await.map_err(|fault| {
            format!("error: {fault}\n  help: correct the program or its command; `waterwheel worker test` runs it")
        })?;
    }
    Ok(())
}

const KNOWN: &str = "a new pool needs a restart";

impl Reloading {
    fn read(&self, pools: &Pools) -> Result<Next, ReloadFault> {
        let current = self.current.lock();
        let new = (self.load)().map_err(|faults| ReloadFault::Faulty(faults.to_string()))?;
        let changes = current.changes(&new);
        if changes.iter().any(|change| change.needs_restart) {
            return Err(ReloadFault::NeedsRestart(changes));
        }
        let runners = Runners::of(pools.all());
        let make = |kind: &config::Kind| {
            let is_kept = current.config.kinds.contains(kind);
            let live = || pools.get(&kind.pool).and_then(|pool| pool.kind(&kind.name)).cloned();
            live().filter(|_| is_kept).map_or_else(|| assemble::make(kind, &runners), Ok)
        };
        let kinds = assemble::kinds(&new.config, &self.own, make);
        let kinds = kinds.map_err(|error| ReloadFault::Faulty(format!("error: {error}")))?;
        Ok(Next { new, changes, kinds })
    }

    fn apply(
        &self,
        Next { new, changes, kinds }: Next,
        pools: &Pools,
        detached: Option<&Detached>,
    ) -> Result<Vec<SettingChange>, ReloadFault> {
        let mut current = self.current.lock();
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
            let pool = pools.get(name).expect(KNOWN);
            pool.reconfigure(settings.clone(), kinds);
            pool.name_tenants(&assemble::tenants(&new.config));
        }
        pools.refresh();
        if let Some(detached) = detached {
            detached.set_policies(services::policies(&new.config));
            detached.store().set_quotas(services::stored_quotas(&new.config));
            detached.store().set_limits(services::stored_limits(&new.config));
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
    let changed = Arc::new(Notify::new());
    let noticed = Arc::clone(&changed);
    let look = move || {
        if seen.is_new(&[read(&path, MAX_FILE)]) {
            noticed.notify_one();
        }
    };
    let reload = async {
        loop {
            changed.notified().await;
            // The result is in the log.
            let _ = control.reload().await;
        }
    };
    tokio::join!(keep_fresh(CHECK_INTERVAL, look), reload);
}
