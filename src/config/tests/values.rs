//! Faults of single values: type, form, range.

use super::check_lines;

#[test]
fn strings_booleans_and_numbers() {
    check_lines(&[
        (
            "telemetry.service_name = 5",
            "`telemetry.service_name` must be a string, not an integer",
            r#"write it like `"waterwheel"`"#,
        ),
        (
            r#"telemetry.service_name = """#,
            "`telemetry.service_name`: `` is not a text of one character or more",
            r#"write it like `"waterwheel"`"#,
        ),
        (
            r#"telemetry.service_name = "a\u0000""#,
            "`telemetry.service_name` must be a string without NUL, not one with it",
            r#"write it like `"waterwheel"`"#,
        ),
        ("ops.metrics = 1", "`ops.metrics` must be a boolean, not an integer", "write it like `true`"),
        (
            r#"kind.k = { pool = "base", builtin = "echo", idempotent = "yes" }"#,
            "`kind.k.idempotent`: `yes` is not a boolean",
            "write it like `false`",
        ),
        (
            r#"server.submit_many_window = "many""#,
            "`server.submit_many_window`: `many` is not a whole number",
            "write it like `256`",
        ),
        (
            "server.submit_many_window = 1.5",
            "`server.submit_many_window` must be a whole number, not a float",
            "write it like `256`",
        ),
        (
            r#"telemetry.sample_ratio = "half""#,
            "`telemetry.sample_ratio`: `half` is not a number",
            "write it like `0.5`",
        ),
        (
            r#"pool.cpu.workers = "all""#,
            r#"`pool.cpu.workers`: `all` is not a whole number or "cpus""#,
            "write it like `8`",
        ),
        (
            "pool.cpu.workers = [1]",
            r#"`pool.cpu.workers` must be a whole number or "cpus", not an array"#,
            "write it like `8`",
        ),
        (
            "pool.cpu.workers = 1979-05-27",
            r#"`pool.cpu.workers` must be a whole number or "cpus", not a date"#,
            "write it like `8`",
        ),
    ]);
}

