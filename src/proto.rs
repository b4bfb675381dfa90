//! Generated code of the protos in `proto/waterwheel/v1`, and its codec.

mod codec;

pub(crate) use codec::{CopyingDecoder, MAX_ENVELOPE, decode};
pub use generated::*;

/// Generated code of the health proto.
pub use tonic_health::pb as health;

/// Generated code of the vendored load-report protos.
pub mod xds {
    pub use super::generated::xds::*;
}

/// Generated code of the vendored proto of KEDA.
pub mod externalscaler {
    pub use super::generated::externalscaler::*;
}

/// The encoded descriptors, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/waterwheel.v1.bin"));

#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]
mod generated {
    tonic::include_proto!("waterwheel.v1");

    pub mod externalscaler {
        tonic::include_proto!("externalscaler");
    }

    pub mod xds {
        pub mod data {
            pub mod orca {
                pub mod v3 {
                    tonic::include_proto!("xds.data.orca.v3");
                }
            }
        }
        pub mod service {
            pub mod orca {
                pub mod v3 {
                    tonic::include_proto!("xds.service.orca.v3");
                }
            }
        }
    }
}
