//! Compiles `proto/` with a pure-Rust compiler, so that the build needs no protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "server")]
    contract::compile()?;
    Ok(())
}

#[cfg(feature = "server")]
mod contract {
    use std::{env, error::Error, fs, path::PathBuf};

    use prost::Message;

    const PROTOS: [&str; 9] = [
        "waterwheel/v1/job.proto",
        "waterwheel/v1/stats.proto",
        "waterwheel/v1/worker_pool_service.proto",
        "waterwheel/v1/worker_service.proto",
        "waterwheel/v1/job_service.proto",
        "waterwheel/v1/admin_service.proto",
        "xds/data/orca/v3/orca_load_report.proto",
        "xds/service/orca/v3/orca.proto",
        "externalscaler/externalscaler.proto",
    ];

    /// Parts of the messages of a stream that pass through many hands: a pointer is cheaper to move.
    const MOVED_OFTEN: [&str; 2] =
        ["waterwheel.v1.SubmitManyRequest.job", "waterwheel.v1.SubmitManyResponse.outcome.result"];

    /// Bytes that are handed on as they came, or in parts. What is only written once is a vector: the codec clones a
    /// `Bytes` to write it, and its first clone allocates.
    const SHARED: [&str; 6] = [
        ".waterwheel.v1.Job.payload",
        ".waterwheel.v1.OutputChunk.data",
        ".waterwheel.v1.AttemptOutput.data",
        ".waterwheel.v1.AttachRequest.Output.data",
        ".waterwheel.v1.AttachRequest.Done.data",
        ".waterwheel.v1.AttachResponse.Run.payload",
    ];

    #[expect(clippy::disallowed_methods, reason = "cargo speaks to a build script through the environment")]
    pub(crate) fn compile() -> Result<(), Box<dyn Error>> {
        println!("cargo:rerun-if-changed=proto");
        let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
        let descriptors = protox::compile(PROTOS, ["proto"])?;
        // `compile_fds` ignores `file_descriptor_set_path`, and reflection needs the encoded set.
        fs::write(out_dir.join("waterwheel.v1.bin"), descriptors.encode_to_vec())?;
        let mut config =
            tonic_prost_build::configure().btree_map(".waterwheel.v1").codec_path("crate::proto::codec::CopyingCodec");
        for large in MOVED_OFTEN {
            config = config.boxed(large);
        }
        for bytes in SHARED {
            config = config.bytes(bytes);
        }
        // The codec knows by its name whether a message holds a job.
        let mut names = tonic_prost_build::Config::new();
        names.enable_type_names();
        config.compile_fds_with_config(descriptors, names)?;
        Ok(())
    }
}
