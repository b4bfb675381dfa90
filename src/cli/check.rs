//! `waterwheel check`: checks a configuration, and with `--env` compares it with the machine.

mod fit;

use std::{collections::BTreeMap, iter};

use clap::Args;
use serde_json::json;

use self::fit::{Finding, Limits, Verdict};
use super::{
    config::{ConfigArgs, sources},
    console::{BAD, Console, FAINT, GOOD, WARN, paint},
    failure::{Exit, Failure},
    output::{contents, pluralized, table},
};
use crate::{
    config::{Config, Faults, Kind, Loaded, Pool, Sources, Warning},
    detached::{Calendar, Schedule, wall_clock},
    model::Share,
    store::{StoreError, inspect_postgres},
};

/// Ticks of each schedule that are shown.
const TICKS: usize = 3;

const EXAMPLE: &str = "\
Exit codes:
  0  the server would start, and with --env fits where it runs
  1  with --env: something falls short, and a promise would break
  2  the server would not start; every fault is reported

Example:
  waterwheel check --config waterwheel.toml";

/// Check a configuration: print its faults, or its pools and kinds.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLE)]
pub(super) struct CheckArgs {
    /// Compare it with this machine: the time to stop (WATERWHEEL_GRACE) with the drain, memory
    /// with the pools, open files with connections and programs. Connects to the database of detached jobs.
    #[arg(long)]
    env: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// The result of the check.
struct Checked {
    config: Config,
    warnings: Vec<Warning>,
    /// `None` without `--env`.
    findings: Option<Vec<Finding>>,
    /// Describes the database of detached jobs; `None` without one, and without `--env`.
    database: Option<Result<String, StoreError>>,
}

pub(super) async fn run(args: CheckArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let sources = sources();
    let limits = Limits::read(&sources.env);
    let mut checked = check(&args, sources, &limits)?;
    if let Some(options) = checked.config.store.postgres().filter(|_| args.env) {
        checked.database = Some(inspect_postgres(&options).await);
    }
    console.report(&checked.json(), || checked.text()).await?;
    Ok(if checked.falls_short() { Exit::Failed } else { Exit::Done })
}

/// Checks the configuration, and with `--env` compares it with the limits of the machine.
fn check(args: &CheckArgs, sources: Sources, limits: &Limits) -> Result<Checked, Faults> {
    let Loaded { config, settings: _, warnings } = args.config.load(sources, None)?;
    let findings = args.env.then(|| {
        let mut findings = fit::findings(&config, limits);
        findings.extend(config.store.sqlite().and_then(|options| fit::disk(&options)));
        findings
    });
    Ok(Checked { config, warnings, findings, database: None })
}

impl Checked {
    fn falls_short(&self) -> bool {
        let is_short = |finding: &Finding| finding.verdict == Verdict::Short;
        let is_refused = |error: &StoreError| !matches!(error, StoreError::Unavailable(_));
        let database = self.database.as_ref().and_then(|database| database.as_ref().err());
        self.findings.iter().flatten().any(is_short) || database.is_some_and(is_refused)
    }

    fn text(&self) -> String {
        let mut lines = vec![summary(&self.config)];
        lines.extend(self.warnings.iter().map(|warning| paint(WARN, warning)));
        lines.extend(self.findings.as_deref().into_iter().flat_map(comparison));
        match &self.database {
            Some(Ok(found)) => lines.push(format!("store   {}   {found}", paint(GOOD, "fits"))),
            Some(Err(error @ StoreError::Unavailable(_))) => {
                lines.push(format!("store   {}  {error}", paint(FAINT, "unknown")));
                lines.push(format!("  {} a server starts, and waits for it", paint(FAINT, "help:")));
            }
            Some(Err(error)) => lines.push(format!("store   {}  {error}", paint(BAD, "short"))),
            None => {}
        }
        lines.join("\n")
    }

