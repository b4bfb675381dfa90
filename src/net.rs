//! The transport: listeners that hand connections to one current-thread runtime per core.
//!
//! A connection stays on one core, so that replies that are ready at the same time are sent with one write. The
//! caller's runtime can also serve listeners ([`Placement::CurrentRuntime`]), so that a whole service runs on one
//! clock. This module is independent of jobs: a server gets a service for each connection, and commands to stop
//! accepting, to send GOAWAY and to cut.
//!
//! A connection is counted from its acceptance to its end ([`ConnectionTracker`]). It goes through the stages of
//! `connection.rs`, and then speaks HTTP/2 within the limits of its [`Transport`].

mod address;
mod call;
mod connection;
#[cfg(any(test, fuzzing))]
#[path = "net/tests/fuzzing.rs"]
pub(crate) mod fuzzing;
mod http1;
mod http2;
mod limits;
mod listener;
mod proxy;
mod request_body;
mod server;
mod stream;
mod tls;
mod tracker;

pub use address::{InvalidListenAddress, ListenAddress};
pub use call::{StreamLimit, UnreadAnswer};
pub use http2::AnswerService;
pub use limits::{ConnectionLimits, Http2, Transport};
pub use listener::{Bound, Inherited, bind};
pub use request_body::RequestBody;
pub use server::{Liveness, Placement, Server};
pub use tls::{ClientAuth, Tls, TlsConfig, TlsError, TlsErrors, TlsFault, TlsFile, TlsVersion};
pub use tracker::{Closed, ConnectionTracker, Refused};
