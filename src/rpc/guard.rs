//! Authorization of calls and jobs, and quotas. The rules are applied in `src/auth/caller.rs`.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use http::{HeaderValue, Request, header::AUTHORIZATION};
use tokio::time::sleep;
use tonic::Status;

use super::{
    catalog::Catalog,
    context::{CallContext, REQUEST_ID, request_id},
    status,
};
use crate::{
    auth::{Caller, Certificate, Denial, Gate, Hold, OverQuota, Quotas, Rpc},
    model::{Criticality, Job, Origin, Peer, Rejection, RejectionReason},
    pool::Pools,
    proto::{admin_service_server, job_service_server, worker_pool_service_server, worker_service_server},
};

/// Time between two looks at the credentials of a call that stays.
const RECHECK: Duration = Duration::from_secs(10);

/// Authorizes calls and jobs. Without configuration, it allows everything.
#[derive(Clone, Default)]
pub struct Guard {
    /// Authenticates callers and knows the rules.
    pub gate: Option<Arc<Gate>>,
    /// Quotas of tenants.
    pub quotas: Arc<ArcSwapOption<Quotas>>,
}

/// Authentication of the calls of one connection.
#[derive(Clone)]
pub(super) struct Entrance {
    gate: Arc<Gate>,
    certificate: Option<Arc<Certificate>>,
    listener: Listener,
    /// Where the connection comes from; `None` before there is one.
    origin: Option<Origin>,
    /// Whether no client certificate could be requested, because the client CA is empty or missing.
    is_unasked: bool,
}

/// The listener of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listener {
    Callers,
    /// The operator's listener, which has no TLS.
    Operators,
}

/// What a path refers to.
enum Target {
    /// Health: load balancers and probes have no credentials, and learn nothing more from it than from a refusal.
    Open,
    Guarded(Rpc),
    /// A path that no rule can name.
    Unknown,
}

impl Guard {
    pub(super) fn entrance(&self) -> Option<Entrance> {
        let gate = self.gate.clone()?;
        Some(Entrance { gate, certificate: None, listener: Listener::Callers, origin: None, is_unasked: false })
    }

    pub(super) fn ops_entrance(&self) -> Option<Entrance> {
        let entrance = self.entrance().filter(|entrance| entrance.gate.guards_ops())?;
        Some(Entrance { listener: Listener::Operators, ..entrance })
    }

    /// Authorizes a job: sets the tenant of its caller, and takes one job of that tenant's quota until the hold is
    /// dropped. A job with an invalid field takes no quota; `pools` refuses it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED and RESOURCE_EXHAUSTED, with the id of the call. The status
    /// is recorded in the call's span.
    pub(super) fn admit(
        &self,
        pools: &Pools,
        rpc: Rpc,
        call: &CallContext,
        job: &mut Job,
    ) -> Result<Option<Hold>, Status> {
        let Self { gate, quotas } = self;
        let quotas = quotas.load();
        if gate.is_some() || quotas.is_some() {
            pools.check(job).map_err(|refused| noted(call, status::status(&refused.into(), call.request_id())))?;
        }
        match gate {
            Some(gate) => assign_tenant(gate, rpc, call, job)?,
            // Without authentication, all callers are equally important.
            None if job.criticality > Criticality::Critical => {
                let (principal, claimed) = ("anonymous".to_owned(), job.criticality);
                let denial = Denial::Criticality { principal, claimed, max: Criticality::Critical };
                return Err(noted(call, status::denied(&denial, call.request_id(), None)));
            }
            None => {}
        }
        match &*quotas {
            Some(quotas) => take_room(quotas, call, job),
            None => Ok(None),
        }
    }
}

impl Guard {
    /// The tenant whose jobs a call is about; `None` if it may be any. Without authentication, it is the one that is
    /// asked for.
    ///
    /// # Errors
    /// UNAUTHENTICATED and PERMISSION_DENIED, with the id of the call.
    pub(super) fn tenant(
        &self,
        rpc: Rpc,
        call: &CallContext,
        kind: Option<&str>,
        asked: Option<&str>,
    ) -> Result<Option<String>, Status> {
        let Some(gate) = &self.gate else { return Ok(asked.map(str::to_owned)) };
        let caller = call.caller().ok_or(Denial::NoCredentials { tokens: true });
        let tenant = caller.and_then(|caller| caller.tenant_of_jobs(rpc, kind, asked));
        tenant.map(|tenant| Some(tenant.to_owned())).map_err(|denial| {
            gate.note(&denial);
            status::denied(&denial, call.request_id(), None)
        })
    }

    /// Whether a call may read or change a job. Without authentication, it may.
    pub(super) fn allows(&self, rpc: Rpc, call: &CallContext, job: &Job) -> bool {
        let may = |caller: &Caller| caller.tenant_of_jobs(rpc, Some(&job.kind), Some(&job.tenant)).is_ok();
        self.gate.is_none() || call.caller().is_some_and(may)
    }

    /// Authorizes a worker that runs `kinds` to attach. Without authentication, it must be on the server's own machine.
    ///
    /// # Errors
    /// UNAUTHENTICATED and PERMISSION_DENIED, with the id of the call.
    pub(super) fn admit_worker(&self, call: &CallContext, peer: Option<&Peer>, kinds: &[String]) -> Result<(), Status> {
        let denied = |denial: Denial| {
            self.gate.iter().for_each(|gate| gate.note(&denial));
            noted(call, status::denied(&denial, call.request_id(), peer.map(|peer| &peer.origin)))
        };
        if self.gate.is_some() {
            let caller = call.caller().ok_or(Denial::NoCredentials { tokens: true });
            return caller.and_then(|caller| caller.may_serve(Rpc::Attach, kinds)).map_err(denied);
        }
        match peer.map(|peer| peer.origin) {
            Some(Origin::Address(address)) if !address.ip().to_canonical().is_loopback() => {
                Err(denied(Denial::Elsewhere))
            }
            _ => Ok(()),
        }
    }

