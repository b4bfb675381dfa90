//! How many jobs want the workers of a pool, on the other servers of the store and in the store itself.

use std::num::NonZeroU32;

use super::{Detached, Inner};
use crate::{
    pool::Pool,
    store::{Demand, StoreError},
};

impl Detached {
    /// Ready jobs of the pool's kinds, as last counted, and the jobs in the pools of that name on other servers.
    ///
    /// # Errors
    /// The failure of the store.
    pub(crate) fn demand(&self, pool: &Pool) -> Result<u64, StoreError> {
        let unknown =
            || self.away().map_or(StoreError::Unavailable("it was not asked yet".to_owned()), |away| (*away).clone());
        let depths = self.depths().ok_or_else(unknown)?;
        let elsewhere = self.0.elsewhere.lock().clone().ok_or_else(unknown)?;
        let is_of_pool = |kind: &str| pool.kind_names().any(|(_, name)| **name == *kind);
        let ready = depths.iter().filter(|(kind, _)| is_of_pool(kind)).map(|(_, depth)| depth.ready);
        let jobs = ready.chain(elsewhere.iter().filter_map(|demand| demand.get(&**pool.name()).copied()));
        Ok(jobs.fold(0, u64::saturating_add))
    }
}

impl Inner {
    /// Tells the other servers how many jobs this one has, and learns theirs. While it does not learn them, it keeps
    /// its part of the limits: the others keep theirs.
    pub(super) async fn share_demand(&self) {
        let Some(session) = self.leases.session() else { return };
        let own: Demand = self.pools.all().iter().map(|pool| (pool.name().to_string(), pool.demand())).collect();
        let others = self.note(self.store.share_demand(session, own).await);
        if let Ok(others) = &others {
            let servers = u32::try_from(others.len()).unwrap_or(u32::MAX).saturating_add(1);
            let servers = NonZeroU32::new(servers).expect("this server is one");
            self.pools.all().iter().for_each(|pool| pool.divide_limits(servers));
        }
        *self.elsewhere.lock() = others.ok();
    }
}
