use std::{fmt, net::SocketAddr, sync::Arc};

/// Who is at the other end of a connection. All calls of the connection share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Names the connection in lines of log; unique in the process.
    pub connection: u64,
    /// Where it comes from.
    pub origin: Origin,
    /// The proxy that named `origin`, where one did.
    pub proxy: Option<SocketAddr>,
    /// The certificate that it has shown and that was verified, in DER.
    pub certificate: Option<Arc<[u8]>>,
    /// Whether it could show none, for the client CA of the server was empty or gone.
    pub is_unasked: bool,
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// An address of a network.
    Address(SocketAddr),
    /// A process of this machine, as the kernel names it. Only its user and group are proof: ids of processes are used
    /// again.
    Process {
        /// Its user.
        user: u32,
        /// Its group.
        group: u32,
        /// Its id, where the kernel tells it.
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
