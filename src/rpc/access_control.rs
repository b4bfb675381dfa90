//! Authorization of jobs and workers, and quotas. `src/rpc/edge/checks.rs` authenticates callers, and
//! `src/auth/caller.rs` applies the rules.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use tokio::time::sleep;
use tonic::Status;

use super::{context::CallContext, status};
use crate::{
    auth::{Authenticator, Caller, Denial, Hold, OverQuota, Quotas, Rpc},
    model::{CertificateRequest, Criticality, Job, Origin, Peer, Rejection, RejectionReason},
    pool::Pools,
    proto::{self, DetachedJob},
};

/// Time between two checks of the credentials of a long call.
const RECHECK: Duration = Duration::from_secs(10);

/// Authorizes calls and jobs. Without authentication, it allows everything.
#[derive(Clone, Default)]
pub struct AccessControl {
    /// Authenticates callers and knows the rules.
    pub authenticator: Option<Arc<Authenticator>>,
    /// Quotas of tenants.
    pub quotas: Arc<ArcSwapOption<Quotas>>,
    /// Whether the calls are those of operators. A call that needed no credentials may then read all jobs, without
    /// payloads and outputs.
    pub is_of_operators: bool,
}

impl AccessControl {
    /// Authorizes a job: sets the tenant of its caller, and takes one job of that tenant's quota until the hold is
    /// dropped. A job with an invalid field takes no quota, because `pools` refuses it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED and RESOURCE_EXHAUSTED, with the id of the call.
    pub(super) fn admit(
        &self,
        pools: &Pools,
        rpc: Rpc,
        call: &CallContext,
        job: &mut Job,
    ) -> Result<Option<Hold>, Status> {
        let Self { authenticator, quotas, is_of_operators: _ } = self;
        let quotas = quotas.load();
        if authenticator.is_some() || quotas.is_some() {
            pools.check(job).map_err(|refused| status::status(&refused.into(), call.request_id()))?;
        }
        match authenticator {
            Some(authenticator) => {
                let tenant = tenant_of_job(authenticator, rpc, call, job);
                let tenant = tenant.map_err(|denial| self.denied(&denial, call, None))?;
                if let Some(tenant) = tenant.filter(|_| job.tenant.is_empty()) {
                    job.tenant.push_str(tenant);
                }
            }
            // Without authentication, no caller may claim the highest importance.
            None if job.criticality > Criticality::Critical => {
                let denial = Denial::criticality("anonymous", job.criticality, Criticality::Critical);
                return Err(self.denied(&denial, call, None));
            }
            None => {}
        }
        take_quota(quotas.as_deref(), call, job)
    }

    /// Takes one job of its tenant's quota, for a job that was authorized when it was created.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, with the id of the call.
    pub(super) fn admit_again(&self, call: &CallContext, job: &Job) -> Result<Option<Hold>, Status> {
        take_quota(self.quotas.load().as_deref(), call, job)
    }

    /// The tenant whose jobs a call is about; `None` for any tenant. Without authentication, it is the requested one.
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
        if !self.is_guarded(call) {
            return Ok(asked.map(str::to_owned));
        }
        let tenant = caller(call).and_then(|caller| caller.tenant_of_jobs(rpc, kind, asked));
        tenant.map(|tenant| tenant.map(str::to_owned)).map_err(|denial| self.denied(&denial, call, None))
    }

    /// Whether a call may read or change a job. Without authentication, it always may.
    pub(super) fn allows(&self, rpc: Rpc, call: &CallContext, job: &Job) -> bool {
        let may = |caller: &Caller| caller.tenant_of_jobs(rpc, Some(&job.kind), Some(&job.tenant)).is_ok();
        !self.is_guarded(call) || call.caller.as_deref().is_some_and(may)
    }

    /// Whether the rules apply to a call. An operator's call may have needed no credentials.
    fn is_guarded(&self, call: &CallContext) -> bool {
        self.authenticator.is_some() && (!self.is_of_operators || call.caller.is_some())
    }

    /// Counts a denial. Returns its status.
    fn denied(&self, denial: &Denial, call: &CallContext, peer: Option<&Peer>) -> Status {
        if let Some(authenticator) = &self.authenticator {
            authenticator.note(denial);
        }
        status::denied(denial, call.request_id(), peer.map(|peer| &peer.origin))
    }

    /// A detached job as its reader may see it.
    pub(super) fn shown(&self, job: DetachedJob) -> DetachedJob {
        if !self.is_of_operators {
            return job;
        }
        let work = job.job.map(|work| proto::Job { payload: Bytes::new(), ..work });
        DetachedJob { job: work, output: Vec::new(), ..job }
    }

    /// Authorizes a worker that runs `kinds` to attach. Without authentication, the worker must be on the server's own
    /// machine.
    ///
    /// # Errors
    /// UNAUTHENTICATED and PERMISSION_DENIED, with the id of the call.
    pub(super) fn admit_worker(&self, call: &CallContext, peer: Option<&Peer>, kinds: &[String]) -> Result<(), Status> {
        let admitted = match peer.map(|peer| peer.origin) {
            _ if self.authenticator.is_some() => caller(call).and_then(|caller| caller.may_serve(Rpc::Attach, kinds)),
            Some(Origin::Address(address)) if !address.ip().to_canonical().is_loopback() => {
                Err(Denial::RemoteWorkerWithoutAuth)
            }
            _ => Ok(()),
        };
        admitted.map_err(|denial| self.denied(&denial, call, peer))
    }

    /// Returns when the credentials of a caller have expired. Cancel safe.
    pub(super) async fn expired(&self, caller: Option<&Caller>) -> Denial {
        let (Some(authenticator), Some(caller)) = (&self.authenticator, caller) else {
            return std::future::pending().await;
        };
        loop {
            if let Err(denial) = authenticator.recheck(caller) {
                authenticator.note(&denial);
                return denial;
            }
            sleep(RECHECK).await;
        }
    }
}

/// The caller. A call without one bypassed the edge, and is denied.
fn caller(call: &CallContext) -> Result<&Caller, Denial> {
    let none = Denial::NoCredentials { certificate: CertificateRequest::Sent, tokens: true };
    call.caller.as_deref().ok_or(none)
}

/// The tenant of a job, if the credentials and the rules of its caller still allow the job.
fn tenant_of_job<'a>(
    authenticator: &Authenticator,
    rpc: Rpc,
    call: &'a CallContext,
    job: &Job,
) -> Result<Option<&'a str>, Denial> {
    let caller = caller(call)?;
    authenticator.recheck(caller)?;
    caller.tenant_of_job(rpc, job)
}

fn take_quota(quotas: Option<&Quotas>, call: &CallContext, job: &Job) -> Result<Option<Hold>, Status> {
    let Some(quotas) = quotas else { return Ok(None) };
    quotas.take(&job.tenant).map_err(|over| {
        let (reason, retry_after) = match over {
            OverQuota::Rate { rate, retry_after } => {
                (RejectionReason::OverRate { rate: rate.get() }, Some(retry_after))
            }
            OverQuota::InFlight { limit } => (RejectionReason::OverInFlight { limit }, None),
        };
        let rejection = Rejection { reason, pool: None, kind: job.kind.as_str().into(), retry_after };
        status::status(&rejection.into(), call.request_id())
    })
}
