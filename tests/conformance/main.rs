//! The server that the conformance runner of Connect calls, on the listener and the edge of the program: gRPC, gRPC-Web
//! and Connect. The runner says on standard input how it wants the server, and reads where it is.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a fault of this server is a failure of the runner")]

mod messages;
mod service;

use std::{
    error::Error,
    fmt::Write as _,
    io::{Read as _, Write as _, stdin, stdout},
    path::Path,
};

use prost::Message as _;
use prost_reflect::DescriptorPool;
use waterwheel::{
    app::App,
    config::{Config, SourceFile, Sources, load_pools},
};

use self::{
    messages::{Credentials, Started, Wanted},
    service::Conformance,
};

/// The limit of messages without one of the runner.
const LARGEST: u32 = 4 << 20;
/// What the server adds to the largest payload, for the other fields of a message.
const ENVELOPE: u32 = 64 << 10;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut length = [0; 4];
    stdin().read_exact(&mut length)?;
    let mut wanted = vec![0; u32::from_be_bytes(length) as usize];
    stdin().read_exact(&mut wanted)?;
    let wanted = Wanted::decode(&wanted[..])?;
    let directory = tempfile::tempdir()?;
    let config = config(&wanted, directory.path())?;

    let protos = concat!(env!("CARGO_MANIFEST_DIR"), "/vendored");
    let files = protox::compile(["connectrpc/conformance/v1/service.proto"], [protos])?;
    let pool = DescriptorPool::from_file_descriptor_set(files)?;
    let name = "connectrpc.conformance.v1.ConformanceService";
    let descriptor = pool.get_service_by_name(name).ok_or("the files have the service")?;
    let service = Conformance { descriptor: descriptor.clone(), largest: limit(&wanted) as usize };

    let app = App::start_beside(&config, Vec::new(), |edge| edge.also(service, descriptor))?;
    let address = app.address().tcp().ok_or("it listens on a port")?;
    let pem_cert = wanted.server_creds.filter(|_| wanted.use_tls).map(|creds| creds.cert).unwrap_or_default();
    let started = Started { host: address.ip().to_string(), port: address.port().into(), pem_cert }.encode_to_vec();
    let mut out = stdout().lock();
    out.write_all(&u32::try_from(started.len())?.to_be_bytes())?;
    out.write_all(&started)?;
    out.flush()?;
    drop(out);
    // Until the runner kills it.
    app.run().await;
    Ok(())
}

fn limit(wanted: &Wanted) -> u32 {
    if wanted.message_receive_limit == 0 { LARGEST } else { wanted.message_receive_limit }
}

/// The configuration, with the files that it names in `directory`.
fn config(wanted: &Wanted, directory: &Path) -> Result<Config, Box<dyn Error>> {
    let mut text = format!(
        "kind.echo = {{ pool = \"one\", builtin = \"echo\" }}\npool.one.workers = 1\n[server]\nthreads = 1\n\
         listen = \"127.0.0.1:0\"\nops_listen = \"127.0.0.1:0\"\njson = true\n\
         grpc_web_origins = [\"https://app.example\"]\nmax_payload = \"{}KiB\"\n",
        (limit(wanted) - ENVELOPE) >> 10,
    );
    if let (true, Some(Credentials { cert, key })) = (wanted.use_tls, &wanted.server_creds) {
        let files = [directory.join("server.crt"), directory.join("server.key")];
        std::fs::write(&files[0], cert)?;
        std::fs::write(&files[1], key)?;
        let [cert, key] = files.each_ref().map(|path| path.display());
        write!(text, "[server.tls]\ncert = \"{cert}\"\nkey = \"{key}\"\n")?;
    }
    let file = SourceFile { name: "conformance".into(), text };
    let loaded = load_pools(&Sources { file: Some(file), cpus: 2, ..Sources::default() });
    Ok(loaded.map_err(|faults| faults.to_string())?.config)
}
