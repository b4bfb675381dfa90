//! How many connections there are, how many there may be, and how they ended.

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
use crate::{model::Origin, throttle::Throttle};

macro_rules! reasons {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// All of them, in the order of the counts.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The reason in logs and metrics.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

reasons! {
    /// Why a connection was refused when it came.
    Refused {
        /// There are as many connections as there may be.
        Connections = "connections",
        /// There are as many from its address as there may be.
        PerAddress = "per_address",
        /// The thread that would serve it is too far behind.
        Behind = "behind",
    }
}

reasons! {
    /// Why a connection was closed after it was taken.
    Closed {
        /// There was no handshake of TLS with it.
        Tls = "tls",
        /// Its peer left.
        Peer = "peer",
        /// Its peer broke a rule of HTTP/2, or its socket failed.
        Error = "error",
        /// Its peer did not answer.
        Unresponsive = "unresponsive",
        /// Its peer did not begin in time.
        Slow = "slow",
        /// Its peer does not speak HTTP/2.
        NotHttp2 = "not_http2",
        /// The header of its proxy was none.
        ProxyHeader = "proxy_header",
        /// It had as many companions from its address as it may, which its proxy told.
        PerAddress = "per_address",
        /// It had no stream for too long.
        Idle = "idle",
        /// It was old, and its last stream ended.
        Age = "age",
        /// It was old, and was cut with streams on it.
        AgeCut = "age_cut",
        /// The server said goodbye, and its last stream ended.
        GoAway = "go_away",
        /// The server cut it.
        Cut = "cut",
    }
}

/// The connections of a server. Clones share them.
#[derive(Debug, Clone)]
pub struct Census(Arc<Counts>);

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

/// The room that one connection takes, until it is dropped.
#[derive(Debug)]
pub(super) struct Entry {
    census: Census,
    address: Option<IpAddr>,
    /// None where it was not taken after all.
    reason: Option<Closed>,
}

impl Census {
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

    /// Connections that are open.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.0.open.load(Relaxed)
    }

    /// Connections that were taken, open ones included.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.open() + Closed::ALL.iter().map(|reason| self.closed(*reason)).sum::<u64>()
    }

    /// Connections that were refused for this reason.
    #[must_use]
    pub fn refused(&self, reason: Refused) -> u64 {
        self.0.refused[reason as usize].load(Relaxed)
    }

    /// Connections that were taken, and closed for this reason.
    #[must_use]
    pub fn closed(&self, reason: Closed) -> u64 {
        self.0.closed[reason as usize].load(Relaxed)
    }

    /// Takes room for one more connection.
    pub(super) fn enter(&self) -> Option<Entry> {
        let counts = &*self.0;
        let room = |open: u64| (open < counts.max).then_some(open + 1);
        counts.open.fetch_update(Relaxed, Relaxed, room).ok()?;
        Some(Entry { census: self.clone(), address: None, reason: Some(Closed::Peer) })
    }

    /// Counts a connection that is not taken. One line of log in ten seconds tells of it.
    pub(super) fn refuse(&self, origin: &Origin, reason: Refused) {
        self.0.refused[reason as usize].fetch_add(1, Relaxed);
        if let Some(others) = self.0.refusals.pass() {
            warn!(peer = %origin, reason = reason.as_str(), others, open = self.open(), "a connection was refused");
        }
    }
}

impl Entry {
    /// Counts the connection among those of its address. Returns whether there was room.
    pub(super) fn claim(&mut self, origin: &Origin) -> bool {
        let Origin::Address(address) = origin else { return true };
        let address = group(address.ip());
        let mut addresses = self.census.0.addresses.lock();
        let count = addresses.entry(address).or_default();
        if *count >= self.census.0.max_per_address {
            return false;
        }
        *count += 1;
        self.address = Some(address);
        true
    }

    /// Says why the connection is closed.
    pub(super) fn close(mut self, reason: Closed) {
        self.reason = Some(reason);
    }

    /// Counts the connection as one that was not taken.
    pub(super) fn refuse(mut self, origin: &Origin, reason: Refused) {
        self.reason = None;
        self.census.refuse(origin, reason);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let counts = &*self.census.0;
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

/// Whoever has one address of IPv6 has the 64 bits behind its network.
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

    fn census(max: usize, max_per_address: usize) -> Census {
        Census::new(&ConnectionLimits { max, max_per_address, ..ConnectionLimits::default() })
    }

    fn origin(address: &str) -> Origin {
        Origin::Address(SocketAddr::new(address.parse().expect("an address"), 1))
    }

    #[test]
    fn room_comes_back_with_each_connection_that_ends() {
        let census = census(2, 2);
        let one = census.enter().expect("room");
        let two = census.enter().expect("room");
        assert!(census.enter().is_none());
        one.close(Closed::Idle);
        assert_eq!((census.open(), census.accepted(), census.closed(Closed::Idle)), (1, 2, 1));
        let three = census.enter().expect("room again");
        three.refuse(&origin("127.0.0.1"), Refused::Behind);
        drop(two);
        assert_eq!((census.open(), census.accepted(), census.refused(Refused::Behind)), (0, 2, 1));
        assert_eq!(Closed::ALL.iter().map(|reason| census.closed(*reason)).sum::<u64>(), 2);
    }

    #[test]
    fn an_address_has_its_share_and_a_network_of_ipv6_is_one_address() {
        let census = census(10, 1);
        let claim = |address| {
            let mut entry = census.enter().expect("room");
            entry.claim(&origin(address)).then_some(entry)
        };
        let held = [claim("10.0.0.1").expect("room"), claim("2001:db8::1").expect("room")];
        for address in ["10.0.0.1", "::ffff:10.0.0.1", "2001:db8::2", "2001:db8::ffff:0:0:1"] {
            assert!(claim(address).is_none(), "{address}");
        }
        assert!(claim("10.0.0.2").is_some() && claim("2001:db8:0:1::1").is_some());
        drop(held);
        assert!(claim("10.0.0.1").is_some() && claim("2001:db8::2").is_some());
        assert!(census.0.addresses.lock().is_empty());
    }
}
