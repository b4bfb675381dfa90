//! Builds the services for callers and operators, and opens the certificates, the keys and the store of detached jobs.

use std::{
    io,
    num::NonZeroU32,
    sync::{Arc, OnceLock},
};

use rustix::process::{Resource, getrlimit};
use tokio::{runtime::Builder, time::Instant};
use tracing::info;

use super::{Control, StartError};
use crate::{
    auth::{Authenticator, Quotas, TenantQuota},
    config::{Config, Handler, Kind, OpenFiles},
    detached::{Detached, KindPolicies, wall_clock},
    handler::remove_left_workspaces,
    model::KindLimits,
    net::{ConnectionLimits, ListenAddress, Placement, Server, Tls},
    ops::{self, Listener, OpsState, Runtimes},
    phase::{Phase, PhaseCell},
    pool::Pools,
    proto::MAX_ENVELOPE,
    rpc::{
        AccessControl, Admin, Browsers, CallerServices, Calls, Edge, Health, Hosts, Load, ServiceState, Watches, Work,
        ops_services, public_services, trace::Sampler,
    },
    store::{
        Bounds, JobStore, StoreError, StoredLimit, StoredLimits, StoredQuotas, open_memory, open_postgres, open_sqlite,
    },
    task::{Tasks, spawn_thread},
};

/// Maximum number of open calls of `WatchStats` and `WatchJob`. One may collect all statistics ten times per second, or
/// read the store.
const MAX_WATCHES: usize = 256;

/// The services for callers and operators. They are built before the listeners are opened.
pub(super) struct Services {
    pub(super) public: Edge,
    pub(super) ops: Edge,
    /// The runtimes that `/metrics` reports. Each serving thread adds its own.
    pub(super) runtimes: Runtimes,
    /// The listeners that `/metrics` reports; set when they are open.
    pub(super) listeners: Arc<OnceLock<Vec<Listener>>>,
}

/// TLS, authentication and quotas of callers.
pub(super) struct Security {
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) access: AccessControl,
}

/// Builds the services over the pools of `control`.
pub(super) fn build(
    config: &Config,
    control: &Control,
    security: &Security,
    phase: &PhaseCell,
    sample_ratio: Option<f64>,
    tasks: &Tasks,
) -> Services {
    let Security { tls, access } = security;
    let pools = control.pools().clone();
    let calls = Calls::new(&pools, config.server.threads);
    let health = Health::new(pools.clone(), phase.clone(), control.detached().cloned());
    follow(health.clone().report_changes(), phase, tasks);
    let load = Load::new(pools.clone());
    let started = Instant::now();
    let services_of = |access: AccessControl| {
        CallerServices::new(ServiceState {
            pools: pools.clone(),
            detached: control.detached().cloned(),
            monitor: control.monitor().clone(),
            control: Arc::new(control.clone()),
            phase: phase.clone(),
            deadline: config.deadline,
            sampler: Sampler::new(sample_ratio, config.telemetry.caller_traces),
            window: config.server.submit_many_window,
            largest_message: config.server.max_payload.saturating_add(MAX_ENVELOPE),
            tasks: tasks.clone(),
            access: access.clone(),
            started,
            calls: calls.clone(),
            load_in_answers: config.server.load_reports.then(|| load.clone()),
            watches: Watches::new(phase.clone(), MAX_WATCHES, access),
            max_attached: config.server.connections.max_age,
        })
    };
    let browsers = Browsers::of(&config.server.grpc_web_origins);
    let max_header_list = config.server.http2.max_header_list as usize;
    let work = Work::default();
    let json = config.server.json.then(|| work.clone());
    let callers = services_of(access.clone());
    let public = public_services(callers, health.clone(), load.clone(), browsers, json, max_header_list);
    let runtimes = Runtimes::default();
    runtimes.add_current("main".into());
    let listeners = Arc::default();
    let reads = services_of(AccessControl { is_of_operators: true, ..access.clone() });
    let state = Arc::new(OpsState {
        pools: pools.clone(),
        detached: control.detached().cloned(),
        monitor: control.monitor().clone(),
        phase: phase.clone(),
        calls,
        health: health.clone(),
        runtimes: runtimes.clone(),
        listeners: Arc::clone(&listeners),
        access: access.clone(),
        tls: tls.clone(),
        started,
    });
    follow(ops::export(Arc::clone(&state), config.telemetry.clone()), phase, tasks);
    let pages = ops::pages(config.ops, state);
    let (detached, monitor) = (control.detached().cloned(), control.monitor().clone());
    let admin = Admin::new(Arc::new(control.clone()), pools.clone(), detached, monitor);
    let ops = ops_services(admin, reads, health, pages, work, access);
    Services { public, ops, runtimes, listeners }
}

