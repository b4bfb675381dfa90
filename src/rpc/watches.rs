//! Limits open watches: the server checks several times a second for each of them.

use std::{collections::HashMap, pin::Pin, sync::Arc};

use parking_lot::Mutex;
use tonic::{Request, Status};

use super::{context::Arrival, status};
use crate::phase::{Phase, PhaseCell};

/// Most open watches of one service on a connection.
const MAX_PER_CONNECTION: usize = 16;

/// The open watches, by connection. Clones share them.
#[derive(Debug, Clone)]
pub struct Watches {
    open: Arc<Mutex<HashMap<u64, usize>>>,
    max: usize,
    phase: PhaseCell,
}

/// The end of a watch. Dropping it frees its place.
pub(super) type WatchEnd = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Watches {
    /// At most `max` watches in all. They last until the process has stopped.
    #[must_use]
    pub fn new(phase: PhaseCell, max: usize) -> Self {
        Self { open: Arc::default(), max, phase }
    }

    /// Opens one more watch.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there are too many.
    pub(super) fn open<T>(&self, request: &Request<T>) -> Result<WatchEnd, Status> {
        let peer = request.extensions().get::<Arrival>().and_then(|arrival| arrival.peer.as_ref());
        let connection = peer.map_or(0, |peer| peer.connection);
        let mut open = self.open.lock();
        if open.values().sum::<usize>() >= self.max {
            return Err(status::watches_full("the server has too many open watches of this sort"));
        }
        let count = open.entry(connection).or_default();
        if *count >= MAX_PER_CONNECTION {
            return Err(status::watches_full("this connection has too many open watches of this sort"));
        }
        *count += 1;
        let (place, phase) = (Place { watches: self.clone(), connection }, self.phase.clone());
        Ok(Box::pin(async move {
            let _place = place;
            phase.reached(Phase::Stopped).await;
        }))
    }
}

struct Place {
    watches: Watches,
    connection: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.watches.open.lock();
        if let Some(count) = open.get_mut(&self.connection) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_in_all_and_each_that_ends_makes_room() {
        let watches = Watches::new(PhaseCell::default(), 2);
        let request = Request::new(());
        let mut open = vec![watches.open(&request).unwrap(), watches.open(&request).unwrap()];
        assert_eq!(watches.open(&request).err().unwrap().code(), tonic::Code::ResourceExhausted);
        open.pop();
        open.push(watches.open(&request).unwrap());
        drop(open);
        assert!(watches.open.lock().is_empty());
    }
}
