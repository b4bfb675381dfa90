//! A service of one's own over gRPC: `waterwheel serve` with a handler in Rust, and its configuration in the program.
//!
//! `cargo run --example service`, and then `waterwheel submit upper hello`. The first Ctrl-C drains it.

use std::process::ExitCode;

use waterwheel::{
    app::OwnKind,
    cli::run_server,
    config::{Faults, Loaded, SourceFile, Sources, load_pools},
    handler::Kind,
};

fn load(more: &str) -> Result<Loaded, Faults> {
    let text = format!("pool.text = {{ workers = 4, queue.jobs = 100 }}\n{more}");
    let file = SourceFile { name: "examples/service.rs".to_owned(), text };
    // In a container, the variables of the process belong into `env`, so that operators can set keys.
    load_pools(&Sources { file: Some(file), ..Sources::default() })
}

fn kinds() -> Vec<OwnKind> {
    let upper = Kind::from_fn("upper", async |job, cx| {
        cx.progress(0.5, "shouting");
        Ok(str::from_utf8(&job.payload)?.to_uppercase())
    });
    vec![OwnKind::new("text", upper)]
}

#[allow(clippy::print_stdout, reason = "for who runs it in a terminal")]
fn main() -> ExitCode {
    let exit = run_server(
        || load(""),
        kinds(),
        async |app, _config| {
            println!("grpc {}", app.address());
            Ok(())
        },
    );
    exit.into()
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use waterwheel::{
        app::App,
        proto::{Job, SubmitRequest, worker_pool_service_client::WorkerPoolServiceClient},
    };

    use super::*;

    #[tokio::test]
    async fn a_call_runs_the_handler() -> Result<(), Box<dyn Error>> {
        let free_ports = r#"server = { listen = "127.0.0.1:0", ops_listen = "127.0.0.1:0" }"#;
        let config = load(&format!("{free_ports}\ndrain.notice = \"0s\"")).expect("it is valid").config;
        let app = App::start_with(&config, kinds(), None)?;
        let (address, control) = (format!("http://{}", app.address()), app.control());
        let call = async {
            let mut client = WorkerPoolServiceClient::connect(address).await?;
            let job = Job { kind: "upper".to_owned(), payload: "hello".into(), ..Job::default() };
            let done = client.submit(SubmitRequest { job: Some(job) }).await?.into_inner();
            control.drain();
            Ok::<_, Box<dyn Error>>(done.result.expect("each answer has one").output)
        };
        let (output, receipt) = tokio::join!(call, app.run());
        assert_eq!(output?, b"HELLO");
        assert!(receipt.is_clean());
        Ok(())
    }
}
