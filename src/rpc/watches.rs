//! A watch is a server stream that reports changes: of health, of the stats or of the load. Their number is limited,
//! because the server checks several times per second for each of them.
//!
//! The more are open, the fewer each tenant may add, so that others find room (Choudhury and Hahne, "Dynamic queue
//! length thresholds for shared-memory packet switches", 1998).

use std::{collections::HashMap, future::ready, hash::Hash, pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_stream::wrappers::IntervalStream;
use tonic::{Request, Status};

use super::{
    AccessControl,
    context::{Arrival, REQUEST_ID, request_id},
    service_state::ResponseStream,
    status,
};
use crate::{
    auth::Caller,
    model::Reason,
    phase::{Phase, PhaseCell},
};

/// Maximum number of open watches of one service on a connection.
const MAX_PER_CONNECTION: usize = 16;

/// The open watches. Clones share them.
#[derive(Clone)]
pub struct Watches {
    open: Arc<Mutex<Open>>,
    max: usize,
    phase: PhaseCell,
    access: AccessControl,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    connections: HashMap<u64, usize>,
    /// By tenant, if callers are authenticated.
    tenants: HashMap<String, usize>,
}

/// The future that ends a watch: when the process has stopped, or with a status when the credentials of its caller have
/// expired. Dropping it frees its watch.
pub(super) type WatchEnd = Pin<Box<dyn Future<Output = Option<Status>> + Send>>;

impl Watches {
    /// At most `max` watches in total. They last until the process has stopped, or the credentials of their callers
    /// have expired.
    pub fn new(phase: PhaseCell, max: usize, access: AccessControl) -> Self {
        Self { open: Arc::default(), max, phase, access }
    }

    /// Opens one more watch.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there are too many.
    pub(super) fn open<T>(&self, request: &Request<T>) -> Result<WatchEnd, Status> {
        let arrival = request.extensions().get::<Arrival>();
        let caller = arrival.and_then(|arrival| arrival.caller.clone());
        let connection = arrival.map_or(0, |arrival| arrival.peer.connection);
        let watch = self.count(connection, caller.as_deref().map(Caller::tenant))?;
        let (phase, access) = (self.phase.clone(), self.access.clone());
        let id = request_id(request.metadata().as_ref().get(REQUEST_ID));
        Ok(Box::pin(async move {
            let _open = watch;
            tokio::select! {
                () = phase.reached(Phase::Stopped) => None,
                denial = access.expired(caller.as_deref()) => Some(status::denied(&denial, &id, None)),
            }
        }))
    }

    fn count(&self, connection: u64, tenant: Option<&str>) -> Result<OpenWatch, Status> {
        let full = |message| Err(status::saying(Reason::WatchesFull, message));
        let mut open = self.open.lock();
        if open.all >= self.max {
            return full("the server has too many open watches of this service");
        }
        if open.connections.get(&connection).is_some_and(|count| *count >= MAX_PER_CONNECTION) {
            return full("this connection has too many open watches of this service");
        }
        let own = tenant.and_then(|tenant| open.tenants.get(tenant)).copied().unwrap_or_default();
        if tenant.is_some() && own >= self.max - open.all {
            return full("the tenant has its share of the open watches of this service");
        }
        open.all += 1;
        *open.connections.entry(connection).or_default() += 1;
        let tenant = tenant.map(str::to_owned);
        if let Some(tenant) = &tenant {
            *open.tenants.entry(tenant.clone()).or_default() += 1;
        }
        Ok(OpenWatch { watches: Arc::clone(&self.open), connection, tenant })
    }
}

/// The items of a watch until its end, and the status with which it ends.
pub(super) fn until<T: Send + 'static>(
    end: WatchEnd,
    items: impl Stream<Item = Result<T, Status>> + Send + 'static,
) -> ResponseStream<T> {
    // `None` ends the watch silently, and `Some(Err)` is its last item.
    let end = stream::once(end).map(|status| status.map(Err));
    let items = stream::select(end, items.map(Some));
    Box::pin(items.take_while(|item| ready(item.is_some())).filter_map(ready))
}

/// Ticks now and at each interval. A slow reader gets fewer ticks, but no late ones.
pub(super) fn ticks(every: Duration) -> impl Stream<Item = ()> + Send {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    IntervalStream::new(ticks).map(|_| ())
}

struct OpenWatch {
    watches: Arc<Mutex<Open>>,
    connection: u64,
    tenant: Option<String>,
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut open = self.watches.lock();
        open.all -= 1;
        count_down(&mut open.connections, &self.connection);
        if let Some(tenant) = &self.tenant {
            count_down(&mut open.tenants, tenant);
        }
    }
}

fn count_down<K: Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watches(max: usize) -> Watches {
        Watches::new(PhaseCell::default(), max, AccessControl::default())
    }

    #[test]
    fn there_are_so_many_in_all_and_each_that_ends_makes_room() {
        let watches = watches(2);
        let request = Request::new(());
        let mut open = vec![watches.open(&request).unwrap(), watches.open(&request).unwrap()];
        assert_eq!(watches.open(&request).err().unwrap().code(), tonic::Code::ResourceExhausted);
        open.pop();
        open.push(watches.open(&request).unwrap());
        drop(open);
        let open = watches.open.lock();
        assert_eq!((open.all, open.connections.len()), (0, 0));
    }

    #[test]
    fn a_tenant_leaves_watches_for_others() {
        let watches = watches(64);
        let fill = |tenant: &str, first: u64| -> Vec<_> {
            (first..first + 64).filter_map(|connection| watches.count(connection, Some(tenant)).ok()).collect()
        };
        let (first, second) = (fill("a", 0), fill("b", 100));
        assert_eq!((first.len(), second.len()), (32, 16));
        assert!(watches.count(200, Some("c")).is_ok());
        drop((first, second));
        assert_eq!(watches.open.lock().tenants.len(), 0);
    }
}
