use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use http::{Request, Response};
use hyper::{body::Incoming, service::Service};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::{
    accept::accept,
    connection::{Transport, serve},
    cores::Cores,
    establish::establish,
    listener::{Accepted, Bound},
    stage::{Stage, advance},
};
use crate::{model::Peer, task::Tasks};

/// Names connections, whatever listener they came by.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// Listeners and the threads that serve their connections.
pub struct Server {
    address: Option<SocketAddr>,
    stage: watch::Sender<Stage>,
}

impl Server {
    /// Serves `listeners` on `cores` threads of their own. Each thread calls `begin` with its number before anything
    /// else. `make` makes the service of one connection. Connections are taken by tasks of `tasks`.
    ///
    /// # Errors
    /// Where the system has no thread, or no file descriptor, left.
    pub fn start<S, B>(
        listeners: Vec<Bound>,
        cores: usize,
        transport: Transport,
        make: impl Fn(Arc<Peer>) -> S + Send + Sync + 'static,
        begin: impl Fn(usize) + Send + Sync + 'static,
        tasks: &Tasks,
    ) -> io::Result<Self>
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
        S::Future: Send + 'static,
        B: http_body::Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let address = listeners.iter().find_map(Bound::address);
        let stage = watch::Sender::new(Stage::Open);
        let listeners = listeners.into_iter().map(Bound::listen).collect::<io::Result<Vec<_>>>()?;
        let shared = Arc::new((make, transport));
        let connection_stage = stage.clone();
        let handle = move |accepted: Accepted| {
            let (shared, stage) = (Arc::clone(&shared), connection_stage.subscribe());
            async move {
                let (make, transport) = &*shared;
                let Accepted { socket, origin } = accepted;
                let stream = match socket.into_stream() {
                    Ok(stream) => stream,
                    Err(error) => return warn!(%error, "a connection could not be handed over"),
                };
                let connection = NEXT_CONNECTION.fetch_add(1, Relaxed);
                match establish(stream, connection, origin, transport).await {
                    Ok(established) => serve(established, make, transport, stage).await,
                    Err(error) => debug!(connection, peer = %origin, %error, "connection not established"),
                }
            }
        };
        let cores = Arc::new(Cores::start(cores, begin, handle)?);
        for listener in listeners {
            let (cores, stage) = (Arc::clone(&cores), stage.subscribe());
            tasks.spawn(async move { accept(listener, stage, |accepted| cores.deal(accepted)).await });
        }
        Ok(Self { address, stage })
    }

    /// The first address of a network that is served.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Closes the listeners. Connections stay.
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

    /// Returns when all connections have ended. The listeners must be closed. Cancel safe.
    pub async fn ended(&self) {
        // Every connection and every accept loop hold a receiver of the stage.
        self.stage.closed().await;
    }
}
