//! The table of keys: the type, default, example and purpose of each. It is the source of the checks of single values,
//! of `config init`, of `config show` and of docs/configuration.md. A new key needs a row here and a field in the
//! settings.

mod bounds;

use std::time::Duration as Time;

use super::value_type::{
    ADDRESS, COLLECTOR, CRON, DATABASE, ENV_COPY, HOST, LOG_FILTER, NETWORK, ORIGIN, PRINCIPAL, RPC, STRING,
    Syntax::OneOf, TENANT, TIMEZONE, ValueType, ValueType::*, WORD,
};
use bounds::{
    AGE, ALGORITHMS, CLASSES, DAY, ENTRIES, FAILURES, GRACE, KIB, MEMORY, MESSAGE, MILLI, MILLION, RATE, RETENTION,
    RUN, SECOND, WAIT, WINDOW, YEAR,
};

use crate::handler::Builtin;

/// One key.
pub(super) struct Key {
    /// Dotted path; `*` stands for a name.
    pub(super) path: &'static str,
    /// Its type.
    pub(super) takes: ValueType,
    /// Its default, as TOML.
    pub(super) default: Option<&'static str>,
    /// An example value, as TOML, if the default is not a good example.
    example: Option<&'static str>,
    /// Its purpose, in one to three sentences.
    doc: &'static str,
}

impl Key {
    /// A segment of the path.
    pub(super) fn segment(&self, depth: usize) -> Option<&'static str> {
        self.path.split('.').nth(depth)
    }

    /// An example value, as TOML.
    pub(super) fn example(&self) -> String {
        self.example.or(self.default).expect("a key has a default or an example").replace('\'', "\"")
    }

    /// Its purpose.
    pub(super) fn doc(&self) -> &'static str {
        self.doc.trim_start()
    }
}

/// An example value for a key, as TOML.
pub(super) fn example(path: &str) -> String {
    let fits = |key: &&Key| {
        let (mut parts, mut given) = (key.path.split('.'), path.split('.'));
        parts.by_ref().zip(given.by_ref()).all(|(part, given)| part == "*" || part == given)
            && parts.next().or(given.next()).is_none()
    };
    KEYS.iter().find(fits).expect("the path is one of the table").example()
}

