//! `waterwheel check`.

use clap::Args;
use serde_json::json;

use super::{
    config_args::{ConfigArgs, Process},
    console::Console,
    exit::Exit,
    failure::Failure,
    output::{Format, OutputArgs, counted},
};
use crate::config::{Config, Faults, Pool};

const EXAMPLE: &str = "\
Exit codes:
  0  the server would start
  2  it would not; every fault is reported

Example:
  waterwheel check --config waterwheel.toml";

/// Check a configuration: every fault at once, or what it sets up.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    config: ConfigArgs,
}

impl CheckArgs {
    pub(super) fn format(&self) -> Format {
        self.output.output
    }
}

pub(super) async fn run(args: CheckArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let checked = check(&args, &Process::current())?;
    console.out.line(&checked).await?;
    Ok(Exit::Done)
}

/// The summary of a configuration without faults.
fn check(args: &CheckArgs, process: &Process) -> Result<String, Faults> {
    let config = args.config.load(process, None)?.config;
    Ok(match args.format() {
        Format::Text => summary(&config),
        Format::Json => summary_json(&config).to_string(),
    })
}

fn summary(config: &Config) -> String {
    let pool = |pool: &Pool| {
        let Pool { name, workers, .. } = pool;
        format!("{name} {workers} workers / {} queued", pool.queue.jobs)
    };
    let pools: Vec<String> = config.pools.iter().map(pool).collect();
    let kinds: Vec<&str> = config.kinds.iter().map(|kind| kind.name.as_str()).collect();
    format!(
        "ok: {} and {}\npools  {}\nkinds  {}",
        counted(pools.len(), "pool"),
        counted(kinds.len(), "kind"),
        pools.join("   "),
        kinds.join(" "),
    )
}

fn summary_json(config: &Config) -> serde_json::Value {
    let pool = |pool: &Pool| {
        json!({
            "name": pool.name,
            "workers": pool.workers,
            "queue_jobs": pool.queue.jobs,
            "queue_bytes": pool.queue.bytes,
        })
    };
    json!({
        "ok": true,
        "pools": config.pools.iter().map(pool).collect::<Vec<_>>(),
        "kinds": config.kinds.iter().map(|kind| &kind.name).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{CheckArgs, check};
    use crate::cli::config_args::Process;
    use crate::config::starter;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        check: CheckArgs,
    }

    fn checked(args: &[&str]) -> Result<String, String> {
        let args = ["check"].iter().chain(args);
        let args = Command::try_parse_from(args).unwrap().check;
        let env = Vec::new();
        check(&args, &Process { env, cpus: 2 }).map_err(|faults| faults.to_string())
    }

    fn starter_file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), starter::TEXT).unwrap();
        file
    }

    #[test]
    fn a_good_file_is_summed_up() {
        let file = starter_file();
        let path = file.path().to_str().unwrap();
        let expected = "\
ok: 2 pools and 4 kinds
pools  cpu 2 workers / 64 queued   io 64 workers / 1024 queued
kinds  sha256 gzip sleep echo";
        assert_eq!(checked(&["--config", path]), Ok(expected.to_owned()));
    }

    #[test]
    fn json_names_pools_and_kinds() {
        let file = starter_file();
        let path = file.path().to_str().unwrap();
        let printed = checked(&["--config", path, "--output", "json"]).unwrap();
        let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(json["ok"], true);
        assert_eq!(json["pools"][1]["queue_jobs"], 1024);
        assert_eq!(json["kinds"][3], "echo");
    }

    #[test]
    fn faults_of_file_and_flags_are_reported_together() {
        let file = starter_file();
        let path = file.path().to_str().unwrap();
        let args = ["--config", path, "--set", "pool.io.workers=0", "--log", "a=b=c"];
        let report = checked(&args).unwrap_err();
        assert_eq!(report.matches("error: ").count(), 2, "{report}");
    }
}