/// Adds the connections of these listeners to the metrics.
pub(super) fn register_listeners(listeners: &OnceLock<Vec<Listener>>, servers: [(&'static str, &Server); 2]) {
    let listener = |(name, server): (&'static str, &Server)| Listener {
        name,
        connections: server.tracker().clone(),
        memory: server.memory().clone(),
    };
    // This is the only call, so it cannot fail.
    let _ = listeners.set(servers.map(listener).into());
}

/// Host names that the listener at `addresses` accepts; `None` accepts all. They are restricted if there are `names`,
/// or if an address is a loopback address, which a web page can reach under any name (DNS rebinding).
pub(super) fn hosts<'a>(names: &[String], addresses: impl Iterator<Item = &'a ListenAddress>) -> Option<Hosts> {
    let mut addresses = addresses.filter(|address| address.tcp().is_some()).peekable();
    let has_address = addresses.peek().is_some();
    let is_limited = has_address && !names.is_empty() || addresses.any(|address| !address.is_public());
    is_limited.then(|| Hosts::new(names))
}

/// The limits of callers' connections. Their number leaves enough open files for operators, probes and jobs.
pub(super) fn connections(config: &Config) -> ConnectionLimits {
    let limits = config.server.connections;
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let left = files.saturating_sub(OpenFiles::of(config).all()).max(files / 4);
    let max = limits.max.min(usize::try_from(left).unwrap_or(usize::MAX));
    if max < limits.max {
        info!(files, max, "fewer connections than server.connections.max fit into the limit of open files");
    }
    ConnectionLimits { max, ..limits }
}

/// Reads TLS files and token keys, and creates the quotas.
pub(super) fn secure(config: &Config) -> Result<Security, StartError> {
    let tls = config.server.tls.clone().map(Tls::open).transpose()?.map(Arc::new);
    let authenticator = config.auth.as_ref().map(Authenticator::open).transpose()?.map(Arc::new);
    let quotas = Arc::new(Quotas::new(&config.quota).map(Arc::new).into());
    Ok(Security { tls, access: AccessControl { authenticator, quotas, is_of_operators: false } })
}

impl Security {
    /// Reloads the files when they change, until the process has stopped.
    pub(super) fn follow(&self, phase: &PhaseCell, tasks: &Tasks) {
        let Self { tls, access } = self;
        if let Some(tls) = tls {
            follow(Arc::clone(tls).keep_fresh(), phase, tasks);
        }
        if let Some(authenticator) = &access.authenticator {
            follow(Arc::clone(authenticator).keep_fresh(), phase, tasks);
        }
    }
}

/// Runs `work` until the process has stopped.
pub(super) fn follow(work: impl Future<Output = ()> + Send + 'static, phase: &PhaseCell, tasks: &Tasks) {
    let phase = phase.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = work => {}
            () = phase.reached(Phase::Stopped) => {}
        }
    });
}

/// Removes the workspaces that killed servers left behind, on a thread that nothing waits for.
pub(super) fn sweep(config: &Config) {
    let has_workspace = |kind: &Kind| matches!(&kind.handler, Handler::Exec(command) if command.workspace);
    if config.kinds.iter().any(has_workspace)
        && let Err(fault) = spawn_thread("sweep".to_owned(), remove_left_workspaces)
    {
        tracing::warn!(%fault, "cannot look for the workspaces of killed servers");
    }
}

/// The detached jobs of a process; `None` if no store is configured. Blocks while a file or a database is opened.
pub(super) fn open_store(config: &Config, pools: &Pools) -> Result<Option<Detached>, StoreError> {
    let store: Arc<dyn JobStore> = if let Some(options) = config.store.postgres() {
        open_postgres(&options)?
    } else if let Some(options) = config.store.sqlite() {
        open_sqlite(&options, wall_clock())?
    } else if config.store.memory {
        open_memory(config.store.bounds, wall_clock())?
    } else {
        return Ok(None);
    };
    let detached = Detached::new(store, wall_clock(), pools.clone(), policies(config));
    detached.store().set_quotas(stored_quotas(config));
    detached.store().set_limits(stored_limits(config));
    detached.set_schedules(config.schedules.clone());
    Ok(Some(detached))
}

/// What the store is, for people.
pub(super) fn store_kind(config: &Config) -> &'static str {
    match &config.store {
        store if store.postgres().is_some() => "postgres",
        store if store.sqlite().is_some() => "sqlite",
        _ => "memory",
    }
}

/// The quotas of stored jobs.
pub(super) fn stored_quotas(config: &Config) -> StoredQuotas {
    let quota = |tenant: &TenantQuota| {
        let TenantQuota { rate: _, burst: _, in_flight: _, stored_jobs, stored_bytes } = *tenant;
        let [max_jobs, max_bytes] = [stored_jobs, stored_bytes].map(|most| most.unwrap_or(u64::MAX));
        stored_jobs.or(stored_bytes).map(|_| Bounds { max_jobs, max_bytes })
    };
    let named = config.quota.named.iter().map(|(name, tenant)| (name.clone(), quota(tenant))).collect();
    StoredQuotas { each: quota(&config.quota.each), named }
}

/// The limits of kinds over all servers of the store.
pub(super) fn stored_limits(config: &Config) -> StoredLimits {
    let limits = config.kinds.iter().map(|kind| {
        let KindLimits { all, per_key, keys: _, share: _ } = kind.options.limits;
        let [most_of_all, most_per_key] = [all, per_key].map(|limit| limit.concurrency.map(NonZeroU32::get));
        let (rate, key_rate) = (all.rate, per_key.rate);
        (kind.name.clone(), StoredLimit { all: most_of_all, rate, per_key: most_per_key, key_rate })
    });
    limits.filter(|(_, limit)| *limit != StoredLimit::default()).collect()
}

pub(super) fn policies(config: &Config) -> KindPolicies {
    config.kinds.iter().map(|kind| (kind.name.clone(), kind.policy)).collect()
}

/// Runs the dispatcher of detached jobs on a thread of its own, or on the current runtime.
pub(super) fn run_detached(detached: Detached, placement: Placement, tasks: &Tasks) -> io::Result<()> {
    if placement == Placement::CurrentRuntime {
        tasks.spawn(detached.run());
        return Ok(());
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    spawn_thread("detached".to_owned(), move || runtime.block_on(detached.run()))?;
    Ok(())
}
