//! Why `bench` has no figures.

use std::{io, net::SocketAddr};

use crate::cli::{
    access::AccessError,
    connect::{Address, explain},
    exit::Exit,
};

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BenchError {
    /// The server's name means nothing.
    #[error("cannot resolve {server}: {}", explain(cause))]
    Resolve {
        /// What was given.
        server: Address,
        /// What the system says.
        cause: io::Error,
    },
    /// A certificate, a key or a token cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Nobody takes connections.
    #[error("cannot reach {server}: {}", explain(cause))]
    Connect {
        /// Where the load was to go.
        server: SocketAddr,
        /// What the system says.
        cause: io::Error,
    },
    /// The kernel says nothing about the server's process.
    #[error("cannot read the CPU time of process {pid}: {}", explain(cause))]
    Usage {
        /// The process.
        pid: u32,
        /// What the system says.
        cause: io::Error,
    },
    /// The address cannot stand in a request.
    #[error("cannot address requests to the server: {0}")]
    Authority(#[from] http::Error),
    /// No thread or runtime for the client.
    #[error("cannot start a client thread: {}", explain(.0))]
    Thread(io::Error),
    /// A client thread panicked; the panic is on standard error.
    #[error("a client thread ended early")]
    ThreadLost,
    /// This program does not find its own file.
    #[error("cannot find this program: {}", explain(.0))]
    Executable(io::Error),
    /// The server to load has no process.
    #[error("cannot start {command}: {}", explain(cause))]
    Spawn {
        /// What was to run.
        command: String,
        /// What the system says.
        cause: io::Error,
    },
    /// The server to load ended, or did not say where it listens.
    #[error("{command} did not print its address{last_words}")]
    Silent {
        /// What ran.
        command: String,
        /// The last line that it wrote to standard error, after a colon.
        last_words: String,
    },
    /// No job ended while the capacity was measured.
    #[error("no job ended while the capacity was measured: {reason}")]
    NoCapacity {
        /// Why, where it is known.
        reason: String,
    },
}

impl BenchError {
    /// The code that the process ends with.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Resolve { .. } | Self::Connect { .. } => Exit::Unreachable,
            Self::Usage { .. } | Self::Authority(_) | Self::Access(_) => Exit::Usage,
            Self::Thread(_)
            | Self::ThreadLost
            | Self::Executable(_)
            | Self::Spawn { .. }
            | Self::Silent { .. }
            | Self::NoCapacity { .. } => Exit::Failed,
        }
    }

    /// What to do about it.
    pub(crate) fn help(&self) -> Option<&'static str> {
        match self {
            Self::Resolve { .. } | Self::Authority(_) => Some("pass --server HOST:PORT"),
            Self::Access(error) => Some(error.help()),
            Self::Connect { .. } => Some("start one with \"waterwheel dev\", or pass --server"),
            Self::Usage { .. } => Some("pass --server-pid with a process of yours on this machine"),
            Self::NoCapacity { .. } => Some("pass a longer --duration"),
            Self::Spawn { .. } | Self::Silent { .. } | Self::Thread(_) | Self::ThreadLost | Self::Executable(_) => None,
        }
    }
}
