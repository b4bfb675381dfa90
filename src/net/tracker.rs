//! Counts connections, limits their number, and counts how they ended.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use tracing::warn;

use super::limits::ConnectionLimits;
use crate::{incidents::Throttle, model::Origin};

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// All variants, in the order of the counts.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Name in logs and metrics.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

reasons! {
    /// Why a new connection was refused.
    Refused {
        /// The limit of all connections is reached.
        Connections = "connections",
        /// The limit of connections from its address is reached.
        PerAddress = "per_address",
        /// The thread that would serve it is too busy.
        Behind = "behind",
    }
}

reasons! {
    /// Why an accepted connection was closed.
    Closed {
        /// The TLS handshake failed.
        Tls = "tls",
        /// The peer closed it.
        Peer = "peer",
        /// The peer violated HTTP/2, or the socket failed.
        Error = "error",
        /// The peer did not answer pings.
        Unresponsive = "unresponsive",
        /// The peer did not send its first bytes in time.
        Slow = "slow",
        /// The peer does not speak HTTP/2.
        NotHttp2 = "not_http2",
        /// The PROXY header was invalid.
        ProxyHeader = "proxy_header",
        /// The limit of connections from the address in its PROXY header is reached.
        PerAddress = "per_address",
        /// It had no stream for too long.
        Idle = "idle",
        /// It reached its age limit, and its last stream ended.
        Age = "age",
        /// It reached its age limit, and was cut with open streams.
        AgeCut = "age_cut",
        /// The server sent GOAWAY, and its last stream ended.
        GoAway = "go_away",
        /// The server cut it.
        Cut = "cut",
    }
}

/// The connections of a server. Clones share them.
#[derive(Debug, Clone)]
pub struct ConnectionTracker(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    max: u64,
    max_per_address: usize,
    open: AtomicU64,
    refused: [AtomicU64; Refused::ALL.len()],
    closed: [AtomicU64; Closed::ALL.len()],
    addresses: Mutex<HashMap<IpAddr, usize>>,
    refusals: Throttle,
}

/// One counted connection. Dropping it ends the count.
#[derive(Debug)]
pub(super) struct Entry {
    tracker: ConnectionTracker,
    address: Option<IpAddr>,
    /// `None` if the connection was refused after it was counted.
    reason: Option<Closed>,
}

impl ConnectionTracker {
    pub(super) fn new(limits: &ConnectionLimits) -> Self {
        Self(Arc::new(Counts {
            max: limits.max as u64,
            max_per_address: limits.max_per_address,
            open: AtomicU64::default(),
            refused: Default::default(),
            closed: Default::default(),
            addresses: Mutex::default(),
            refusals: Throttle::default(),
        }))
    }

    /// Open connections.
    pub fn open(&self) -> u64 {
        self.0.open.load(Relaxed)
    }

    /// Accepted connections, including open ones.
    pub fn accepted(&self) -> u64 {
        self.open() + Closed::ALL.iter().map(|reason| self.closed(*reason)).sum::<u64>()
    }

    /// Connections refused for `reason`.
    pub fn refused(&self, reason: Refused) -> u64 {
        self.0.refused[reason as usize].load(Relaxed)
    }

    /// Accepted connections that were closed for `reason`.
    pub fn closed(&self, reason: Closed) -> u64 {
        self.0.closed[reason as usize].load(Relaxed)
    }

    /// Counts one more connection, if the limit allows it.
    pub(super) fn enter(&self) -> Option<Entry> {
        let counts = &*self.0;
        let within_bound = |open: u64| (open < counts.max).then_some(open + 1);
        counts.open.fetch_update(Relaxed, Relaxed, within_bound).ok()?;
        Some(Entry { tracker: self.clone(), address: None, reason: Some(Closed::Peer) })
    }

    /// Counts a refused connection. Logs at most one line in ten seconds.
    pub(super) fn refuse(&self, origin: &Origin, reason: Refused) {
        self.0.refused[reason as usize].fetch_add(1, Relaxed);
        if let Some(others) = self.0.refusals.pass() {
            warn!(peer = %origin, reason = reason.as_str(), others, open = self.open(), "a connection was refused");
        }
    }
}

impl Entry {
    /// Counts the connection for its address. Returns false if the limit of the address is reached.
    pub(super) fn claim(&mut self, origin: &Origin) -> bool {
        let Origin::Address(address) = origin else { return true };
        let address = group(address.ip());
        let mut addresses = self.tracker.0.addresses.lock();
        let count = addresses.entry(address).or_default();
        if *count >= self.tracker.0.max_per_address {
            return false;
        }
        *count += 1;
        self.address = Some(address);
        true
    }

    /// Records why the connection is closed.
    pub(super) fn close(mut self, reason: Closed) {
        self.reason = Some(reason);
    }

    /// Counts the connection as refused.
    pub(super) fn refuse(mut self, origin: &Origin, reason: Refused) {
        self.reason = None;
        self.tracker.refuse(origin, reason);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let counts = &*self.tracker.0;
        if let Some(address) = self.address {
            let mut addresses = counts.addresses.lock();
            if let Some(count) = addresses.get_mut(&address) {
                *count -= 1;
                if *count == 0 {
                    addresses.remove(&address);
                }
            }
        }
        if let Some(reason) = self.reason {
            counts.closed[reason as usize].fetch_add(1, Relaxed);
        }
        counts.open.fetch_sub(1, Relaxed);
    }
}

/// The unit of the limit per address: an IPv4 address, or the 64-bit network of an IPv6 address, which may belong to
/// one host.
fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn tracker(max: usize, max_per_address: usize) -> ConnectionTracker {
        ConnectionTracker::new(&ConnectionLimits { max, max_per_address, ..ConnectionLimits::default() })
    }

    fn origin(address: &str) -> Origin {
        Origin::Address(SocketAddr::new(address.parse().expect("an address"), 1))
    }

    #[test]
    fn room_comes_back_with_each_connection_that_ends() {
        let tracker = tracker(2, 2);
        let one = tracker.enter().expect("capacity");
        let two = tracker.enter().expect("capacity");
        assert!(tracker.enter().is_none());
        one.close(Closed::Idle);
        assert_eq!((tracker.open(), tracker.accepted(), tracker.closed(Closed::Idle)), (1, 2, 1));
        let three = tracker.enter().expect("capacity again");
        three.refuse(&origin("127.0.0.1"), Refused::Behind);
        drop(two);
        assert_eq!((tracker.open(), tracker.accepted(), tracker.refused(Refused::Behind)), (0, 2, 1));
        assert_eq!(Closed::ALL.iter().map(|reason| tracker.closed(*reason)).sum::<u64>(), 2);
    }

    #[test]
    fn an_address_has_its_share_and_a_network_of_ipv6_is_one_address() {
        let tracker = tracker(10, 1);
        let claim = |address| {
            let mut entry = tracker.enter().expect("capacity");
            entry.claim(&origin(address)).then_some(entry)
        };
        let held = [claim("10.0.0.1").expect("capacity"), claim("2001:db8::1").expect("capacity")];
        for address in ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::2", "2001:db8::ffff:0:0:1"] {
            assert!(claim(address).is_none(), "{address}");
        }
        assert!(claim("10.0.0.2").is_some() && claim("2001:db8:0:1::1").is_some());
        drop(held);
        assert!(claim("10.0.0.1").is_some() && claim("2001:db8::2").is_some());
        assert!(tracker.0.addresses.lock().is_empty());
    }
}
