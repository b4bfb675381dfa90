//! Neither `config show` nor a fault prints a secret: a value below `env`, or the userinfo of a URL. A fault prints
//! nothing of the URL of a database. This holds for invalid configurations, too.

use proptest::prelude::*;

use super::{Case, FINE, Flag, Sources, check, load, ok, sources, to_json, to_toml, to_toml_with_origins};

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
fn the_placeholder_of_a_secret_is_refused_as_a_value() {
    for line in ["env = { TOKEN = \"(withheld)\" }", "env.A = \"1\"\nkill_grace = \"http://(withheld)@host\""] {
        let file = format!("[kind.k]\npool = \"base\"\nexec = [\"/bin/sh\"]\n{line}{FINE}");
        let faults = load(&sources(&file, &[], &[])).expect_err(line);
        assert_eq!(faults.iter().len(), 1, "{faults}");
    }
    let file = format!("[kind.k]\npool = \"base\"\nexec = [\"/bin/sh\", \"http://(withheld)@host\"]{FINE}");
    let faults = load(&sources(&file, &[], &[])).expect_err("the placeholder is not a value");
    let message = faults.iter().next().unwrap().message.clone();
    assert_eq!(message, "`kind.k.exec` must be the value itself, not the text that `config show` prints instead of it");
}

