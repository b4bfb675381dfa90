//! What neither `config show` nor a fault prints.

use super::{Case, FINE, check, load, ok, sources, to_json, to_toml, to_toml_with_origins};

/// Part of every secret in here.
const SECRET: &str = "hunter2";

/// A variable's name that is longer than any other.
const LONG: &str = "A_NAME_OF_A_VARIABLE_THAT_IS_AS_LONG_AS_SOMEBODY_COULD_THINK_OF_IN_A_LONG_TIME";

const WITH_SECRETS: &str = r#"
[kind.k]
pool = "base"
exec = ["/bin/sh", "-c", "curl http://me:hunter2@host/path"]
env = { TOKEN = "hunter2", URL = "http://hunter2@host" }
"#;

#[test]
fn values_of_variables_and_userinfo_are_not_shown() {
    let long = format!("WATERWHEEL_KIND__K__ENV__{LONG}");
    let env = [("WATERWHEEL_KIND__K__ENV__PASSWORD", "hunter2"), (&*long, "hunter2")];
    let settings = ok(&format!("{WITH_SECRETS}{FINE}"), &env, &[]).settings;
    for shown in [to_toml(&settings), to_toml_with_origins(&settings), to_json(&settings).to_string()] {
        assert!(!shown.contains(SECRET), "{shown}");
        assert!(shown.contains(&format!("env.{LONG}")), "{shown}");
        for whole in ["curl http://(withheld)@host/path", "env.TOKEN", "env.URL", "env.PASSWORD"] {
            assert!(shown.contains(whole), "no {whole} in {shown}");
        }
    }
}

#[test]
fn what_was_withheld_is_no_value() {
    for line in ["env = { TOKEN = \"(withheld)\" }", "env.A = \"1\"\nkill_grace = \"http://(withheld)@host\""] {
        let file = format!("[kind.k]\npool = \"base\"\nexec = [\"/bin/sh\"]\n{line}{FINE}");
        let faults = load(&sources(&file, &[], &[])).expect_err(line);
        assert_eq!(faults.iter().len(), 1, "{faults}");
    }
    let file = format!("[kind.k]\npool = \"base\"\nexec = [\"/bin/sh\", \"http://(withheld)@host\"]{FINE}");
    let faults = load(&sources(&file, &[], &[])).expect_err("it is no value");
    let told = faults.iter().next().unwrap().message().to_owned();
    assert_eq!(told, "`kind.k.exec` must be the value itself, not what `config show` prints in its place");
}

#[test]
fn faults_point_to_lines_without_what_is_withheld() {
    check(&[
        Case {
            file: r#"[kind.k]
pool = "base"
exec = ["/bin/sh"]
env = { TOKEN = "hunter2", "2B" = "hunter2", C = -2 }"#,
            faults: r#"
error: `kind.k.env.2B`: `2B` is not a name of a variable
 --> ww.toml:4:29
  |
4 | env = { TOKEN = (withheld), "2B" = (withheld), C = (withheld) }
  |                             ^^^^
  |
  = help: use letters, digits and `_`, and no digit first

error: `kind.k.env.C` must be a string, not an integer
 --> ww.toml:4:52
  |
4 | env = { TOKEN = (withheld), "2B" = (withheld), C = (withheld) }
  |                                                    ^^^^^^^^^^
  |
  = help: write it like `"text"`
"#,
            ..Case::NONE
        },
        Case {
            file: r#"telemetry.otlp = "http://me:hunter2@host""#,
            faults: r#"
error: `telemetry.otlp`: `http://(withheld)@host` is not an http:// URL of a collector
 --> ww.toml:1:18
  |
1 | telemetry.otlp = "http://(withheld)@host"
  |                  ^^^^^^^^^^^^^^^^^^^^^^^^
  |
  = help: write it like `"http://127.0.0.1:4317"`
"#,
            ..Case::NONE
        },
        Case {
            flags: &[("--set", "server.listen", "http://me:hunter2@host")],
            faults: r#"
error: `server.listen`: `http://(withheld)@host` is not an address: IP:PORT, unix:/path or systemd:N
--> command line:1:21
 |
 | --set server.listen=http://(withheld)@host
 |                     ^^^^^^^^^^^^^^^^^^^^^^
 |
 = help: write it like `"127.0.0.1:7070"`
"#,
            ..Case::NONE
        },
    ]);
}

/// Each fault has its own lines alone.
#[test]
fn many_faults_of_a_large_file_are_shown_line_by_line() {
    let file: String = (0..5_000).map(|line| format!("[pool.p{line}]\nworkers = 0\n")).collect();
    let faults = load(&sources(&format!("{file}{FINE}"), &[], &[])).expect_err("no pool has workers");
    assert_eq!(faults.iter().len(), 5_000);
    let shown = faults.to_string();
    assert!(shown.contains("10000 | workers = 0"), "{}", &shown[shown.len() - 300..]);
}
