//! Opens the store of detached jobs, and starts what runs them.

use std::{io, sync::Arc};

use tokio::runtime::Builder;

use crate::{
    config::{self, Config},
    detached::{Detached, KindPolicies, wall_clock},
    net::Place,
    pool::Pools,
    store::{Bounds, JobStore, MemoryStore, SqliteOptions, StoreError, open_sqlite},
    task::{Tasks, spawn_thread},
};

/// The detached jobs of a process; `None` if it keeps none. It blocks while a file is opened.
pub(super) fn open(config: &Config, pools: &Pools) -> Result<Option<Detached>, StoreError> {
    let config::Store { path, memory, max_jobs, max_bytes } = &config.store;
    let bounds = Bounds { max_jobs: *max_jobs, max_bytes: *max_bytes };
    let store: Arc<dyn JobStore> = match path {
        Some(path) => open_sqlite(&SqliteOptions { bounds, ..SqliteOptions::new(path) }, wall_clock())?,
        None if *memory => Arc::new(MemoryStore::new(bounds, wall_clock())),
        None => return Ok(None),
    };
    Ok(Some(Detached::new(store, pools.clone(), policies(config))))
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
