//! Files that are shown to users.

use super::{Duration, Handler, Setting, Sources, load, ok, sources, starter};
use crate::{handler::Builtin, model::WhenFull};

/// A file as the README shows it.
const README: &str = r#"
# Override any key: WATERWHEEL_POOL__CPU__WORKERS=8.  Check: waterwheel check --config FILE
[server]
listen = "127.0.0.1:7070"        # gRPC for callers
ops_listen = "127.0.0.1:7071"    # metrics, plaintext health; keep it private

[deadline]
default = "30s"                  # where the caller set none
max = "10m"                      # effective = min(caller, kind, this)
reply_margin = "10ms"            # answer this early, so that the reason arrives

[drain]                          # the sum must fit the orchestrator's grace period
notice = "5s"                    # NOT_SERVING but still accepting
finish = "30s"                   # refuse new, finish queued and running
kill = "5s"                      # ask, then force

[telemetry]
log = "info"                     # text on a terminal, JSON elsewhere
# otlp = "http://127.0.0.1:4317"

[pool.cpu]
workers = "cpus"                 # a number or "cpus"
queue = { jobs = 64, bytes = "64MiB" }
when_full = "reject"             # reject | wait | shed

[pool.io]
workers = 64
queue = { jobs = 1024, bytes = "64MiB" }
when_full = "wait"

[kind.thumbnail]
pool = "cpu"
exec = ["/bin/sh", "-c", "cat"]
run_timeout = "5s"

[kind.sha256]
pool = "cpu"
builtin = "sha256"
"#;

#[test]
fn the_file_of_the_readme_loads() {
    let config = ok(README, &[], &[]).config;
    let [cpu, io] = config.pools.as_slice() else {
        panic!("{:?}", config.pools);
    };
    assert_eq!((cpu.name.as_str(), cpu.workers, cpu.queue.jobs), ("cpu", 3, 64));
    assert_eq!((io.name.as_str(), io.workers, io.when_full), ("io", 64, WhenFull::Wait));
    let [thumbnail, sha256] = config.kinds.as_slice() else {
        panic!("{:?}", config.kinds);
    };
    assert_eq!(thumbnail.options.run_timeout, Some(Duration::from_secs(5)));
    let Handler::Exec(exec) = &thumbnail.handler else {
        panic!("{thumbnail:?}");
    };
    assert_eq!(exec.program.to_str(), Some("/bin/sh"));
    assert_eq!(exec.args, ["-c", "cat"]);
    assert_eq!(exec.kill_grace, Duration::from_secs(1));
    assert_eq!(sha256.handler, Handler::Builtin(Builtin::Sha256));
    assert_eq!(sha256.options.max_output, None);
}

#[test]
fn the_starter_has_two_pools_and_every_builtin() {
    let config = ok(&starter::text(), &[], &[]).config;
    let pools = config.pools.iter().map(|pool| (pool.name.as_str(), pool.workers, pool.queue.jobs));
    assert_eq!(pools.collect::<Vec<_>>(), [("cpu", 3, 64), ("io", 64, 1024)]);
    assert_eq!(config.pools[1].when_full, WhenFull::Wait);
    let kinds = config.kinds.iter().map(|kind| (kind.name.as_str(), kind.pool.as_str()));
    let expected = [("sha256", "cpu"), ("gzip", "cpu"), ("sleep", "io"), ("echo", "io")];
    assert_eq!(kinds.collect::<Vec<_>>(), expected);
}

#[test]
fn the_starter_comments_out_every_default_as_it_is() {
    // A line behind one `#` that is TOML shows a default; behind two it shows what has none.
    let spelled: String = starter::text()
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(key) if key.contains(" = ") => format!("{key}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let spelled = ok(&spelled, &[], &[]);
    let silent = ok(&starter::text(), &[], &[]);
    assert_eq!(spelled.config, silent.config);
    let first = |settings: &[Setting]| {
        let shown = settings.iter().filter(|setting| {
            let path = setting.path();
            !path.starts_with("kind.") && !path.starts_with("pool.io.")
        });
        let shown = shown.filter(|setting| setting.value().is_some());
        let unset = shown.filter(|setting| *setting.origin() == super::Origin::Default);
        unset.map(|setting| setting.path().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(first(&spelled.settings), Vec::<String>::new());
}

#[test]
fn the_examples_of_the_starter_load() {
    let dir = super::security::files();
    let mut examples = starter::text().replace("## ", "").replace("/usr/bin/convert", "/bin/sh");
    for (named, file) in [
        ("tls.crt", "tls.crt"),
        ("tls.key", "tls.key"),
        ("clients.crt", "tls.crt"),
        ("jwks.json", "jwks.json"),
        ("database.crt", "tls.crt"),
        ("database.password", "jwks.json"),
    ] {
        let path = dir.path().join(file);
        examples = examples.replace(&format!("\"{named}\""), &format!("{path:?}"));
    }
    // There is one store, and that is the database.
    let examples = examples.replace("path = \"waterwheel.db\"", "# ");
    let config = ok(&examples, &[("HOME", "/root")], &[]).config;
    let rule = &config.auth.as_ref().expect("callers are known").rules[0];
    assert_eq!((rule.name.as_str(), rule.principals.len(), rule.tenant.as_deref()), ("web", 3, Some("web")));
    assert_eq!(config.quota.named.len(), 1);
    assert_eq!(config.telemetry.otlp.as_deref(), Some("http://127.0.0.1:4317"));
    let kind = config.kinds.last().expect("the starter has kinds");
    assert_eq!((kind.name.as_str(), kind.options.max_output), ("thumbnail", Some(16 << 20)));
}

#[test]
fn the_starter_takes_variables_and_flags() {
    let sources = Sources {
        file: Some(starter::file()),
        ..sources("", &[("WATERWHEEL_POOL__IO__WORKERS", "8")], &[("--set", "pool.io.when_full", "shed")])
    };
    let io = &load(&sources).expect("the starter is valid").config.pools[1];
    assert_eq!((io.workers, io.when_full), (8, WhenFull::Shed));
}
