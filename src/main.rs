//! The program.
use clap::Parser;
use waterwheel::cli::bench;

#[derive(Parser)]
enum Command {
    Bench(bench::BenchArgs),
    #[command(hide = true)]
    BareEcho(bench::BareEchoArgs),
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    match Command::parse() {
        Command::Bench(args) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(bench::run(args, &mut std::io::stdout()))?;
        }
        Command::BareEcho(args) => bench::run_bare_echo(&args)?,
    }
    Ok(())
}
