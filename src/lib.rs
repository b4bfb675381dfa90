//! stub
pub mod cli;
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub, unused_qualifications, reason = "generated code")]
pub mod proto {
    tonic::include_proto!("waterwheel.v1");
}
