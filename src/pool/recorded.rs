//! What a replay of a pool's last jobs needs to know of it.

use std::{collections::BTreeMap, num::NonZeroU32, sync::Arc};

use super::{Pool, Settings, recorder::TenantJobs};
use crate::{
    model::RecordedJob,
    scheduler::{Bounds, Core},
};

impl Pool {
    /// The last jobs in order of arrival.
    pub(crate) fn recorded(&self) -> Vec<RecordedJob> {
        self.inner().recorder.jobs()
    }

    /// The names of the kinds by their numbers in the recorded jobs.
    pub(crate) fn recorded_kinds(&self) -> Vec<Arc<str>> {
        self.inner().all_kinds().map(|(_, kind)| Arc::clone(kind.name())).collect()
    }

    /// Counts the jobs of these tenants separately from now on, and forgets the counts of those that it does not name.
    pub(crate) fn name_tenants(&self, tenants: &[&str]) {
        self.inner().recorder.name_tenants(tenants);
    }

    /// The jobs of each of these tenants, and of all others, with `None`; empty if there are none.
    pub(crate) fn tenants(&self) -> BTreeMap<Option<Box<str>>, TenantJobs> {
        self.inner().recorder.tenants()
    }

    /// The number of servers that divide limits.
    pub(crate) fn servers(&self) -> NonZeroU32 {
        self.inner().read(Core::servers)
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.inner().settings
    }

    /// The number of workers that it may have now, and under `new` settings; of attached workers, how many it has.
    pub(crate) fn bounds_under(&self, new: &Settings) -> [Bounds; 2] {
        let inner = self.inner();
        if inner.is_remote() {
            let workers = inner.read(Core::configured_workers);
            return [Bounds { min: workers, max: workers }; 2];
        }
        let now = inner.read(Core::bounds);
        [now, if inner.settings.is_sized_like(new) { now } else { new.bounds(false) }]
    }
}
