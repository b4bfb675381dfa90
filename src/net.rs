//! The transport: one listener dealing connections to one current-thread runtime per core.
//!
//! A connection lives on one core, so that replies which are ready together leave in one write. Nothing here knows of
//! jobs: a server is given a service, and told when to stop taking connections, when to say GOAWAY and when to cut.

mod accept;
mod connection;
mod cores;
mod establish;
mod listener;
mod protocol;
mod server;
mod stage;
mod stream;
mod stream_deadline;

pub use connection::Transport;
pub use listener::{Bound, bind};
pub use server::Server;
pub use stream_deadline::StreamLimit;
