//! Authenticates callers, and denies calls without valid credentials. `src/auth/authenticator.rs` checks the credentials, and
//! `src/auth/caller.rs` applies the rules.

use std::sync::Arc;

use http::{HeaderValue, Request, Response, header::AUTHORIZATION};
use tonic::{Status, body::Body};

use super::{answer::Meters, checks::Check, route::Arrived};
use crate::{
    auth::{Authenticator, Caller, Certificate, Denial, Rpc, Service},
    model::{Origin, Peer},
    proto::{admin_service_server, job_service_server, worker_pool_service_server, worker_service_server},
    rpc::{
        context::{REQUEST_ID, request_id},
        routes::Catalog,
        status,
    },
};

/// Authentication of the calls of one connection.
#[derive(Clone)]
pub struct Credentials {
    authenticator: Arc<Authenticator>,
    certificate: Option<Arc<Certificate>>,
    peer: Arc<Peer>,
    catalog: Arc<Catalog>,
    /// `None` on the operators' listener, which has no TLS.
    meters: Option<Arc<Meters>>,
}

impl<B> Check<Arrived<B>> for Credentials {
    fn refuse(&self, call: &mut Arrived<B>) -> Option<Response<Body>> {
        if self.catalog.is_page(call.request.uri().path()) {
            return None;
        }
        match self.authenticate(&call.request) {
            Ok(caller) => {
                call.arrival.caller = caller;
                None
            }
            Err(status) => {
                if let Some((meters, method)) = self.meters.as_ref().zip(call.method) {
                    meters.calls.refuse(method, status.code());
                }
                Some(status.into_http())
            }
        }
    }
}

impl Credentials {
    /// Authentication for one connection. On a Unix socket, the permissions of the socket file authorize operators.
    pub(super) fn of(
        authenticator: &Arc<Authenticator>,
        peer: &Arc<Peer>,
        catalog: &Arc<Catalog>,
        meters: Option<&Arc<Meters>>,
    ) -> Option<Self> {
        if meters.is_none() && matches!(peer.origin, Origin::Process { .. }) {
            return None;
        }
        Some(Self {
            authenticator: Arc::clone(authenticator),
            certificate: peer.certificate.as_ref().map(|der| Arc::new(Certificate::read(der))),
            peer: Arc::clone(peer),
            catalog: Arc::clone(catalog),
            meters: meters.cloned(),
        })
    }

    /// The caller, for calls that need one. An authenticated caller may call an unknown method, and gets a list of the
    /// known ones.
    ///
    /// # Errors
    /// UNAUTHENTICATED and PERMISSION_DENIED.
    fn authenticate<B>(&self, request: &Request<B>) -> Result<Option<Arc<Caller>>, Status> {
        let path = request.uri().path();
        let target = target(path);
        if let Target::Open = target {
            return Ok(None);
        }
        let tokens = request.headers().get_all(AUTHORIZATION).into_iter().map(HeaderValue::as_bytes);
        let caller = self.authenticator.authenticate(self.certificate.as_deref(), tokens).and_then(|caller| {
            let allowed = match target {
                Target::Guarded(rpc) => caller.may_call(rpc),
                Target::Open | Target::Unknown => Err(caller.denied("a method that no rule can name")),
            };
            match allowed {
                Err(denial) if self.catalog.has_rpc(path) => Err(denial),
                Ok(()) | Err(_) => Ok(caller),
            }
        });
        caller.map(Some).map_err(|mut denial| {
            if let Denial::NoCredentials { certificate, .. } = &mut denial {
                *certificate = self.peer.certificate_request;
            }
            self.authenticator.note(&denial);
            status::denied(&denial, &request_id(request.headers().get(REQUEST_ID)), Some(&self.peer.origin))
        })
    }
}

/// What a path refers to.
enum Target {
    /// Health: load balancers and probes have no credentials. They learn no more from health than from a refusal.
    Open,
    Guarded(Rpc),
    /// A path that no rule can name.
    Unknown,
}

fn target(path: &str) -> Target {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return Target::Unknown;
    };
    let rpc = match service {
        "grpc.health.v1.Health" => return Target::Open,
        worker_pool_service_server::SERVICE_NAME => Rpc::of(Service::WorkerPool, method),
        job_service_server::SERVICE_NAME => Rpc::of(Service::Job, method),
        worker_service_server::SERVICE_NAME => Rpc::of(Service::Worker, method),
        admin_service_server::SERVICE_NAME => Rpc::of(Service::Admin, method),
        "grpc.reflection.v1.ServerReflection" | "grpc.reflection.v1alpha.ServerReflection" => Some(Rpc::Reflection),
        "xds.service.orca.v3.OpenRcaService" => Some(Rpc::LoadReports),
        _ => None,
    };
    rpc.map_or(Target::Unknown, Target::Guarded)
}
