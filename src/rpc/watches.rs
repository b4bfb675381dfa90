//! Limits the number of open watches, because the server checks several times per second for each of them.

use std::{collections::HashMap, pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt};
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::IntervalStream;
use tonic::{Request, Status};

use super::{context::Arrival, status};
use crate::{
    model::Reason,
    phase::{Phase, PhaseCell},
};

/// Maximum number of open watches of one service on a connection.
const MAX_PER_CONNECTION: usize = 16;

/// The open watches, by connection. Clones share them.
#[derive(Debug, Clone)]
pub struct Watches {
    open: Arc<Mutex<HashMap<u64, usize>>>,
    max: usize,
    phase: PhaseCell,
}

/// The future that ends a watch. Dropping it frees its watch.
pub(super) type WatchEnd = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Watches {
    /// At most `max` watches in total. They last until the process has stopped.
    #[must_use]
    pub fn new(phase: PhaseCell, max: usize) -> Self {
        Self { open: Arc::default(), max, phase }
    }

    /// Opens one more watch.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there are too many.
    pub(super) fn open<T>(&self, request: &Request<T>) -> Result<WatchEnd, Status> {
        let connection = request.extensions().get().map_or(0, |arrival: &Arrival| arrival.peer.connection);
        let mut open = self.open.lock();
        if open.values().sum::<usize>() >= self.max {
            return Err(status::saying(Reason::WatchesFull, "the server has too many open watches of this service"));
        }
        let count = open.entry(connection).or_default();
        if *count >= MAX_PER_CONNECTION {
            return Err(status::saying(
                Reason::WatchesFull,
                "this connection has too many open watches of this service",
            ));
        }
        *count += 1;
        let (watch, phase) = (OpenWatch { watches: self.clone(), connection }, self.phase.clone());
        Ok(Box::pin(async move {
            let _open = watch;
            phase.reached(Phase::Stopped).await;
        }))
    }
}

/// Ticks now and at each interval. A slow reader gets fewer ticks, but no late ones.
pub(super) fn ticks(every: Duration) -> impl Stream<Item = ()> + Send {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    IntervalStream::new(ticks).map(|_| ())
}

struct OpenWatch {
    watches: Watches,
    connection: u64,
}

impl Drop for OpenWatch {
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