const fn optional(given: &[&'static str]) -> Option<&'static str> {
    match given {
        [one] => Some(*one),
        _ => None,
    }
}

macro_rules! keys {
    ($($(#[doc = $doc:literal])+ $path:literal: $takes:expr $(, default $default:literal)? $(, like $example:literal)?;)+) => {
        /// All keys in display order. The keys of one table are adjacent.
        pub(super) const KEYS: &[Key] = &[$(Key {
            path: $path,
            takes: $takes,
            default: optional(&[$($default)?]),
            example: optional(&[$($example)?]),
            doc: concat!($($doc),+),
        }),+];
    };
}

keys! {
    /// Addresses for callers, by gRPC.
    "server.listen": OneOrMore(ADDRESS), default "'127.0.0.1:7070'";
    /// Addresses for operators: metrics, health, drain. Keep them private.
    "server.ops_listen": OneOrMore(ADDRESS), default "'127.0.0.1:7071'";
    /// Serve other machines without TLS.
    "server.allow_plaintext": Boolean, default "false";
    /// Serve operators on other machines without TLS, as the probes and scrapers of a cluster need it.
    "server.ops_allow_plaintext": Boolean, default "false";
    /// Host names of the operator's listener. If empty: only `localhost` on a loopback address, any name elsewhere.
    "server.ops_hosts": Texts(HOST), default "[]", like "['ops.example']";
    /// Networks of proxies whose connections begin with a PROXY header.
    "server.proxies": Texts(NETWORK), default "[]", like "['10.0.0.0/8', '192.0.2.1']";
    /// Networks of proxies without that header, such as nginx. `max_per_address` does not limit them.
    "server.http_proxies": Texts(NETWORK), default "[]", like "['10.0.0.0/8', '192.0.2.1']";
    /// Threads that serve connections.
    "server.threads": Count(256), default "'cpus'", like "8";
    /// Largest payload of one job.
    "server.max_payload": MESSAGE, default "'4MiB'";
    /// Largest output of one unary result. The default fits in the 4 MiB that clients accept by default.
    "server.max_output": MESSAGE, default "'4032KiB'";
    /// Jobs in flight on one SubmitMany call.
    "server.submit_many_window": Integer(1, 65_536), default "256";
    /// Report the load in each answer (ORCA), for weighted_round_robin.
    "server.load_reports": Boolean, default "false";
    /// Callers may also call by HTTP and JSON (the Connect protocol), also over HTTP/1.1.
    "server.json": Boolean, default "false";
    /// Origins of web pages that may call by gRPC-Web or JSON. If any is set, all callers may speak HTTP/1.1.
    "server.grpc_web_origins": Texts(ORIGIN), default "[]", like "['https://app.example']";
    /// Calls in flight on one connection.
    "server.max_concurrent_streams": Integer(1, 65_536), default "256";
    /// Certificate of the server, with `tls.key`: TLS for callers.
    "server.tls.cert": Path, like "'tls.crt'";
    /// Private key of the certificate.
    "server.tls.key": Path, like "'tls.key'";
    /// Root certificates for client certificates. `client_auth` says whether callers need one.
    "server.tls.client_ca": Path, like "'clients.crt'";
    /// Whether callers need a certificate if there is a `client_ca`.
    "server.tls.client_auth": Text(OneOf(&["required", "optional"])), default "'required'";
    /// Oldest accepted version of TLS.
    "server.tls.min_version": Text(OneOf(&["1.3", "1.2"])), default "'1.3'";
    /// Time that a client has for the handshake.
    "server.tls.handshake_timeout": Duration(Time::from_millis(100), Time::from_secs(60)), default "'5s'";
    /// How often the files are checked for changes.
    "server.tls.reload": WAIT, default "'5s'";
    /// Connections open at once.
    "server.connections.max": MILLION, default "4096";
    /// Connections open at once from one address.
    "server.connections.max_per_address": MILLION, default "1024";
    /// Time that a peer has for its first bytes.
    "server.connections.preface_timeout": WAIT, default "'5s'";
    /// Age at which a peer is asked to leave (GOAWAY), plus or minus a tenth.
    "server.connections.max_age": AGE, default "'30m'";
    /// Time from GOAWAY until the connection is cut.
    "server.connections.max_age_grace": Duration(Time::from_millis(100), YEAR), default "'1h'";
    /// Time without a call after which a connection is closed.
    "server.connections.idle_timeout": AGE, default "'15m'";
    /// Maximum bytes of the headers of one call.
    "server.http2.max_header_list": Size(4 * KIB, 1024 * KIB), default "'16KiB'";
    /// Bytes that a peer may send ahead on one call. By default at least two payloads.
    "server.http2.stream_window": WINDOW, default "'8MiB'";
    /// Bytes that a peer may send ahead on all calls of a connection. By default at least two payloads.
    "server.http2.connection_window": WINDOW, default "'8MiB'";
    /// Calls that a peer may make the server reset.
    "server.http2.max_local_resets": MILLION, default "1024";
    /// Calls that a peer may reset before the server accepts them.
    "server.http2.max_pending_resets": MILLION, default "20";
    /// Time without activity after which a peer is pinged.
    "server.http2.keepalive_interval": WAIT, default "'5s'";
    /// Time that the peer has to answer the ping.
    "server.http2.keepalive_timeout": WAIT, default "'10s'";
    /// Maximum bytes of incomplete messages, and the same again for unread answers. By default at least four payloads.
    "server.memory.total": MEMORY, default "'256MiB'";
    /// The same limits for one connection. By default at least two payloads.
    "server.memory.per_connection": MEMORY, default "'64MiB'";
    /// Time after which an answer that is not read is dropped.
    "server.memory.stall": WAIT, default "'10s'";

    /// `/livez` and `/readyz` on the operator's listener.
    "ops.probes": Boolean, default "true";
    /// `/metrics`, for Prometheus.
    "ops.metrics": Boolean, default "true";
    /// `/debug/tasks`: the state of every worker and every job.
    "ops.debug_tasks": Boolean, default "true";
    /// The page for people at `/`: it only shows, it also has buttons for what operators do, or it is off.
    "ops.page": Text(OneOf(&["read", "act", "off"])), default "'read'";

    /// Deadline of a job without one from its caller.
    "deadline.default": RUN, default "'30s'";
    /// Longest deadline of any job. A longer one from the caller is cut to it.
    "deadline.max": RUN, default "'10m'";
    /// How long before the deadline the answer is sent, so that it arrives before the caller gives up. A hundredth of
    /// the job's time is added. The sum is at most a tenth of that time.
    "deadline.reply_margin": Duration(Time::ZERO, SECOND), default "'10ms'";

    /// Phase of a drain in which health is NOT_SERVING and jobs are still accepted.
    "drain.notice": GRACE, default "'5s'";
    /// Phase in which new jobs are refused while queued and running ones finish.
    "drain.finish": GRACE, default "'30s'";
    /// Phase in which running jobs are asked to stop, before they are forced.
    "drain.kill": GRACE, default "'5s'";

    /// File with the public keys of the token issuer.
    "auth.jwt.jwks": Path, like "'jwks.json'";
    /// Accepted signature algorithms.
    "auth.jwt.algorithms": Texts(ALGORITHMS), default "['ES256', 'EdDSA', 'RS256']";
    /// Required `iss` of a token.
    "auth.jwt.issuer": Text(WORD), like "'https://issuer.example'";
    /// Accepted values of `aud`.
    "auth.jwt.audience": OneOrMore(WORD), like "['waterwheel']";
    /// Claim that names the tenant, if no rule does. Without the claim, the principal is the tenant.
    "auth.jwt.tenant_claim": Text(WORD), like "'org'";
    /// Largest difference between the clocks of issuer and server.
    "auth.jwt.leeway": Duration(Time::ZERO, Time::from_secs(300)), default "'30s'";
    /// How often the file is checked for changes.
    "auth.jwt.reload": WAIT, default "'10s'";
    /// Whether the rules also cover the RPCs on the operator's listener. Its pages and its health stay open.
    "auth.ops": Boolean, default "true";
    /// Callers that the rule applies to.
    "auth.rule.*.principals": OneOrMore(PRINCIPAL), like "['spiffe://example.org/**']";
    /// RPCs that the rule allows; `*` is all of them.
    "auth.rule.*.rpcs": OneOrMore(RPC), like "['Submit']";
    /// Kinds that the rule allows; an empty list allows all.
    "auth.rule.*.kinds": Texts(STRING), default "[]", like "['thumb*']";
    /// Tenant of the jobs; `*` is any: the caller names it, and sees the detached jobs of all.
    "auth.rule.*.tenant": Text(TENANT), like "'acme'";
    /// Highest class that the jobs may claim.
    "auth.rule.*.max_criticality": Text(CLASSES), default "'CRITICAL'";
    /// Whether the jobs may evict less important ones.
    "auth.rule.*.may_shed": Boolean, default "true";

    /// Jobs per second of each tenant.
    "quota.rate": MILLION, like "100";
    /// Maximum number of jobs that a tenant may send at once after a pause. By default those of one second.
    "quota.burst": MILLION, like "200";
    /// Jobs queued and running for callers that wait for them. Detached jobs do not count.
    "quota.in_flight": MILLION, like "64";
    /// Stored detached jobs that have not ended.
    "quota.stored_jobs": Integer(1, 1_000_000_000), like "100000";
    /// Bytes of payloads and outputs of stored detached jobs, those of ended ones included.
    "quota.stored_bytes": MEMORY, like "'1GiB'";
    /// Tenants that are counted separately. Further ones share one quota.
    "quota.tenants": Integer(1, ENTRIES), default "10000";
    /// Jobs per second of this tenant.
    "quota.tenant.*.rate": MILLION, like "100";
    /// Maximum number of jobs that this tenant may send at once after a pause. By default those of one second.
    "quota.tenant.*.burst": MILLION, like "200";
    /// Jobs queued and running for callers that wait for them. Detached jobs do not count.
    "quota.tenant.*.in_flight": MILLION, like "64";
    /// Stored detached jobs that have not ended.
    "quota.tenant.*.stored_jobs": Integer(1, 1_000_000_000), like "100000";
    /// Bytes of payloads and outputs of stored detached jobs, those of ended ones included.
    "quota.tenant.*.stored_bytes": MEMORY, like "'1GiB'";

    /// File of the detached jobs (SQLite). Without `path`, `url` and `memory`, `JobService` refuses all calls.
    "store.path": Path, like "'waterwheel.db'";
    /// Database of the detached jobs (PostgreSQL), which replicas share.
    "store.url": Text(DATABASE), like "'postgres://waterwheel@db.example/jobs?sslmode=require'";
    /// The database itself, if `store.url` is a pooler that shares sessions (PgBouncer in transaction mode). A replica
    /// then hears of the changes of others at once, and without it within a second.
    "store.listen_url": Text(DATABASE), like "'postgres://waterwheel@db.example/jobs?sslmode=require'";
    /// Prepare each statement once for each connection. A pooler that shares sessions needs `false`, which costs the
    /// database more for each job.
    "store.prepared": Boolean, default "true";
    /// File with the password for the database.
    "store.password_file": Path, like "'database.password'";
    /// Certificate authorities that may sign the database's certificate. Those of the system by default.
    "store.ca_file": Path, like "'database.crt'";
    /// Keep detached jobs in memory if there is no `path` and no `url`. They end with the process.
    "store.memory": Boolean, default "false";
    /// Maximum number of detached jobs that have not ended. A named tenant may hold three times what is free.
    "store.max_jobs": Integer(1, 1_000_000_000), default "10000000";
    /// Maximum bytes of payloads and outputs of detached jobs, those of ended ones included. A tenant with a name may
    /// hold three times as many as are free.
    "store.max_bytes": MEMORY, default "'16GiB'";

    /// When the job runs, in cron syntax: minute, hour, day, month and weekday. With six fields, the first is seconds.
    "schedule.*.cron": Text(CRON), like "'0 3 * * *'";
    /// Time zone of the fields.
    "schedule.*.timezone": Text(TIMEZONE), default "'UTC'", like "'Europe/Berlin'";
    /// Kind of the job.
    "schedule.*.kind": Text(STRING), like "'NAME'";
    /// Payload of the job.
    "schedule.*.payload": Text(STRING), default "''", like "'text'";
    /// What a tick does if the job of an earlier tick has not ended: create no job, or let its job wait.
    "schedule.*.overlap": Text(OneOf(&["skip", "queue"])), default "'skip'";

    /// Filter of log lines.
    "telemetry.log": Text(LOG_FILTER), default "'info'", like "'info,waterwheel=debug'";
    /// Format of log lines: text on a terminal and JSON elsewhere, or one of the two.
    "telemetry.log_format": Text(OneOf(&["auto", "text", "json"])), default "'auto'";
    /// Collector for traces and metrics, by OTLP over gRPC. Without one, nothing is exported.
    "telemetry.otlp": Text(COLLECTOR), like "'http://127.0.0.1:4317'";
    /// Share of traced calls, among those whose caller did not decide.
    "telemetry.sample_ratio": Number(0.0, 1.0), default "0.01", like "0.5";
    /// Maximum number of calls per second that are traced because their caller asks for it.
    "telemetry.caller_traces": Integer(0, 1_000_000), default "100";
    /// A poll of an async Rust handler that takes longer is logged and counted, because it blocks its thread.
    "telemetry.slow_poll": Duration(MILLI, Time::from_secs(60)), default "'100ms'";
    /// How often the collector gets the metrics. 0 means never.
    "telemetry.metrics_every": GRACE, default "'1m'", like "'10s'";
    /// How often the log gets the counts of each pool and the jobs that have run for the longest time. 0 means never.
    "telemetry.dump_every": GRACE, default "'0s'", like "'1m'";
    /// Name of the service in traces.
    "telemetry.service_name": Text(WORD), default "'waterwheel'";

    /// Workers, or their bounds: the pool chooses between `min` and `max` by its load.
    "pool.*.workers": Count(65_536), default "'cpus'", like "8";
    /// Workers that the pool keeps.
    "pool.*.workers.min": Integer(1, 65_536), default "1";
    /// Maximum number of workers.
    "pool.*.workers.max": Count(65_536), default "'cpus'", like "8";
    /// Maximum number of jobs in the queue.
    "pool.*.queue.jobs": Integer(1, ENTRIES), default "1024";
    /// Maximum payload in the queue. Each worker may hold one more payload.
    "pool.*.queue.bytes": MEMORY, default "'64MiB'";
    /// Maximum number of callers that wait for capacity.
    "pool.*.queue.waiting": Integer(0, ENTRIES), default "1024";
    /// What a full queue does with a job: refuse it, let its caller wait, drop a less important one, or replace the
    /// oldest one of its tenant that has this policy too.
    "pool.*.when_full": Text(OneOf(&["reject", "wait", "shed", "drop_oldest"])), default "'reject'";
    /// Time between asking a job to stop and forcing it.
    "pool.*.cancel_grace": GRACE, default "'1s'";
    /// Blocking workers that may be replaced while stuck.
    "pool.*.max_stuck": Integer(0, 1024), default "4";
    /// Largest share of the queue for one tenant while another tenant has queued jobs.
    "pool.*.tenant_share": Number(0.001, 1.0), default "0.25";
    /// Ended jobs that the pool remembers, 0.3 to 5 KiB each. Half are for failures.
    "pool.*.ended_jobs": Integer(0, 1 << 20), default "1024";
    /// Last jobs that `waterwheel advise` and `reload --dry-run` can replay, 32 bytes each. 0 records none.
    "pool.*.recorded_jobs": Integer(0, 1 << 20), default "65536";
    /// Run time from which a job is stale: logged once, counted, shown by `jobs --stale`. By default none is.
    "pool.*.stale_after": RUN, like "'5m'";
    /// Time without a job after which an attached worker is asked to leave for good. By default none is.
    "pool.*.attached.idle_leave": AGE, like "'60s'";
    /// Number of attached workers that stay, however idle. By default 0.
    "pool.*.attached.min": Integer(0, 65_536), like "1";

    /// Long-running program and its arguments, for the kinds that name it. `{config_dir}` is as in `exec`.
    "program.*.command": Command, like "['/usr/bin/python3', '{config_dir}/worker.py']";
    /// Jobs that one process runs at once.
    "program.*.jobs_per_process": Integer(1, 65_536), default "1", like "8";
    /// Time from the start of a process until it says that it is ready.
    "program.*.start_timeout": WAIT, default "'10s'";
    /// Whether one process must be ready before the server is. By default, processes that fail do not delay it.
    "program.*.required": Boolean, default "false";
    /// Jobs after which a process is replaced, up to a fifth earlier. It goes on until its successor is ready.
    "program.*.recycle.jobs": Integer(1, 1_000_000_000), like "10000";
    /// Age at which a process is replaced, up to a fifth earlier.
    "program.*.recycle.age": AGE, like "'1h'";
    /// Resident memory above which a process is replaced. It is measured after each job, without child processes.
    "program.*.recycle.memory": MEMORY, like "'512MiB'";
    /// Directory in which processes run; `/` by default.
    "program.*.directory": Path, like "'/srv/app'";
    /// Variables of the program.
    "program.*.env.*": Secret, like "'text'";
    /// Variables that are copied from the server's environment.
    "program.*.pass_env": Texts(ENV_COPY), default "[]", like "['HOME']";
    /// Maximum bytes of standard error that the failure of a process quotes.
    "program.*.stderr_tail": Size(0, 3 * KIB), default "'2KiB'";

    /// Pool that runs the jobs.
    "kind.*.pool": Text(STRING), like "'NAME'";
    /// Program and its arguments, one process for each job. `{config_dir}` is the directory of the configuration file.
    "kind.*.exec": Command, like "['/usr/bin/convert', '-']";
    /// `[program.NAME]` that runs the jobs. Several kinds may name one.
    "kind.*.program": Text(STRING), like "'NAME'";
    /// Whether attached workers run the jobs. All kinds of a pool must agree.
    "kind.*.remote": Boolean, like "true";
    /// Built-in handler. `sleep` takes `{"ms": 1500}` or `1500`, the others any bytes.
    "kind.*.builtin": Text(OneOf(Builtin::NAMES)), like "'echo'";
    /// Longest run of one job. By default only the deadline limits it.
    "kind.*.run_timeout": RUN, like "'5s'";
    /// Maximum output. By default `server.max_output` limits unary results, and streams have no limit.
    "kind.*.max_output": MEMORY, like "'16MiB'";
    /// Whether a job may run twice. If so, callers may retry a job that a drain stopped or whose worker was lost.
    "kind.*.idempotent": Boolean, default "false";
    /// Jobs that run at the same time.
    "kind.*.limit.concurrency": MILLION, like "8";
    /// Starts per second.
    "kind.*.limit.rate": RATE, like "50";
    /// Starts at once after a pause. By default those of a tenth of a second, at least one.
    "kind.*.limit.burst": MILLION, like "5";
    /// Jobs of one limit key that run at the same time.
    "kind.*.limit.per_key.concurrency": MILLION, like "2";
    /// Starts per second of one limit key.
    "kind.*.limit.per_key.rate": RATE, like "1.5";
    /// Starts at once of one limit key after a pause.
    "kind.*.limit.per_key.burst": MILLION, like "3";
    /// Limit keys that are counted separately, 10000 by default. Further ones share one limit.
    "kind.*.limit.per_key.keys": Integer(1, ENTRIES), like "10000";
    /// `divide`: the servers that share `store.url` divide the limits for calls. `each` has them whole by default.
    "kind.*.limit.share": Text(OneOf(&["each", "divide"])), like "'divide'";
    /// Maximum number of attempts of a detached job, without those that a drain or a lost lease ended.
    "kind.*.retry.max_attempts": Integer(1, 1000), default "5";
    /// Upper limit of the random delay before the second attempt. It doubles with each further attempt.
    "kind.*.retry.initial": Duration(MILLI, DAY), default "'1s'";
    /// Largest upper limit of the delay.
    "kind.*.retry.max": RUN, default "'10m'";
    /// How long the result of a detached job is kept.
    "kind.*.retain_for": RETENTION, default "'24h'";
    /// How long a detached job that failed is kept.
    "kind.*.retain_dead_for": RETENTION, default "'7days'";
    /// Whether each job has an empty directory, which is its HOME and TMPDIR too. Else jobs run in `/`.
    "kind.*.workspace": Boolean, default "false";
    /// Variables of the program.
    "kind.*.env.*": Secret, like "'text'";
    /// Variables that are copied from the server's environment.
    "kind.*.pass_env": Texts(ENV_COPY), default "[]", like "['HOME']";
    /// Status code for an exit code of the program, if it differs from `sysexits.h`.
    "kind.*.exit_codes.*": Text(FAILURES), like "'NOT_FOUND'";
    /// An exit code that says "not now": the job is tried again after this time, and the attempt does not count.
    "kind.*.exit_codes.*.later": WAIT, default "'30s'";
    /// What else starts no job until then. `LIMIT_KEY` and `KIND` need a limit of the kind.
    "kind.*.exit_codes.*.scope": Text(OneOf(&["JOB", "LIMIT_KEY", "KIND"])), default "'JOB'";
    /// Maximum bytes of standard error that a failure quotes.
    "kind.*.stderr_tail": Size(0, 3 * KIB), default "'2KiB'";
    /// Time between SIGTERM and SIGKILL. The `cancel_grace` of the pool by default.
    "kind.*.kill_grace": GRACE, default "'1s'";
}
