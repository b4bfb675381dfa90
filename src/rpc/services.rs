use std::sync::Arc;

use tonic::{codec::CompressionEncoding, service::Routes};
use tonic_health::pb::health_server::HealthServer;

use super::{Admin, Edge, Guard, Health, UploadLimits, WorkerPool, edge::MakeWorkerPool, upload::Uploads};
use crate::proto::{
    DESCRIPTORS, admin_service_server::AdminServiceServer, worker_pool_service_server::WorkerPoolServiceServer,
};

/// Room for the fields of a message besides its payload, so that a payload over its limit is refused by name and not
/// by the codec.
const ENVELOPE: usize = 64 << 10;

/// Operators' calls bring the headers of their client and no others.
const OPS_HEADER_LIST: usize = 16 << 10;

/// No call of an operator is of more than a few bytes; one message of the codec's own limit fits.
const OPS_UPLOADS: UploadLimits = UploadLimits { total: 16 << 20, per_connection: 5 << 20 };

/// Sizes of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most payload bytes of one job.
    pub max_payload: usize,
    /// Most output bytes of one result.
    pub max_output: usize,
    /// Most bytes of the headers of one call, as HTTP/2 counts them.
    pub max_header_list: usize,
    /// What messages may hold that are not whole.
    pub uploads: UploadLimits,
}

/// What callers reach: the worker pool, health and reflection.
///
/// # Errors
/// Where the descriptors cannot be served, which a build with sound protos rules out.
pub fn public_services(
    worker_pool: WorkerPool,
    health: Health,
    limits: Limits,
    guard: &Guard,
) -> Result<Edge, tonic_reflection::server::Error> {
    let make: MakeWorkerPool = Arc::new(move || {
        WorkerPoolServiceServer::new(worker_pool.clone())
            .max_decoding_message_size(limits.max_payload.saturating_add(ENVELOPE))
            .max_encoding_message_size(limits.max_output.saturating_add(ENVELOPE))
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Zstd)
    });
    let others = Routes::new(HealthServer::new(health)).add_service(reflection().build_v1()?);
    Ok(Edge::new(
        Some(make),
        others.add_service(reflection().build_v1alpha()?).prepare(),
        limits.max_header_list,
        Uploads::new(limits.uploads.with(ENVELOPE)),
    )
    .guarded_by(guard.entrance()))
}

/// What operators reach: steering, health and reflection.
///
/// # Errors
/// As for [`public_services`].
pub fn ops_services(admin: Admin, health: Health, guard: &Guard) -> Result<Edge, tonic_reflection::server::Error> {
    let others = Routes::new(HealthServer::new(health))
        .add_service(AdminServiceServer::new(admin))
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok(Edge::new(None, others.prepare(), OPS_HEADER_LIST, Uploads::new(OPS_UPLOADS)).guarded_by(guard.ops_entrance()))
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
