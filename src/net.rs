//! The transport: listeners dealing connections to one current-thread runtime per core.
//!
//! A connection lives on one core, so that replies which are ready together leave in one write. Listeners of a caller's
//! own can be served by its own runtime instead ([`Place::Here`]), which puts a whole service on one clock. Nothing here knows of
//! jobs: a server is given a service for each connection, and told when to stop taking connections, when to say GOAWAY
//! and when to cut.
//!
//! A connection is counted and bounded from its acceptance to its end ([`Census`]), goes through the stages of
//! `establish`, and then speaks HTTP/2 within the bounds of its [`Transport`].

mod accept;
mod address;
mod body;
mod call;
mod census;
mod connection;
mod cores;
mod establish;
mod exchange;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod http1;
mod http2;
mod incoming;
mod limits;
mod linger;
mod listener;
mod proxy;
mod server;
mod stage;
mod stream;
mod tls;
mod write_stall;

pub use address::{InvalidListenAddress, ListenAddress};
pub use body::RequestBody;
pub use call::{StreamLimit, UnsentAnswer};
pub use census::{Census, Closed, Refused};
pub use cores::Place;
pub use http2::AnswerService;
pub use limits::{ConnectionLimits, Http2, Transport};
pub use listener::{Bound, Inherited, bind};
pub use server::{Pulse, Server};
pub use tls::{ClientAuth, Tls, TlsConfig, TlsError, TlsErrors, TlsFault, TlsFile, TlsVersion};