    fn json(&self) -> serde_json::Value {
        let mut json = summary_json(&self.config);
        json["warnings"] = json!(self.warnings);
        if let Some(findings) = &self.findings {
            json["env"] = json!(findings);
        }
        if let Some(database) = &self.database {
            let detail = database.as_ref().map_or_else(ToString::to_string, Clone::clone);
            json["store"] = json!({ "ok": database.is_ok(), "detail": detail });
        }
        json
    }
}

/// One line for each finding, followed by its help.
fn comparison(findings: &[Finding]) -> Vec<String> {
    let row = |finding: &Finding| {
        let (style, verdict) = match finding.verdict {
            Verdict::Fits => (GOOD, "fits"),
            Verdict::Tight => (FAINT, "tight"),
            Verdict::Short => (BAD, "short"),
            Verdict::Unknown => (FAINT, "unknown"),
        };
        let source = finding.source.as_ref().map_or(String::new(), |source| format!(" ({source})"));
        let need_for = format!("{}{}", finding.need_for, paint(FAINT, &source));
        vec![finding.name.to_owned(), paint(style, verdict), finding.compared(), need_for]
    };
    let rows = findings.iter().map(row).collect();
    let mut lines = Vec::new();
    // Without the line of the headings, which are empty.
    for (line, finding) in table(&[""; 4], rows).into_iter().skip(1).zip(findings) {
        lines.push(line);
        lines.extend(finding.help.as_ref().map(|help| format!("  {} {help}", paint(FAINT, "help:"))));
    }
    lines
}

fn summary(config: &Config) -> String {
    let (pools, kinds) = (pluralized(config.pools.len(), "pool"), pluralized(config.kinds.len(), "kind"));
    let ticks = ticks(config).into_iter().map(|(name, next)| format!("\nschedule {name}  next {}", next.join("  ")));
    format!("ok: {pools} and {kinds}\n{}", contents(config)) + &ticks.collect::<String>() + &shares(config)
}

/// What the limits of kinds mean where servers share a store.
fn shares(config: &Config) -> String {
    let limited = |share| {
        let has = |kind: &&Kind| kind.options.limits.is_set() && kind.options.limits.share == share;
        config.kinds.iter().filter(has).map(|kind| &*kind.name).collect::<Vec<_>>().join(", ")
    };
    let [whole, divided] = [limited(Share::Each), limited(Share::Divide)];
    let is_shared = config.store.postgres().is_some();
    let mut lines = Vec::new();
    if is_shared && !(whole.is_empty() && divided.is_empty()) {
        lines.push("\nlimits  detached jobs: all hold over all servers of the store".to_owned());
    }
    if is_shared && !whole.is_empty() {
        lines.push(format!("\nlimits  calls: each server has the whole limits of {whole}"));
    }
    if !divided.is_empty() {
        lines.push(format!("\nlimits  calls: the servers divide the limits of {divided}"));
    }
    lines.concat()
}

/// The next ticks of each schedule.
fn ticks(config: &Config) -> BTreeMap<&str, Vec<String>> {
    let next = |it: &Schedule| {
        let calendar = Calendar::parse(&it.cron, &it.timezone).expect("the pattern was checked");
        let ticks = iter::successors(Some(wall_clock()()), |at| calendar.next(*at)).skip(1).take(TICKS);
        ticks.map(|at| humantime::format_rfc3339_seconds(at.into()).to_string()).collect()
    };
    config.schedules.iter().map(|schedule| (schedule.name.as_str(), next(schedule))).collect()
}

fn summary_json(config: &Config) -> serde_json::Value {
    let pool = |Pool { name, settings }: &Pool| {
        json!({
            "name": name,
            "workers": settings.workers,
            "max_workers": settings.most_workers(),
            "queue_jobs": settings.queue_jobs,
            "queue_bytes": settings.queue_bytes,
        })
    };
    json!({
        "ok": true,
        "pools": config.pools.iter().map(pool).collect::<Vec<_>>(),
        "kinds": config.kinds.iter().map(|kind| &kind.name).collect::<Vec<_>>(),
        "schedules": ticks(config),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{CheckArgs, Limits, check, fit::Given};
    use crate::cli::{fake::Line, output::Format};
    use crate::config::{Sources, starter};

    fn checked(args: &[&str]) -> Result<String, String> {
        compared(42, args).map(|(text, _)| text)
    }

    /// What is printed on a small machine with this many seconds to stop, and whether it falls short.
    fn compared(grace: u64, args: &[&str]) -> Result<(String, bool), String> {
        let given = |limit, source: &str| Given { limit: Some(limit), source: source.to_owned() };
        let limits = Limits {
            grace: Ok(Some(given(grace * 1000, "WATERWHEEL_GRACE"))),
            files: given(50, "RLIMIT_NOFILE"),
            memory: Some(given(2 << 30, "/proc/meminfo")),
        };
        let args = ["check"].iter().chain(args);
        let Line { args, format } = Line::<CheckArgs>::try_parse_from(args).unwrap();
        let checked =
            check(&args, Sources { cpus: 2, ..Sources::default() }, &limits).map_err(|faults| faults.to_string())?;
        let text = match format {
            Format::Text => checked.text(),
            Format::Json => checked.json().to_string(),
        };
        Ok((anstream::adapter::strip_str(&text).to_string(), checked.falls_short()))
    }

    fn starter_file() -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), starter::text()).unwrap();
        file
    }

