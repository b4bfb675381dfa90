//! The transport: listeners that hand connections to one current-thread runtime per core.
//!
//! A connection stays on one core, so that replies that are ready together leave in one write. Listeners can also be
//! served by the caller's runtime ([`Place::Here`]), so that a whole service runs on one clock. Nothing here depends on
//! jobs: a server gets a service for each connection, and orders to stop accepting, to send GOAWAY and to cut.
//!
//! A connection is counted from its acceptance to its end ([`ConnectionTracker`]), goes through the stages of `establish`, and
//! then speaks HTTP/2 within the bounds of its [`Transport`].

mod accept;
mod address;
mod body;
mod call;
mod connection;
mod cores;
mod establish;
mod exchange;
#[cfg(any(test, fuzzing))]
#[path = "net/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod http1;
mod http2;
mod incoming;
mod limits;
mod linger;
mod listener;
mod proxy;
mod server;
mod stream;
mod tls;
mod tracker;
mod write_stall;

pub use address::{InvalidListenAddress, ListenAddress};
pub use body::RequestBody;
pub use call::{StreamLimit, UnsentAnswer};
pub use cores::Place;
pub use http2::AnswerService;
pub use limits::{ConnectionLimits, Http2, Transport};
pub use listener::{Bound, Inherited, bind};
pub use server::{Pulse, Server};
pub use tls::{ClientAuth, Tls, TlsConfig, TlsError, TlsErrors, TlsFault, TlsFile, TlsVersion};
pub use tracker::{Closed, ConnectionTracker, Refused};
