//! Pools that operators hold back on all servers of the store, also after a restart.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tokio::{
    sync::{Semaphore, watch},
    time::sleep,
};
use tracing::info;

use super::{Detached, Inner, dispatch::CLAIM_INTERVAL};
use crate::{
    pool::{Pool, Suspension},
    store::{StoreError, Suspended},
};

/// What is known of the suspended pools of the store.
pub(super) struct Suspensions {
    /// One permit, held from an operation of the store until its effect here.
    turn: Semaphore,
    /// What the last look found. Only a change of it is carried out, so a pool that was suspended while the store was
    /// away stays as it is.
    known: ArcSwap<BTreeMap<String, Suspended>>,
    /// Whether there was a look.
    has_looked: watch::Sender<bool>,
}

impl Default for Suspensions {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), known: ArcSwap::default(), has_looked: watch::Sender::new(false) }
    }
}

impl Detached {
    /// Tells all servers of the store that an operator has suspended a pool, or with `None` resumed it. On this server,
    /// that is done already.
    ///
    /// # Errors
    /// The store has not noted it.
    pub async fn suspend(&self, pool: &Pool, suspended: Option<Suspended>) -> Result<(), StoreError> {
        let Inner { store, suspensions, .. } = &*self.0;
        let _turn = suspensions.turn.acquire().await;
        self.0.note(store.suspend(pool.name(), suspended).await)?;
        suspensions.known.store(Arc::new(self.0.note(store.suspended().await)?));
        Ok(())
    }

    /// Who suspended a pool on all servers, and why; `None` if none did.
    pub fn suspended(&self, pool: &str) -> Option<Suspended> {
        self.0.suspensions.known.load().get(pool).cloned()
    }

    /// How long a pool has been suspended on all servers.
    pub fn suspended_for(&self, pool: &str) -> Option<Duration> {
        self.suspended(pool).map(|suspended| (self.0.clock)().since(suspended.since))
    }

    /// Returns once the pools are suspended that were so before the start. Cancel safe.
    pub async fn knows_suspended(&self) {
        // The sender lives as long as this.
        let _ = self.0.suspensions.has_looked.subscribe().wait_for(|has_looked| *has_looked).await;
    }
}

impl Inner {
    /// Looks until the store answers. No job may start before.
    pub(super) async fn first_look(&self) {
        while !*self.suspensions.has_looked.borrow() && !self.stop.is_cancelled() {
            // The first calls find divided limits, too.
            self.session().await;
            self.share_demand().await;
            self.look_at_suspended().await;
            if !*self.suspensions.has_looked.borrow() {
                sleep(CLAIM_INTERVAL).await;
            }
        }
    }

    /// Carries out what operators have suspended and resumed on other servers since the last look.
    pub(super) async fn look_at_suspended(&self) {
        let Suspensions { turn, known, has_looked } = &self.suspensions;
        let _turn = turn.acquire().await;
        let Ok(found) = self.note(self.store.suspended().await) else { return };
        let last = known.load();
        for pool in self.pools.all() {
            let [old, new] = [&**last, &found].map(|all| all.get(&**pool.name()));
            if old.map(|old| old.is_shut) != new.map(|new| new.is_shut) {
                carry_out(pool, new);
            }
        }
        known.store(Arc::new(found));
        has_looked.send_replace(true);
    }
}

fn carry_out(pool: &Pool, suspended: Option<&Suspended>) {
    let name = pool.name();
    match suspended {
        Some(Suspended { is_shut, principal, reason, .. }) => {
            if *is_shut {
                pool.shut();
            } else {
                if pool.suspension() == Suspension::Shut {
                    pool.resume();
                }
                pool.pause();
            }
            info!(pool = %name, principal, reason, is_shut, "the pool is suspended on all servers of the store");
        }
        None => {
            pool.resume();
            info!(pool = %name, "the pool was resumed on all servers of the store");
        }
    }
}
