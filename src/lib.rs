//! stub
#[allow(missing_docs)]
pub mod proto { tonic::include_proto!("waterwheel.v1"); }
