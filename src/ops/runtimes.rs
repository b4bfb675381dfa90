//! The runtimes of the process, for their metrics.

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeMetrics};

/// The runtimes of the process, by name. Clones share them.
#[derive(Clone, Default)]
pub struct Runtimes(Arc<Mutex<Vec<(String, Handle)>>>);

impl Runtimes {
    /// Adds the current runtime, if there is one.
    pub fn add_current(&self, name: String) {
        if let Ok(handle) = Handle::try_current() {
            self.0.lock().push((name, handle));
        }
    }

    /// The figures of each runtime, by name.
    pub(super) fn read(&self) -> Vec<(String, RuntimeMetrics)> {
        let mut all: Vec<_> = self.0.lock().iter().map(|(name, handle)| (name.clone(), handle.metrics())).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

impl fmt::Debug for Runtimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.lock().iter().map(|(name, _)| name)).finish()
    }
}
