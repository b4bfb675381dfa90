//! Builds the services of both listeners: for callers and for operators.

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use super::{Control, security::Security};
use crate::{
    config::Config,
    net::{Closed, ListenAddress, Refused, Server},
    ops::{self, Connections, ReadConnections, Runtimes, Subject},
    phase::PhaseCell,
    proto::MAX_ENVELOPE,
    rpc::{
        Admin, Browsers, Calls, Edge, Health, Hosts, Limits, Load, Orca, Parts, PublicServices, Watches, WorkerPool,
        ops_services, public_services, trace::Sampler,
    },
    task::Tasks,
};

/// Most open calls of `WatchStats` and `WatchJob`: each may ask for all figures ten times a second, or for the store.
const MAX_WATCHES: usize = 256;

/// The services for callers and operators, before there is a listener.
pub(super) struct Surface {
    pub(super) public: Edge,
    pub(super) ops: Edge,
    /// Collects the serving runtimes.
    pub(super) runtimes: Runtimes,
    /// Collects the figures of the listeners.
    pub(super) connections: Arc<OnceLock<Vec<(&'static str, ReadConnections)>>>,
}

/// Host names under which operators may call at these addresses. On a loopback address they are restricted, because any
/// web page can reach it under a name of its own choice. Otherwise any name is accepted.
pub(super) fn hosts<'a>(config: &Config, addresses: impl Iterator<Item = &'a ListenAddress>) -> Option<Hosts> {
    let names = &config.server.ops_hosts;
    let mut of_a_network = addresses.filter(|address| address.tcp().is_some());
    let is_limited = of_a_network.any(|address| !address.is_public() || !names.is_empty());
    is_limited.then(|| Hosts::new(names))
}

/// Builds the services over the pools of `control`.
pub(super) fn surface(
    config: &Config,
    control: &Control,
    security: &Security,
    phase: &PhaseCell,
    sample_ratio: Option<f64>,
    tasks: &Tasks,
) -> Surface {
    let Security { tls, guard } = security;
    let pools = control.pools().clone();
    let calls = Calls::new(&pools, config.server.threads);
    let health = Health::new(pools.clone(), phase.clone(), control.detached().cloned());
    let load = Load::new(pools.clone());
    let started = Instant::now();
    let worker_pool = WorkerPool::new(Parts {
        pools: pools.clone(),
        detached: control.detached().cloned(),
        phase: phase.clone(),
        deadline: config.deadline,
        sampler: Sampler::new(sample_ratio).following(config.telemetry.caller_traces),
        window: config.server.submit_many_window,
        largest_message: config.server.max_payload.saturating_add(MAX_ENVELOPE),
        tasks: tasks.clone(),
        guard: guard.clone(),
        started,
        calls: calls.clone(),
        watches: Watches::new(phase.clone(), MAX_WATCHES),
        max_attached: config.server.connections.max_age,
    });
    let limits = Limits {
        max_payload: config.server.max_payload,
        max_header_list: config.server.http2.max_header_list as usize,
    };
    let public = public_services(PublicServices {
        worker_pool,
        health: health.clone(),
        orca: Orca::new(load.clone(), phase.clone()),
        load_in_answers: config.server.load_reports.then_some(load),
        calls: calls.clone(),
        browsers: Browsers::of(&config.server.grpc_web_origins),
        limits,
        guard: guard.clone(),
    });
    let runtimes = Runtimes::default();
    runtimes.add_current("main".into());
    let connections = Arc::default();
    let subject = Subject {
        pools,
        detached: control.detached().cloned(),
        phase: phase.clone(),
        calls,
        health: health.clone(),
        runtimes: runtimes.clone(),
        connections: Arc::clone(&connections),
        guard: guard.clone(),
        tls: tls.clone(),
        started,
    };
    let pages = ops::pages(config.ops, subject);
    let ops = ops_services(Admin::new(control.as_drain_control(), control.pools().clone()), health, pages, guard);
    Surface { public, ops, runtimes, connections }
}

/// Adds the connections of these listeners to the metrics.
pub(super) fn watch(
    connections: &OnceLock<Vec<(&'static str, ReadConnections)>>,
    listeners: [(&'static str, &Server); 2],
) {
    let read = |server: &Server| -> ReadConnections {
        let (tracker, memory) = (server.tracker().clone(), server.memory().clone());
        Box::new(move || Connections {
            held: vec![("uploads", memory.uploads()), ("answers", memory.answers())],
            open: tracker.open(),
            accepted: tracker.accepted(),
            refused: Refused::ALL.iter().map(|reason| (reason.as_str(), tracker.refused(*reason))).collect(),
            closed: Closed::ALL.iter().map(|reason| (reason.as_str(), tracker.closed(*reason))).collect(),
        })
    };
    // It is set once.
    let _ = connections.set(listeners.map(|(name, server)| (name, read(server))).into());
}