#[test]
fn durations_and_sizes() {
    check_lines(&[
        ("deadline.max = 5", "`deadline.max` must be a duration, not an integer", r#"write it like `"10m"`"#),
        (r#"deadline.max = "5""#, "`deadline.max`: `5` is not a duration", r#"write it like `"10m"`"#),
        (r#"deadline.max = "5 parsecs""#, "`deadline.max`: `5 parsecs` is not a duration", r#"write it like `"10m"`"#),
        (r#"server.max_payload = "4MB""#, "`server.max_payload`: `4MB` is not a size", r#"write it like `"4MiB"`"#),
        (
            r#"server.max_payload = "4 mebibytes""#,
            "`server.max_payload`: `4 mebibytes` is not a size",
            r#"write it like `"4MiB"`"#,
        ),
        ("server.max_payload = -1", "`server.max_payload`: `-1` is not a size", r#"write it like `"4MiB"`"#),
        (
            r#"server.max_payload = "99999999TiB""#,
            "`server.max_payload`: `99999999TiB` is not a size",
            r#"write it like `"4MiB"`"#,
        ),
    ]);
}

#[test]
fn addresses_filters_and_urls() {
    check_lines(ADDRESSES_FILTERS_AND_URLS);
}

const ADDRESSES_FILTERS_AND_URLS: &[(&str, &str, &str)] = &[
    (
        r#"server.listen = "localhost:7070""#,
        "`server.listen`: `localhost:7070` is not an address: IP:PORT, unix:/path or systemd:N",
        r#"write it like `"127.0.0.1:7070"`"#,
    ),
    (
        r#"server.listen = "127.0.0.1""#,
        "`server.listen`: `127.0.0.1` is not an address: IP:PORT, unix:/path or systemd:N",
        r#"write it like `"127.0.0.1:7070"`"#,
    ),
    (
        r#"server.grpc_web_origins = ["https://app.example", "app.example"]"#,
        "`server.grpc_web_origins`: `app.example` is not an origin of pages, without a path",
        r#"write it like `["https://app.example"]`"#,
    ),
    (
        r#"server.grpc_web_origins = ["https://app.example/"]"#,
        "`server.grpc_web_origins`: `https://app.example/` is not an origin of pages, without a path",
        r#"write it like `["https://app.example"]`"#,
    ),
    (
        "server.ops_listen = 7071",
        "`server.ops_listen` must be a string or an array of strings, not an integer",
        r#"write it like `"127.0.0.1:7071"`"#,
    ),
    (
        r#"server.listen = "unix:/run/ww?mod=600""#,
        "`server.listen`: `unix:/run/ww?mod=600` is not an address: IP:PORT, unix:/path or systemd:N",
        r#"unknown parameter "mod"; the only one is mode, as in unix:/path?mode=660"#,
    ),
    (
        r#"server.ops_listen = "unix:/run/ww?mode=888""#,
        "`server.ops_listen`: `unix:/run/ww?mode=888` is not an address: IP:PORT, unix:/path or systemd:N",
        r#"invalid mode "888"; write permissions in octal, 777 at most, as in unix:/path?mode=660"#,
    ),
    (
        r#"server.ops_hosts = ["ops.example:7071"]"#,
        "`server.ops_hosts`: `ops.example:7071` is not a name of a host, without a port",
        "write it like `[\"ops.example\"]`",
    ),
    (
        r#"server.listen = ["127.0.0.1:1", "unix:run/ww"]"#,
        "`server.listen`: `unix:run/ww` is not an address: IP:PORT, unix:/path or systemd:N",
        r#"write it like `"127.0.0.1:7070"`"#,
    ),
    (
        "server.listen = []",
        "`server.listen` must be a string or an array of strings, not an empty array",
        r#"write it like `"127.0.0.1:7070"`"#,
    ),
    (
        r#"server.proxies = ["10.0.0.0/33"]"#,
        "`server.proxies`: `10.0.0.0/33` is not a network",
        r#"write it like `["10.0.0.0/8", "192.0.2.1"]`"#,
    ),
    (
        r#"server.proxies = "10.0.0.0/8""#,
        "`server.proxies` must be an array of strings, not a string",
        r#"write it like `["10.0.0.0/8", "192.0.2.1"]`"#,
    ),
    (
        r#"telemetry.log = "info,=""#,
        "`telemetry.log`: `info,=` is not a filter of log lines",
        r#"write it like `"info,waterwheel=debug"`"#,
    ),
    (
        r#"telemetry.log = """#,
        "`telemetry.log`: `` is not a filter of log lines",
        r#"write it like `"info,waterwheel=debug"`"#,
    ),
    (
        r#"telemetry.otlp = "https://collector:4317""#,
        "`telemetry.otlp`: `https://collector:4317` is not an http:// URL of a collector",
        r#"write it like `"http://127.0.0.1:4317"`"#,
    ),
    (
        r#"telemetry.otlp = "http://""#,
        "`telemetry.otlp`: `http://` is not an http:// URL of a collector",
        r#"write it like `"http://127.0.0.1:4317"`"#,
    ),
    (
        r#"telemetry.otlp = "http://host:0""#,
        "`telemetry.otlp`: `http://host:0` is not an http:// URL of a collector",
        r#"write it like `"http://127.0.0.1:4317"`"#,
    ),
    (
        "telemetry.otlp = 4317",
        "`telemetry.otlp` must be a string, not an integer",
        r#"write it like `"http://127.0.0.1:4317"`"#,
    ),
];

#[test]
fn closed_sets() {
    check_lines(&[
        (
            r#"telemetry.log_format = "jsno""#,
            "`telemetry.log_format`: `jsno` is not one of its values",
            "did you mean `json`?",
        ),
        (
            r#"pool.cpu.when_full = "drop""#,
            "`pool.cpu.when_full`: `drop` is not one of its values",
            "choose from reject, wait, shed",
        ),
        (
            "pool.cpu.when_full = true",
            "`pool.cpu.when_full` must be a string, not a boolean",
            r#"write it like `"reject"`"#,
        ),
    ]);
}

#[test]
fn outside_of_the_range() {
    check_lines(OUTSIDE_OF_THE_RANGE);
}

const OUTSIDE_OF_THE_RANGE: &[(&str, &str, &str)] = &[
    ("server.threads = 0", "`server.threads` is 0, outside of 1 to 256", "give a value from 1 to 256"),
    (
        "server.connections.max_age = \"1ms\"",
        "`server.connections.max_age` is 1ms, outside of 1s to 1year",
        "give a value from 1s to 1year",
    ),
    (
        "server.connections.max_age_grace = \"99ms\"",
        "`server.connections.max_age_grace` is 99ms, outside of 100ms to 1year",
        "give a value from 100ms to 1year",
    ),
    (
        "server.connections.idle_timeout = \"999ms\"",
        "`server.connections.idle_timeout` is 999ms, outside of 1s to 1year",
        "give a value from 1s to 1year",
    ),
    (
        "server.connections.preface_timeout = \"1ms\"",
        "`server.connections.preface_timeout` is 1ms, outside of 100ms to 1h",
        "give a value from 100ms to 1h",
    ),
    (
        "server.http2.keepalive_interval = \"1ms\"",
        "`server.http2.keepalive_interval` is 1ms, outside of 100ms to 1h",
        "give a value from 100ms to 1h",
    ),
    (
        "server.http2.keepalive_timeout = \"0s\"",
        "`server.http2.keepalive_timeout` is 0s, outside of 100ms to 1h",
        "give a value from 100ms to 1h",
    ),
    ("server.threads = 257", "`server.threads` is 257, outside of 1 to 256", "give a value from 1 to 256"),
    (
        "server.submit_many_window = 0",
        "`server.submit_many_window` is 0, outside of 1 to 65536",
        "give a value from 1 to 65536",
    ),
    (
        "server.submit_many_window = 65537",
        "`server.submit_many_window` is 65537, outside of 1 to 65536",
        "give a value from 1 to 65536",
    ),
    (
        "server.max_concurrent_streams = 0",
        "`server.max_concurrent_streams` is 0, outside of 1 to 65536",
        "give a value from 1 to 65536",
    ),
    (
        r#"server.max_payload = "0B""#,
        "`server.max_payload` is 0B, outside of 1B to 1GiB",
        "give a value from 1B to 1GiB",
    ),
    (
        r#"server.max_output = "2GiB""#,
        "`server.max_output` is 2GiB, outside of 1B to 1GiB",
        "give a value from 1B to 1GiB",
    ),
    (
        r#"deadline.default = "0s""#,
        "`deadline.default` is 0s, outside of 1ms to 7days",
        "give a value from 1ms to 7days",
    ),
    (r#"deadline.max = "8days""#, "`deadline.max` is 8days, outside of 1ms to 7days", "give a value from 1ms to 7days"),
    (
        r#"deadline.reply_margin = "1001ms""#,
        "`deadline.reply_margin` is 1s 1ms, outside of 0s to 1s",
        "give a value from 0s to 1s",
    ),
    (r#"drain.finish = "25h""#, "`drain.finish` is 1day 1h, outside of 0s to 1day", "give a value from 0s to 1day"),
    (
        "telemetry.sample_ratio = 1.01",
        "`telemetry.sample_ratio` is 1.01, outside of 0.0 to 1.0",
        "give a value from 0.0 to 1.0",
    ),
    (
        "telemetry.sample_ratio = -0.5",
        "`telemetry.sample_ratio` is -0.5, outside of 0.0 to 1.0",
        "give a value from 0.0 to 1.0",
    ),
    (
        "telemetry.sample_ratio = nan",
        "`telemetry.sample_ratio` is nan, outside of 0.0 to 1.0",
        "give a value from 0.0 to 1.0",
    ),
    ("pool.cpu.workers = 0", "`pool.cpu.workers` is 0, outside of 1 to 65536", "give a value from 1 to 65536"),
    (
        "pool.cpu.workers = 99999999999999999999",
        "`pool.cpu.workers` is 9223372036854775807, outside of 1 to 65536",
        "give a value from 1 to 65536",
    ),
    (
        "pool.cpu.queue.jobs = 0",
        "`pool.cpu.queue.jobs` is 0, outside of 1 to 16777216",
        "give a value from 1 to 16777216",
    ),
    ("pool.cpu.queue.bytes = 0", "`pool.cpu.queue.bytes` is 0B, outside of 1B to 1TiB", "give a value from 1B to 1TiB"),
    (
        "pool.cpu.queue.waiting = -1",
        "`pool.cpu.queue.waiting` is -1, outside of 0 to 16777216",
        "give a value from 0 to 16777216",
    ),
    (
        r#"pool.cpu.cancel_grace = "2days""#,
        "`pool.cpu.cancel_grace` is 2days, outside of 0s to 1day",
        "give a value from 0s to 1day",
    ),
    ("pool.cpu.max_stuck = 1025", "`pool.cpu.max_stuck` is 1025, outside of 0 to 1024", "give a value from 0 to 1024"),
    (
        "pool.cpu.tenant_share = 0",
        "`pool.cpu.tenant_share` is 0, outside of 0 (excluded) to 1",
        "give a value from 0 (excluded) to 1",
    ),
    (
        "pool.cpu.tenant_share = 1.5",
        "`pool.cpu.tenant_share` is 1.5, outside of 0 (excluded) to 1",
        "give a value from 0 (excluded) to 1",
    ),
    (
        "pool.cpu.ended_jobs = 1048577",
        "`pool.cpu.ended_jobs` is 1048577, outside of 0 to 1048576",
        "give a value from 0 to 1048576",
    ),
    (
        r#"kind.k = { pool = "base", builtin = "echo", run_timeout = "0s" }"#,
        "`kind.k.run_timeout` is 0s, outside of 1ms to 7days",
        "give a value from 1ms to 7days",
    ),
    (
        r#"kind.k = { pool = "base", builtin = "echo", limit.concurrency = 0 }"#,
        "`kind.k.limit.concurrency` is 0, outside of 1 to 1000000",
        "give a value from 1 to 1000000",
    ),
    (
        r#"kind.k = { pool = "base", builtin = "echo", limit.per_key.rate = 0 }"#,
        "`kind.k.limit.per_key.rate` is 0.0, outside of 0.001 to 1000000.0",
        "give a value from 0.001 to 1000000.0",
    ),
    (
        r#"kind.k = { pool = "base", builtin = "echo", limit.per_key.keys = 0 }"#,
        "`kind.k.limit.per_key.keys` is 0, outside of 1 to 16777216",
        "give a value from 1 to 16777216",
    ),
    (
        r#"kind.k = { pool = "base", builtin = "echo", limit.burst = 5 }"#,
        "`kind.k.limit.burst` has no effect without `kind.k.limit.rate`",
        "set `kind.k.limit.rate`, or remove it",
    ),
    (
        r#"kind.k = { pool = "base", builtin = "echo", limit.rate = 5, limit.per_key.keys = 5 }"#,
        "`kind.k.limit.per_key.keys` has no effect without `kind.k.limit.per_key.concurrency` or `kind.k.limit.per_key.rate`",
        "set `kind.k.limit.per_key.concurrency` or `kind.k.limit.per_key.rate`, or remove it",
    ),
    (
        r#"kind.k = { pool = "base", builtin = "echo", max_output = 0 }"#,
        "`kind.k.max_output` is 0B, outside of 1B to 1TiB",
        "give a value from 1B to 1TiB",
    ),
];