#[test]
fn faults_quote_lines_without_secrets() {
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

/// Each fault quotes only its own lines, so that the report of a large file stays small.
#[test]
fn many_faults_of_a_large_file_are_shown_line_by_line() {
    let file: String = (0..5_000).map(|line| format!("[pool.p{line}]\nworkers = 0\n")).collect();
    let faults = load(&sources(&format!("{file}{FINE}"), &[], &[])).expect_err("no pool has workers");
    assert_eq!(faults.iter().len(), 5_000);
    let shown = faults.to_string();
    assert!(shown.contains("10000 | workers = 0"), "{}", &shown[shown.len() - 300..]);
}

/// Invalid files that contain a secret, below `env` or in a place where no secret belongs.
const FILES: &[&str] = &[
    // Files that do not parse.
    "[kind.k]\nenv = { TOKEN = \"hunter2 }",
    "[kind.k.env]\nA = hunter2",
    "[kind.k]\nenv = {\n A = \"1\",\n TOKEN = hunter2\n}",
    "[kind.k.env]\nA = \"\"\"\n\\hunter2=\\hunter2\n\"\"\"",
    "[kind.k]\nenv.A = \"1\" hunter2",
    "[kind.k]\nkind.k.env.A = hunter2",
    "kind = { k = { env = { A = hunter2 } } }",
    "telemetry.otlp = http://me:hunter2@host",
    "[kind.k]\nenv.A = \"a\nhunter2\"",
    "[kind.k.env] A=\"hunter2\"",
    "[kind.k]\nenv = {\n A = \"hunter2\" # }\n B = \"hunter2\n}",
    "[kind.k]\nenv = [ \"a\", [1]\n \"hunter2\" ]",
    // Files that parse, but have wrong keys or values.
    "[kind]\nenv = { TOKEN = \"hunter2\" }",
    "[kind.env]\nTOKEN = \"hunter2\"",
    "[kind.k]\nenvs = { TOKEN = \"hunter2\" }",
    "[kind.k]\nEnvironment = { TOKEN = \"hunter2\" }",
    "[kind.k]\nenv = \"hunter2\"",
    "[kind.k]\nenv = [\"TOKEN=hunter2\", { A = \"hunter2\" }]",
    "kinds = { k = { env = { TOKEN = \"hunter2\" } } }",
    "[kind.k]\nenv = { TOKEN = \"hunter2\\u0000\" }",
    "telemetry.otlp = [\"http://me:hunter2@host\"]",
    "[kind.k]\nexec = [\"http://me:hunter2@host\"]",
    "[kind.k]\nevn = { TOKEN = \"hunter2\" }",
    "[kind.k.evn]\nTOKEN = \"hunter2\"",
    "[[kind.k.evn]]\nTOKEN = \"hunter2\"",
    "[kind.k.env]\nTOKEN = \"a\nhunter2=\"",
    "store.url = \"host=h user=u password=hunter2\"",
    "store = { url = \"postgres:/u:hunter2@h/jobs\" }",
    "[store]\nlisten_url = \"hunter2\"",
    "[store]\nurl = \"\"#@hunter2",
    "[kind.k]\nenv = { TOKEN = \"\" } # hunter2",
    "[store]\nurls = \"host=h password=hunter2\"",
    "[store]\nurl = host=h password=hunter2",
    "[store]\nurl = [\"host=h password=hunter2\"]",
];

/// Asserts that no form of the faults of these sources contains the secret.
fn assert_withheld(sources: &Sources) {
    let faults = load(sources).expect_err("there is something wrong in each");
    for shown in [faults.to_string(), faults.styled(), faults.to_json().to_string(), format!("{faults:?}")] {
        assert!(!shown.contains(SECRET), "{:?} {:?}\n{shown}", sources.file.as_ref().unwrap().text, sources.env);
    }
    for fault in faults.iter() {
        assert!(!format!("{} {fault:?}", fault.help).contains(SECRET), "{fault:?}");
    }
}

/// The key set in three ways: by a variable, by a variable in capitals, and by a flag. An invalid variable is added, so
/// that each has a fault.
fn sources_with(key: &str, value: &str) -> [Sources; 3] {
    let variable = format!("WATERWHEEL_{}", key.replace('.', "__"));
    let wrong = ("WATERWHEEL_SERVER__THREADS", "0");
    let mut flags = sources(FINE, &[wrong], &[]);
    flags.flags.push(Flag { flag: "--set", key: key.to_owned(), value: value.to_owned() });
    let capitals = variable.to_uppercase();
    [sources(FINE, &[(&variable, value), wrong], &[]), sources(FINE, &[(&capitals, value), wrong], &[]), flags]
}

#[test]
fn no_fault_prints_a_secret() {
    let sets = [
        ("kind.k.env", "hunter2"),
        ("kind.env.TOKEN", "hunter2"),
        ("kind.k.env.TOKEN.x", "hunter2"),
        ("kind.k", "{ env = { TOKEN = \"hunter2\" } }"),
        ("kind.k", "{ env = { TOKEN = \"hunter2 } }"),
        ("kind.k.evn.TOKEN", "hunter2"),
        ("store.url", "host=h user=u password=hunter2"),
        ("store.listen_url", "host=h user=u password=hunter2"),
        ("store", "{ url = \"host=h password=hunter2\" }"),
    ];
    FILES.iter().for_each(|file| assert_withheld(&sources(file, &[], &[])));
    sets.iter().flat_map(|(key, value)| sources_with(key, value)).for_each(|sources| assert_withheld(&sources));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Invalid values for `env`, for its keys and for misspellings of it.
    #[test]
    fn no_fault_prints_the_value_of_a_key_that_holds_a_secret(
        key in prop::sample::select(["kind.k.env", "kind.k.env.A", "kind.k.envs.A", "kind.k.evn", "store.url", "store.ulr"].as_slice()),
        form in prop::sample::select(["{}", "\"{}", "[{}]", "[\"A=@{}\"]", "\"A=@{}\"", "A=@{}"].as_slice()),
        before in "[a-z \\\\\"'=#\\[{]{0,6}",
    ) {
        let value = form.replace("{}", &format!("{before}@{SECRET}"));
        let file = format!("[kind.k]\npool = \"base\"\nexec = [\"/bin/sh\"]\n{FINE}");
        for mut overlaid in sources_with(key, &value) {
            overlaid.file = sources(&file, &[], &[]).file;
            assert_withheld(&overlaid);
        }
        assert_withheld(&sources(&format!("{key} = {value}\n{file}"), &[("WATERWHEEL_SERVER__THREADS", "0")], &[]));
    }
}
