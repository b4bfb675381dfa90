//! Opens the store of detached jobs, and starts what runs them.

use std::{io, sync::Arc};

use tokio::runtime::Builder;

use crate::{
    config::Config,
    detached::{Detached, KindPolicies, wall_clock},
    net::Place,
    pool::Pools,
    store::{JobStore, MemoryStore, StoreError, open_postgres, open_sqlite},
    task::{Tasks, spawn_thread},
};

/// The detached jobs of a process; `None` if it keeps none. It blocks while a file or a database is
/// opened.
pub(super) fn open(config: &Config, pools: &Pools) -> Result<Option<Detached>, StoreError> {
    let store: Arc<dyn JobStore> = match (config.store.sqlite(), config.store.postgres()) {
        (_, Some(options)) => open_postgres(&options)?,
        (Some(options), _) => open_sqlite(&options, wall_clock())?,
        _ if config.store.memory => Arc::new(MemoryStore::new(config.store.bounds(), wall_clock())),
        _ => return Ok(None),
    };
    let detached = Detached::new(store, wall_clock(), pools.clone(), policies(config));
    detached.set_schedules(config.schedules.clone());
    Ok(Some(detached))
}

pub(super) fn policies(config: &Config) -> KindPolicies {
    config.kinds.iter().map(|kind| (kind.name.clone(), kind.policy)).collect()
}

/// Runs detached jobs where connections are served: on a thread of their own, or here.
pub(super) fn run(detached: Detached, place: Place, tasks: &Tasks) -> io::Result<()> {
    if place == Place::Here {
        tasks.spawn(detached.run());
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    spawn_thread("detached".to_owned(), move || runtime.block_on(detached.run()))?;
    Ok(())
}