    /// Returns when the credentials of a call are not valid any more. Cancel safe.
    pub(super) async fn expired(&self, call: &CallContext) {
        let (Some(gate), Some(caller)) = (&self.gate, call.caller()) else { return std::future::pending().await };
        while gate.recheck(caller).is_ok() {
            sleep(RECHECK).await;
        }
    }
}

fn assign_tenant(gate: &Gate, rpc: Rpc, call: &CallContext, job: &mut Job) -> Result<(), Status> {
    // Without a caller, the call bypassed the edge. Deny it rather than allow it by mistake.
    let caller = call.caller().ok_or(Denial::NoCredentials { tokens: true });
    let tenant = caller.and_then(|caller| gate.recheck(caller).and_then(|()| caller.tenant_of_job(rpc, job)));
    match tenant {
        Ok(tenant) => {
            if job.tenant.is_empty() {
                job.tenant.push_str(tenant);
            }
            Ok(())
        }
        Err(denial) => {
            gate.note(&denial);
            Err(noted(call, status::denied(&denial, call.request_id(), None)))
        }
    }
}

fn take_room(quotas: &Quotas, call: &CallContext, job: &Job) -> Result<Option<Hold>, Status> {
    quotas.take(&job.tenant).map_err(|over| {
        let (reason, retry_after) = match over {
            OverQuota::Rate { rate, retry_after } => {
                (RejectionReason::OverRate { rate: rate.get() }, Some(retry_after))
            }
            OverQuota::InFlight { limit } => (RejectionReason::OverInFlight { limit }, None),
        };
        let rejection = Rejection { reason, pool: None, kind: job.kind.as_str().into(), retry_after };
        noted(call, status::status(&rejection.into(), call.request_id()))
    })
}

fn noted(call: &CallContext, status: Status) -> Status {
    call.record_status(status.code());
    status
}

impl Entrance {
    /// Authentication for one connection. An operator on a Unix socket is authorized by the permissions of its file.
    pub(super) fn for_peer(&self, peer: &Peer) -> Option<Self> {
        if self.listener == Listener::Operators && matches!(peer.origin, Origin::Process { .. }) {
            return None;
        }
        let certificate = peer.certificate.as_ref().map(|der| Arc::new(Certificate::read(der)));
        let (gate, listener) = (Arc::clone(&self.gate), self.listener);
        Some(Self { gate, certificate, listener, origin: Some(peer.origin), is_unasked: peer.is_unasked })
    }

    /// The caller, for calls that need one. An authenticated caller may call unknown methods of `catalog`: the answer
    /// is the list of known ones.
    ///
    /// # Errors
    /// UNAUTHENTICATED and PERMISSION_DENIED.
    pub(super) fn authenticate<B>(
        &self,
        request: &Request<B>,
        catalog: &Catalog,
    ) -> Result<Option<Arc<Caller>>, Status> {
        let path = request.uri().path();
        let target = target(path);
        if let Target::Open = target {
            return Ok(None);
        }
        let tokens = request.headers().get_all(AUTHORIZATION).into_iter().map(HeaderValue::as_bytes);
        let caller = self.gate.authenticate(self.certificate.as_deref(), tokens).and_then(|caller| {
            let allowed = match target {
                Target::Guarded(rpc) => caller.may_call(rpc),
                Target::Open | Target::Unknown => Err(caller.denied("a method that no rule can name")),
            };
            match allowed {
                Err(denial) if catalog.has_rpc(path) => Err(denial),
                Ok(()) | Err(_) => Ok(caller),
            }
        });
        caller.map(Some).map_err(|denial| {
            let denial = match (denial, self.listener) {
                (Denial::NoCredentials { tokens }, Listener::Operators) => Denial::NoToken { tokens },
                (Denial::NoCredentials { tokens }, Listener::Callers) if self.is_unasked => {
                    Denial::NobodyTrusted { tokens }
                }
                (denial, _) => denial,
            };
            self.gate.note(&denial);
            status::denied(&denial, &request_id(request.headers().get(REQUEST_ID)), self.origin.as_ref())
        })
    }
}

fn target(path: &str) -> Target {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return Target::Unknown;
    };
    let rpc = match service {
        // It lists the names of pools.
        "grpc.health.v1.Health" if method == "List" => Some(Rpc::Stats),
        "grpc.health.v1.Health" => return Target::Open,
        worker_pool_service_server::SERVICE_NAME => Rpc::named(method).filter(|rpc| rpc.is_of_worker_pool()),
        job_service_server::SERVICE_NAME => Rpc::of_job_service(method),
        worker_service_server::SERVICE_NAME => Rpc::named(method).filter(|rpc| *rpc == Rpc::Attach),
        admin_service_server::SERVICE_NAME => Rpc::named(method).filter(|rpc| rpc.is_of_admin()),
        "grpc.reflection.v1.ServerReflection" | "grpc.reflection.v1alpha.ServerReflection" => Some(Rpc::Reflection),
        "xds.service.orca.v3.OpenRcaService" => Some(Rpc::LoadReports),
        _ => None,
    };
    rpc.map_or(Target::Unknown, Target::Guarded)
}
