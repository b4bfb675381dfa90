//! The protocols of a connection: HTTP/2, and where a listener allows it HTTP/1.1 beside it, told apart by the preface.

use std::{
    convert::Infallible,
    error::Error,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, Response};
use hyper::{body::Incoming, rt, server::conn::http2, service::Service};
use hyper_util::server::conn::auto;

use super::{limits::Transport, stream_deadline::StreamExecutor};

/// Why a connection failed.
pub(super) type Failure = Box<dyn Error + Send + Sync>;

pin_project_lite::pin_project! {
    /// A connection in the protocol of its listener.
    #[project = ProtocolProjection]
    pub(super) enum Protocol<H, E> {
        Http2 { #[pin] connection: H },
        Either { #[pin] connection: E },
    }
}

type Connection<I, S> =
    Protocol<http2::Connection<I, S, StreamExecutor>, auto::Connection<'static, I, S, StreamExecutor>>;

/// Serves one connection as `transport` says.
pub(super) fn protocol<I, S, B>(io: I, service: S, executor: StreamExecutor, transport: &Transport) -> Connection<I, S>
where
    I: rt::Read + rt::Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Failure>,
{
    if transport.http1 {
        let either = transport.http2.either(executor, transport.connections.preface_timeout);
        let connection = either.serve_connection(io, service).into_owned();
        return Protocol::Either { connection };
    }
    Protocol::Http2 { connection: transport.http2.builder(executor).serve_connection(io, service) }
}

/// A connection that can end with what is under way.
pub(super) trait Graceful: Future<Output = Result<(), Failure>> {
    /// Asks the peer to open no more streams, or requests, and ends with the last one.
    fn graceful_shutdown(self: Pin<&mut Self>);
}

impl<I, S, B> Graceful for Connection<I, S>
where
    I: rt::Read + rt::Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Failure>,
{
    fn graceful_shutdown(self: Pin<&mut Self>) {
        match self.project() {
            ProtocolProjection::Http2 { connection } => connection.graceful_shutdown(),
            ProtocolProjection::Either { connection } => connection.graceful_shutdown(),
        }
    }
}

impl<H, E> Future for Protocol<H, E>
where
    H: Future<Output = hyper::Result<()>>,
    E: Future<Output = Result<(), Failure>>,
{
    type Output = Result<(), Failure>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            ProtocolProjection::Http2 { connection } => connection.poll(cx).map_err(Into::into),
            ProtocolProjection::Either { connection } => connection.poll(cx),
        }
    }
}
