use std::{
    convert::Infallible,
    io,
    net::{SocketAddr, TcpListener as StdListener, TcpStream as StdStream},
    sync::Arc,
};

use http::{Request, Response};
use hyper::{body::Incoming, service::Service};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{
    accept::accept,
    connection::{Transport, serve},
    cores::Cores,
    stage::{Stage, advance},
};
use crate::task::Tasks;

/// Connections that the system may hold until they are taken.
const LISTEN_BACKLOG: i32 = 1024;

/// A listener and the threads that serve its connections.
pub struct Server {
    address: SocketAddr,
    stage: watch::Sender<Stage>,
}

/// Takes `address`. Port 0 takes any free one.
///
/// # Errors
/// Where the address is taken, or not one of this machine.
pub fn bind(address: SocketAddr) -> io::Result<StdListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A server that restarts must not wait for the connections of its predecessor to time out.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    Ok(socket.into())
}

impl Server {
    /// Serves `listener` on `cores` threads of their own. Each thread calls `begin` with its number before anything
    /// else. Connections are taken by a task of `tasks`.
    ///
    /// # Errors
    /// Where the system has no thread, or no file descriptor, left.
    pub fn start<S, B>(
        listener: StdListener,
        cores: usize,
        transport: Transport,
        service: S,
        begin: impl Fn(usize) + Send + Sync + 'static,
        tasks: &Tasks,
    ) -> io::Result<Self>
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let address = listener.local_addr()?;
        let stage = watch::Sender::new(Stage::Open);
        let listener = TcpListener::from_std(listener)?;
        let shared = Arc::new((service, transport));
        let (connection_stage, accept_stage) = (stage.clone(), stage.subscribe());
        let handle = move |socket: StdStream| {
            let (shared, stage) = (Arc::clone(&shared), connection_stage.subscribe());
            async move {
                match TcpStream::from_std(socket) {
                    Ok(stream) => serve(stream, shared.0.clone(), &shared.1, stage).await,
                    Err(error) => tracing::warn!(%error, "a connection could not be handed over"),
                }
            }
        };
        let mut cores = Cores::start(cores, begin, handle)?;
        tasks.spawn(async move {
            accept(listener, accept_stage, |stream| {
                // Replies are gathered above the socket; the system must not hold them back.
                let dealt = stream.set_nodelay(true).and_then(|()| stream.into_std());
                match dealt {
                    Ok(socket) => cores.deal(socket),
                    Err(error) => tracing::debug!(%error, "a connection ended before it began"),
                }
            })
            .await;
        });
        Ok(Self { address, stage })
    }

    /// The address that is served.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the listener. Connections stay.
    pub fn close_listener(&self) {
        advance(&self.stage, Stage::Closed);
    }

    /// Tells all peers to open no more streams. A connection ends when its last stream does.
    pub fn go_away(&self) {
        advance(&self.stage, Stage::GoAway);
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        advance(&self.stage, Stage::Cut);
    }

    /// Returns when all connections have ended. The listener must be closed. Cancel safe.
    pub async fn ended(&self) {
        // Every connection and the accept loop hold a receiver of the stage.
        self.stage.closed().await;
    }
}
