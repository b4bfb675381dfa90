//! How many calls may stay open that tell of changes: the server looks several times a second for each of them.

use std::{collections::HashMap, pin::Pin, sync::Arc};

use parking_lot::Mutex;
use tonic::{Request, Status};

use super::{context::Arrival, status};
use crate::phase::{Phase, PhaseCell};

/// Most watches of one service that a connection has open at once.
const PER_CONNECTION: usize = 16;

/// The watches that are open, by their connection. Clones share them.
#[derive(Debug, Clone)]
pub struct Watches {
    open: Arc<Mutex<HashMap<u64, usize>>>,
    most: usize,
    phase: PhaseCell,
}

/// The end of a watch; its place is free once this is dropped.
pub(super) type Ended = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Watches {
    /// Room for `most` watches in all, which last until nothing runs any more.
    #[must_use]
    pub fn new(phase: PhaseCell, most: usize) -> Self {
        Self { open: Arc::default(), most, phase }
    }

    /// Takes the place of one more watch.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED where there is none.
    pub(super) fn open<T>(&self, request: &Request<T>) -> Result<Ended, Status> {
        let peer = request.extensions().get::<Arrival>().and_then(|arrival| arrival.peer.as_ref());
        let connection = peer.map_or(0, |peer| peer.connection);
        let mut open = self.open.lock();
        if open.values().sum::<usize>() >= self.most {
            return Err(status::watches_full("the server has as many watches of this sort as it may"));
        }
        let count = open.entry(connection).or_default();
        if *count >= PER_CONNECTION {
            return Err(status::watches_full("this connection has as many watches of this sort as it may"));
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
