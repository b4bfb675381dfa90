//! The other end of a connection: address, proxy, certificate. `src/net/establish.rs` fills it in.

use std::{fmt, net::SocketAddr, sync::Arc};

/// The other end of a connection. All its calls share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Number of the connection in the log; unique in the process.
    pub connection: u64,
    /// Where it comes from.
    pub origin: Origin,
    /// The proxy that reported `origin`, if there is one.
    pub proxy: Option<SocketAddr>,
    /// Its verified client certificate, in DER.
    pub certificate: Option<Arc<[u8]>>,
    /// Whether the server could not ask for a certificate, because its client CA is empty or missing.
    pub is_unasked: bool,
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A network address.
    Address(SocketAddr),
    /// A process of this machine, as the kernel reports it. Only its user and group are proof: process ids are reused.
    Process {
        /// User id.
        user: u32,
        /// Group id.
        group: u32,
        /// Process id, if the kernel reports it.
        process: Option<i32>,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Process { user, process: Some(process), .. } => write!(f, "user {user}, process {process}"),
            Self::Process { user, process: None, .. } => write!(f, "user {user}"),
        }
    }
}
