//! The composition root. Only this file and those below `app/` use every layer.
//!
//! [`App::start`] builds pools from the configuration and serves them; [`App::start_with`] adds Rust handlers. A
//! [`Control`] starts the drain, and [`App::run`] returns at its end.

mod assemble;
mod control;
mod drain;
mod forecast;
mod reload;
mod running;
mod service_manager;
mod services;

use std::{convert::Infallible, io, path::PathBuf, sync::Arc, time::Duration};

pub use assemble::{AssembleError, OwnKind};
pub use control::Control;
pub use drain::Receipt;
use futures_util::FutureExt;
use reload::Reloading;
pub use service_manager::ServiceManager;
use services::Services;
use tokio::time::timeout;

use crate::{
    auth::KeysError,
    config::{self, Config, Faults, Loaded},
    incidents,
    memory::Memory,
    monitor::Monitor,
    net::{Bound, ConnectionTracker, Inherited, ListenAddress, Placement, Server, TlsErrors, Transport, bind},
    phase::{Phase, PhaseCell},
    pool::{Pools, set_shard},
    proto::MAX_ENVELOPE,
    rpc::{AccessControl, Edge, stream_limit},
    store::StoreError,
    task::Tasks,
    telemetry::LogControl,
};

/// A running service.
pub struct App {
    control: Control,
    public: Server,
    ops: Server,
    tasks: Tasks,
    own: Vec<OwnKind>,
    access: AccessControl,
}

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address cannot be bound.
    #[error("cannot listen on {address}: {error}\n  help: set {key} to a free address of this machine")]
    Listen {
        /// The address.
        address: ListenAddress,
        /// The configuration key of the address.
        key: &'static str,
        /// The system's error.
        error: io::Error,
    },
    /// The service manager passed a socket that other machines can reach.
    #[error(
        "{address}, passed by the service manager for {key}, would serve other machines in plaintext\n  help: let its \
         unit listen on a loopback address or a Unix socket, {}",
        exception(key)
    )]
    Plaintext {
        /// The address.
        address: ListenAddress,
        /// The configuration key of the address.
        key: &'static str,
    },
    /// The pools cannot be built.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// TLS files are not usable.
    #[error(transparent)]
    Tls(#[from] TlsErrors),
    /// The keys of the token issuer are not usable.
    #[error("the keys of auth.jwt.jwks cannot be used: {0}; put the issuer's public keys there, as a JSON Web Key Set")]
    Keys(#[from] KeysError),
    /// The store of detached jobs cannot be opened.
    #[error("cannot open the store of detached jobs: {0}")]
    Store(#[from] StoreError),
    /// The system has no thread or file descriptor left.
    #[error("cannot start to serve: {0}\n  help: raise the limits of threads and open files")]
    Threads(io::Error),
}

impl App {
    /// Binds the addresses, builds the pools, and serves. Health is NOT_SERVING until the workers are ready.
    ///
    /// Call it within a runtime, which accepts connections and runs the drain. Calls and jobs run on other threads.
    ///
    /// # Errors
    /// [`StartError`]; then nothing is left running.
    pub fn start(config: &Config, sample_ratio: Option<f64>) -> Result<Self, StartError> {
        Self::start_with(config, Vec::new(), sample_ratio)
    }

    /// The same as [`start`](Self::start), with Rust handlers in addition to the configured kinds. They get the same
    /// gRPC, deadlines and drain.
    ///
    /// ```
    /// use waterwheel::{Job, Output, app::{App, OwnKind}, config::{SourceFile, Sources, load_pools}};
    /// use waterwheel::{handler::{Context, Handler, Kind}, model::HandlerError};
    ///
    /// struct Upper;
    ///
    /// impl Handler for Upper {
    ///     async fn handle(&mut self, job: Box<Job>, _cx: Context) -> Result<Output, HandlerError> {
    ///         Ok(Output::new(job.payload.to_ascii_uppercase()))
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = r#"
    ///     server = { listen = "127.0.0.1:0", ops_listen = "127.0.0.1:0" }
    ///     drain = { notice = "0s" }
    ///     pool.text.workers = 4
    /// "#;
    /// let file = SourceFile { name: "inline".into(), text: text.into() };
    /// let sources = Sources { file: Some(file), ..Sources::default() };
    /// let config = load_pools(&sources)?.config;
    ///
    /// let app = App::start_with(&config, vec![OwnKind::new("text", Kind::new("upper", || Upper))], None)?;
    /// println!("grpc {}", app.address());
    /// app.control().drain();
    /// assert!(app.run().await.is_clean());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StartError`]; then nothing is left running.
    pub fn start_with(config: &Config, own: Vec<OwnKind>, sample_ratio: Option<f64>) -> Result<Self, StartError> {
        let placements = [Placement::Threads(config.server.threads), Placement::Threads(1)];
        Self::serve(config, own, sample_ratio, listen(&config.server)?, placements, |edge| edge)
    }

    /// The same as [`start_with`](Self::start_with). `beside` may add services of the program's own for callers, by
    /// [`Edge::also`].
    ///
    /// # Errors
    /// [`StartError`]; then nothing is left running.
    pub fn start_beside(
        config: &Config,
        own: Vec<OwnKind>,
        beside: impl FnOnce(Edge) -> Edge,
    ) -> Result<Self, StartError> {
        let placements = [Placement::Threads(config.server.threads), Placement::Threads(1)];
        Self::serve(config, own, None, listen(&config.server)?, placements, beside)
    }

    /// The same as [`start_with`](Self::start_with), but on the given listeners, and on the caller's runtime. Only
    /// blocking kinds start threads. Use it to serve over in-memory pipes, or to test a service and its clients in a
    /// simulated network.
    ///
    /// Plaintext connections are accepted from any address.
    ///
    /// # Errors
    /// [`StartError`]; then nothing is left running.
    pub fn start_on(
        config: &Config,
        own: Vec<OwnKind>,
        sample_ratio: Option<f64>,
        listeners: Listeners,
    ) -> Result<Self, StartError> {
        Self::serve(config, own, sample_ratio, listeners, [Placement::CurrentRuntime; 2], |edge| edge)
    }

    fn serve(
        config: &Config,
        own: Vec<OwnKind>,
        sample_ratio: Option<f64>,
        listeners: Listeners,
        [place, ops_place]: [Placement; 2],
        beside: impl FnOnce(Edge) -> Edge,
    ) -> Result<Self, StartError> {
        let Listeners { public: public_listeners, ops: ops_listeners } = listeners;
        let phase = PhaseCell::default();
        let tasks = Tasks::new();
        let security = services::secure(config)?;
        let pools = Pools::new(assemble::pools(config, &own)?);
        let detached = services::open_store(config, &pools)?;
        let monitor = Monitor::new(pools.clone(), detached.clone(), services::store_kind(config));
        let control = Control::new(pools, phase.clone(), config.drain, detached, monitor);

        let services = services::build(config, &control, &security, &phase, sample_ratio, &tasks);
        let Services { public: public_service, ops: ops_service, runtimes, listeners } = services;
        let hosts = services::hosts(&[], public_listeners.iter().map(Bound::address));
        let public_service = Arc::new(beside(public_service.called_by(hosts)));
        let hosts = services::hosts(&config.server.ops_hosts, ops_listeners.iter().map(Bound::address));
        let ops_service = Arc::new(ops_service.called_by(hosts));

        let transport = Transport {
            http2: config.server.http2,
            connections: services::connections(config),
            proxies: config.server.proxies.clone(),
            http_proxies: config.server.http_proxies.clone(),
            tls: security.tls.clone(),
            memory: Memory::new(config.server.memory.with(MAX_ENVELOPE)),
            stream_limit: Some(Arc::new(stream_limit(config.deadline))),
            // Browsers speak HTTP/2 only with TLS, and a proxy in front of a page may not speak it.
            http1: config.server.json || !config.server.grpc_web_origins.is_empty(),
        };
        let serving = runtimes.clone();
        let ops = Server::start(
            ops_listeners,
            ops_place,
            Transport { http1: true, ..Transport::default() },
            move |peer, memory| ops_service.for_peer(peer, memory),
            move |_| runtimes.add_current("ops".into()),
            &tasks,
        );
        let ops = ops.map_err(StartError::Threads)?;
        let make = move |peer, memory| public_service.for_peer(peer, memory);
        let begin = move |core| {
            set_shard(core);
            serving.add_current(format!("serve-{core}"));
        };
        let public = Server::start(public_listeners, place, transport, make, begin, &tasks);
        let public = public.map_err(StartError::Threads)?;
        services::register_listeners(&listeners, [("public", &public), ("ops", &ops)]);
        if let Some(detached) = control.detached() {
            services::run_detached(detached.clone(), place, &tasks).map_err(StartError::Threads)?;
        }
        security.follow(&phase, &tasks);
        services::follow(incidents::follow(), &phase, &tasks);
        services::follow(running::log(control.pools().clone(), config.telemetry.dump_every), &phase, &tasks);
        let draining = control.clone();
        services::follow(control.monitor().clone().follow(move || draining.likely_lost()), &phase, &tasks);
        serve_after_first_starts(&control, &phase, &tasks);
        services::sweep(config);
        Ok(Self { control, public, ops, tasks, own, access: security.access })
    }

    /// The first address for callers.
    pub fn address(&self) -> &ListenAddress {
        self.addresses().first().expect("there is a listener")
    }

    /// The addresses for callers.
    pub fn addresses(&self) -> &[ListenAddress] {
        self.public.addresses()
    }

    /// The first address for operators.
    pub fn ops_address(&self) -> &ListenAddress {
        self.ops_addresses().first().expect("there is a listener")
    }

    /// The addresses for operators.
    pub fn ops_addresses(&self) -> &[ListenAddress] {
        self.ops.addresses()
    }

    /// The callers' connections.
    pub fn connections(&self) -> &ConnectionTracker {
        self.public.tracker()
    }

    /// A handle that starts and speeds up the drain.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Enables reloads, by [`Control::reload`] and `waterwheel reload`. `loaded` is the current configuration, `load`
    /// reads it again, and `log` replaces the filter of log lines.
    pub fn reload_by(
        &self,
        loaded: Loaded,
        load: impl Fn() -> Result<Loaded, Faults> + Send + Sync + 'static,
        log: LogControl,
    ) {
        let (current, load) = (loaded.into(), Box::new(load));
        let Self { own, access, .. } = self;
        self.control.set_reloading(Reloading {
            turn: <_>::default(),
            current,
            load,
            own: own.clone(),
            access: access.clone(),
            log,
        });
    }

    /// Reloads the configuration whenever the contents of the file change. See [`reload_by`](Self::reload_by).
    pub fn reload_on_change(&self, path: PathBuf) {
        let watch = reload::watch(path, self.control());
        services::follow(watch, self.control.phase(), &self.tasks);
    }

    /// Notifies the service manager: ready, stopping, alive. Poll it concurrently with [`run`](Self::run).
    pub fn keep_informed(&self, manager: ServiceManager) -> impl Future<Output = Infallible> + Send + use<> {
        let (control, threads) = (self.control(), [self.public.liveness(), self.ops.liveness()]);
        async move { manager.keep_informed(&control, &threads).await }
    }

    /// Serves until the drain has ended. Returns a receipt of unfinished work.
    pub async fn run(self) -> Receipt {
        let Self { control, public, ops, tasks, .. } = self;
        let receipt = drain::run(&control, public, ops, &tasks).await;
        incidents::log_rest();
        receipt
    }
}

/// Longest wait for a store at the start, which may be away.
const STORE_START: Duration = Duration::from_secs(5);

/// The service is ready once each program's processes are ready or have failed. A program that always fails must not
/// block the others.
///
/// It also waits for the store to say which pools are suspended, for a time.
fn serve_after_first_starts(control: &Control, phase: &PhaseCell, tasks: &Tasks) {
    let (pools, detached, phase) =
        (control.pools().clone(), control.detached().filter(|_| control.is_durable()).cloned(), phase.clone());
    let mut settled = Box::pin(async move {
        pools.first_starts_settled().await;
        if let Some(detached) = detached {
            let _ = timeout(STORE_START, detached.knows_suspended()).await;
        }
    });
    if settled.as_mut().now_or_never().is_some() {
        phase.advance(Phase::Serving);
        return;
    }
    tasks.spawn(async move {
        tokio::select! {
            () = settled => drop(phase.advance(Phase::Serving)),
            () = phase.reached(Phase::Draining) => {}
        }
    });
}

const OPS_LISTEN: &str = "server.ops_listen";

/// What makes a public listener valid, as the end of a sentence.
fn exception(key: &str) -> &'static str {
    match key {
        OPS_LISTEN => "or set server.ops_allow_plaintext = true",
        _ => "serve callers with [server.tls], or set server.allow_plaintext = true",
    }
}

/// Listeners for [`App::start_on`].
pub struct Listeners {
    /// For callers; at least one.
    pub public: Vec<Bound>,
    /// For operators; at least one.
    pub ops: Vec<Bound>,
}

fn listen(server: &config::Server) -> Result<Listeners, StartError> {
    let mut inherited = Inherited::take();
    let mut bound = |address: &ListenAddress, key, may_be_public: bool| {
        let failed = |error| StartError::Listen { address: address.clone(), key, error };
        let bound = bind(address, &mut inherited).map_err(failed)?;
        if bound.address().is_public() && !may_be_public {
            return Err(StartError::Plaintext { address: bound.address().clone(), key });
        }
        Ok(bound)
    };
    let ops_may_be_public = server.allow_plaintext || server.ops_allow_plaintext;
    let ops = server.ops_listen.iter().map(|address| bound(address, OPS_LISTEN, ops_may_be_public));
    let ops = ops.collect::<Result<_, _>>()?;
    let may_be_public = server.allow_plaintext || server.tls.is_some();
    let public = server.listen.iter().map(|address| bound(address, "server.listen", may_be_public));
    let public = public.collect::<Result<_, _>>()?;
    Ok(Listeners { public, ops })
}
