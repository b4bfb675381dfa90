//! Builds the pools from the configuration and from Rust handlers.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

use crate::{
    config::{self, Config},
    handler::{ExecCommand, InvalidExecCommand, Kind, KindOptions, Processes, RemoteWorkers},
    pool::{Pool, PoolBuilder},
};

/// Time that `exec` waits beyond the grace before it kills the program itself. The pool's stop ladder acts first, so
/// that its rung is reported.
const EXEC_SLACK: Duration = Duration::from_millis(500);

/// Why the pools cannot be built. Without Rust handlers, a checked configuration always builds.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    /// The program cannot run as configured.
    #[error("kind {kind:?}: {error}")]
    Exec {
        /// Name of the kind.
        kind: String,
        /// The fault.
        error: InvalidExecCommand,
    },
    /// A Rust handler names a pool that does not exist.
    #[error("kind {kind:?} runs in pool {pool:?}, which is not configured; add [pool.{pool}]")]
    UnknownPool {
        /// Name of the kind.
        kind: String,
        /// The pool that was named.
        pool: String,
    },
    /// A Rust handler names a pool with attached workers.
    #[error("kind {kind:?} runs in pool {pool:?}, whose workers attach from elsewhere; give it another pool")]
    RemotePool {
        /// Name of the kind.
        kind: String,
        /// The pool that was named.
        pool: String,
    },
    /// Two handlers have the same name.
    #[error("there are two kinds {kind:?}; rename one of them")]
    KindTwice {
        /// Name of the kinds.
        kind: String,
    },
}

/// A Rust handler, and the pool that runs it.
#[derive(Debug, Clone)]
pub struct OwnKind {
    /// Name of the pool in the configuration.
    pub pool: String,
    /// Name, options and factory of the handler.
    pub kind: Kind,
}

impl OwnKind {
    /// Runs `kind` in the pool named `pool`.
    pub fn new(pool: impl Into<String>, kind: Kind) -> Self {
        Self { pool: pool.into(), kind }
    }
}

pub(super) fn pools(config: &Config, own: &[OwnKind]) -> Result<Vec<Pool>, AssembleError> {
    let runners = Runners::default();
    let kinds = kinds(config, own, |kind| make(kind, &runners))?;
    let build = |(pool, kinds): (&config::Pool, Vec<Kind>)| {
        let builder = Pool::builder(pool.name.as_str()).settings(pool.settings.clone());
        let pool = kinds.into_iter().fold(builder, PoolBuilder::kind).build();
        pool.name_tenants(&tenants(config));
        pool
    };
    Ok(config.pools.iter().zip(kinds).map(build).collect())
}

/// The tenants that a quota or a rule names.
pub(super) fn tenants(config: &Config) -> Vec<&str> {
    let rules = config.auth.iter().flat_map(|auth| &auth.rules).filter_map(|rule| rule.tenant.as_deref());
    config.quota.named.iter().map(|(name, _)| name.as_str()).chain(rules.filter(|tenant| *tenant != "*")).collect()
}

/// The kinds of each configured pool; `make` creates the configured ones.
pub(super) fn kinds(
    config: &Config,
    own: &[OwnKind],
    make: impl Fn(&config::Kind) -> Result<Kind, AssembleError>,
) -> Result<Vec<Vec<Kind>>, AssembleError> {
    check(config, own)?;
    let kinds = |pool: &config::Pool| {
        let own = own.iter().filter(|served| served.pool == pool.name).map(|served| Ok(served.kind.clone()));
        config.kinds.iter().filter(|kind| kind.pool == pool.name).map(&make).chain(own).collect()
    };
    config.pools.iter().map(kinds).collect()
}

fn check(config: &Config, own: &[OwnKind]) -> Result<(), AssembleError> {
    for (index, OwnKind { pool, kind }) in own.iter().enumerate() {
        let name = kind.name();
        if !config.pools.iter().any(|declared| declared.name == *pool) {
            return Err(AssembleError::UnknownPool { kind: name.to_string(), pool: pool.clone() });
        }
        let is_remote = |of: &&config::Kind| of.pool == *pool && matches!(of.handler, config::Handler::Remote { .. });
        if config.kinds.iter().any(|kind| is_remote(&kind)) {
            return Err(AssembleError::RemotePool { kind: name.to_string(), pool: pool.clone() });
        }
        let configured = config.kinds.iter().any(|kind| kind.name == **name);
        if configured || own[..index].iter().any(|other| other.kind.name() == name) {
            return Err(AssembleError::KindTwice { kind: name.to_string() });
        }
    }
    Ok(())
}

/// What runs the jobs of several kinds of a pool: the processes of a program, or attached workers. By name of the pool.
#[derive(Default)]
pub(super) struct Runners {
    processes: Mutex<Vec<(String, Arc<Processes>)>>,
    remote: Mutex<Vec<(String, Arc<RemoteWorkers>)>>,
}

impl Runners {
    /// Those of `pools`.
    pub(super) fn of(pools: &[Pool]) -> Self {
        let name = |pool: &Pool| pool.name().to_string();
        let processes = pools.iter().flat_map(|pool| pool.processes().into_iter().map(move |it| (name(pool), it)));
        let remote = pools.iter().filter_map(|pool| Some((name(pool), pool.remote_workers()?)));
        Self { processes: Mutex::new(processes.collect()), remote: Mutex::new(remote.collect()) }
    }
}

/// The existing entry of `pool` that is the same, or else a new one.
fn known<T>(
    all: &mut Vec<(String, Arc<T>)>,
    pool: &str,
    is_same: impl Fn(&T) -> bool,
    make: impl FnOnce() -> Arc<T>,
) -> Arc<T> {
    if let Some((_, same)) = all.iter().find(|(of, it)| of == pool && is_same(it)) {
        return Arc::clone(same);
    }
    let made = make();
    all.push((pool.to_owned(), Arc::clone(&made)));
    made
}

pub(super) fn make(kind: &config::Kind, runners: &Runners) -> Result<Kind, AssembleError> {
    let config::Kind { name, pool, options, policy: _, handler } = kind;
    match handler {
        config::Handler::Builtin(builtin) => Ok(builtin.kind(name, options.clone())),
        config::Handler::Exec(command) => {
            let kill_grace = command.kill_grace.saturating_add(EXEC_SLACK);
            let kind = ExecCommand { kill_grace, ..command.clone() }.kind(name);
            let kind = kind.map_err(|error| AssembleError::Exec { kind: name.clone(), error })?;
            Ok(kind.options(KindOptions { cancel_grace: Some(command.kill_grace), ..options.clone() }))
        }
        config::Handler::Program(program) => {
            let is_same = |it: &Processes| it.program() == program;
            let processes = known(&mut runners.processes.lock(), pool, is_same, || Processes::new(program.clone()));
            let cancel_grace = Some(program.cancel_grace);
            Ok(processes.kind(name).options(KindOptions { cancel_grace, ..options.clone() }))
        }
        config::Handler::Remote { kinds, cancel_grace, idle_leave } => {
            let (is_same, grace) = (|it: &RemoteWorkers| it.kinds() == kinds, *cancel_grace);
            let workers = known(&mut runners.remote.lock(), pool, is_same, || RemoteWorkers::new(kinds.clone(), grace));
            workers.set(grace, *idle_leave);
            Ok(workers.kind(name).options(options.clone()))
        }
    }
}
