//! Opens certificates and keys, and follows changes of their files.

use std::sync::Arc;

use crate::{
    auth::{Gate, KeysError, Quotas},
    config::Config,
    net::{Tls, TlsErrors},
    phase::{Phase, PhaseCell},
    rpc::Guard,
    task::Tasks,
};

/// Why certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// Every file of TLS that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsErrors),
    /// The keys of the token issuer.
    #[error("the keys of auth.jwt.jwks cannot be used: {0}; put the issuer's public keys there, as a JSON Web Key Set")]
    Keys(#[from] KeysError),
}

/// TLS and authentication of callers.
pub(super) struct Security {
    pub(super) tls: Option<Arc<Tls>>,
    pub(super) guard: Guard,
}

/// Reads TLS files and token keys, and makes the quotas.
pub(super) fn open(config: &Config) -> Result<Security, SecurityError> {
    let tls = config.server.tls.clone().map(Tls::open).transpose()?.map(Arc::new);
    let gate = config.auth.as_ref().map(Gate::open).transpose()?.map(Arc::new);
    let quotas = Arc::new(Quotas::new(&config.quota).map(Arc::new).into());
    Ok(Security { tls, guard: Guard { gate, quotas } })
}

impl Security {
    /// Reloads the files when they change, until the process has stopped.
    pub(super) fn follow(&self, config: &Config, phase: &PhaseCell, tasks: &Tasks) {
        let Self { tls, guard } = self;
        if let Some(tls) = tls {
            follow(Arc::clone(tls).keep_fresh(), phase, tasks);
        }
        if let (Some(gate), Some(jwt)) = (&guard.gate, config.auth.as_ref().and_then(|auth| auth.jwt.as_ref())) {
            follow(gate.keep_fresh(jwt.reload), phase, tasks);
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