    #[test]
    fn the_next_ticks_of_a_schedule_are_named() {
        let file = starter_file();
        let yearly = ["store.memory=true", "schedule.report.cron=0 0 1 1 *", "schedule.report.kind=sha256"];
        let set = yearly.into_iter().flat_map(|key| ["--set", key]);
        let args: Vec<_> = ["--config", file.path().to_str().unwrap()].into_iter().chain(set).collect();
        let shown = checked(&args).unwrap();
        let (_, ticks) = shown.split_once("\nschedule report  next ").expect("it is named");
        let ticks: Vec<_> = ticks.split("  ").collect();
        assert!(ticks.len() == 3 && ticks.iter().all(|tick| tick.ends_with("-01-01T00:00:00Z")), "{shown}");
    }

    #[test]
    fn what_limits_mean_over_servers_is_said() {
        let file = starter_file();
        let shown = |keys: &[&str]| {
            let set = keys.iter().flat_map(|key| ["--set", key]);
            checked(&["--config", file.path().to_str().unwrap()].into_iter().chain(set).collect::<Vec<_>>()).unwrap()
        };
        let (shared, limited) = ("store.url=postgres://u@localhost/jobs", "kind.echo.limit.rate=5");
        let lines = |keys: &[&str]| shown(keys).split("\nlimits  ").skip(1).map(str::to_owned).collect::<Vec<_>>();
        let [detached, whole] = &lines(&[shared, limited])[..] else { panic!("two lines") };
        assert_eq!(detached, "detached jobs: all hold over all servers of the store");
        assert_eq!(whole, "calls: each server has the whole limits of echo");
        let both = [shared, limited, "kind.gzip.limit.concurrency=1", "kind.gzip.limit.share=divide"];
        assert_eq!(lines(&both)[1..], [&**whole, "calls: the servers divide the limits of gzip"]);
        for keys in [[shared, "store.max_jobs=9"], ["store.memory=true", limited]] {
            assert_eq!(lines(&keys), [""; 0], "{keys:?}");
        }
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

    #[test]
    fn the_machine_is_compared_line_by_line() {
        let file = starter_file();
        let path = file.path().to_str().unwrap();
        let (text, short) = compared(42, &["--env", "--config", path]).unwrap();
        let lines: Vec<&str> = text.lines().skip(3).collect();
        let expected = [
            "grace   fits   42s of 42s needed      drain 40s and 2s to end (WATERWHEEL_GRACE)",
            "memory  fits   2GiB of 1.4GiB needed  520MiB of payloads, 18.8MiB of calls that wait or run, 576MiB of unfinished messages and unread answers, 259.9MiB of results in the making, 64MiB besides (/proc/meminfo)",
            "files   short  50 of 4168 needed      4096 connections, 72 of its own (RLIMIT_NOFILE)",
            "  help: raise LimitNOFILE or `ulimit -n` to 4168, or lower server.connections.max",
        ];
        assert_eq!(lines, expected);
        assert!(short);
    }

    #[test]
    fn only_what_is_asked_for_is_compared() {
        let file = starter_file();
        let path = file.path().to_str().unwrap();
        let args = ["--config", path, "--output", "json"];
        let (printed, short) = compared(1, &args).unwrap();
        assert!(!printed.contains("\"env\"") && !short, "{printed}");
        let (printed, short) = compared(1, &["--env", args[0], args[1], args[2], args[3]]).unwrap();
        let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
        assert_eq!((&json["ok"], &json["env"][0]["verdict"]), (&true.into(), &"short".into()));
        assert!(short);
    }
}
