//! What no fault prints, however it is shown: a table of slips, and any value under any key that holds a secret.

use proptest::prelude::*;

use super::{FINE, Flag, load, sources};
use crate::config::Sources;

/// Part of every secret in here.
const SECRET: &str = "hunter2";

/// Keys of which a person would paste the text that the path was meant to lead to.
const PATHS: [&str; 4] = ["server.tls.cert", "server.tls.key", "server.tls.client_ca", "auth.jwt.jwks"];

/// What stands in such a file, in the forms in which it is copied.
const PASTED: [&str; 7] = [
    "hunter2",
    "----BEGIN PRIVATE KEY---- hunter2",
    "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdpK06nwoyHUCXhunter2==",
    "/MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdpK06nwoyHUCXhunter2",
    "{'keys':[{'kty':'oct','k':'hunter2'}]}",
    "eyJhbGciOiJFUzI1NiIsImtpZCI6Im9uZSJ9.eyJzdWIiOiJtZSIsImV4cCI6MTcwMDAwMDAwMDAwfQ.hunter2",
    "hunter2 in.words, with a dot",
];

/// Files with a secret in a place where none belongs, or where it may be.
const FILES: &[&str] = &[
    // What does not parse.
    "[kind.k]\nenv = { TOKEN = \"hunter2 }",
    "[kind.k.env]\nA = hunter2",
    "[kind.k]\nenv = {\n A = \"1\",\n TOKEN = hunter2\n}",
    "[kind.k.env]\nA = \"\"\"\n\\hunter2=\\hunter2\n\"\"\"",
    "[kind.k]\nenv.A = \"1\" hunter2",
    "[kind.k]\nkind.k.env.A = hunter2",
    "kind = { k = { env = { A = hunter2 } } }",
    "telemetry.otlp = \"me:hunter2@host",
    "telemetry.otlp = http://me:hunter2@host",
    "[kind.k]\nenv.A = \"a\nhunter2\"",
    "[kind.k.env] A=\"hunter2\"",
    "[kind.k]\nenv = {\n A = \"hunter2\" # }\n B = \"hunter2\n}",
    "[kind.k]\nenv = [ \"a\", [1]\n \"hunter2\" ]",
    "[kind.k]\n\"e\\u006ev\".A = hunter2",
    // What does, and slips in its keys.
    "[kind]\nenv = { TOKEN = \"hunter2\" }",
    "[kind.env]\nTOKEN = \"hunter2\"",
    "[kind.k]\nenvs = { TOKEN = \"hunter2\" }",
    "[kind.k]\nEnvironment = { TOKEN = \"hunter2\" }",
    "[kind.k]\nenv = \"hunter2\"",
    "[kind.k]\nenv = [\"TOKEN=hunter2\", { A = \"hunter2\" }]",
    "kinds = { k = { env = { TOKEN = \"hunter2\" } } }",
    "[kind.k]\nenv = { TOKEN = \"hunter2\\u0000\" }",
    "telemetry.otlp = \"me:hunter2@host:4317\"",
    "telemetry.otlp = [\"http://me:hunter2@host\"]",
    "server.grpc_web_origins = [\"https://me:hunter2@host\"]",
    "[kind.k]\nexec = [\"http://me:hunter2@host\"]",
    "[kind.k]\nevn = { TOKEN = \"hunter2\" }",
    "[kind.k]\nvars = { A = { B = [\"hunter2\"] } }\nidempotent = 3",
    "[kind.k]\nvars = { A = \"hunter2\" }, idempotent = 3",
    "[kind.k.evn]\nTOKEN = \"hunter2\"",
    "[[kind.k.evn]]\nTOKEN = \"hunter2\"",
    "[kind.k]\nexec = [\"/bin/sh\"]\nenv = { \"A=hunter2\" = \"x\" }",
    "[kind.k]\nexec = [\"/bin/sh\"]\nenv = { \"A=hunter2\" = 5 }",
    "[kind.k]\nexec = [\"/bin/sh\"]\n[kind.k.env.\"A=hunter2\"]\nx = 1\n[kind.k.env.'A=hunter2'.y]",
    "[kind.k]\nexec = [\"/bin/sh\"]\npass_env = [\"TOKEN=hunter2\"]",
    "[kind.k]\nexec = [\"/bin/sh\"]\npass_env = [\"T=hunter2\", \"T=hunter2\"]\nenv.\"T=hunter2\" = \"x\"",
    "[kind.k]\nexec = [\"/bin/sh\"]\npass_env = [\"WATERWHEEL_A=hunter2\"]",
    "[kind.k]\nexec = [\"/bin/sh\"]\npass_env = \"TOKEN=hunter2\"",
    "[kind.k]\nexec = [\"/bin/sh\"]\nexit_codes = { \"A=hunter2\" = \"NOT_FOUND\" }",
    "[kind.k]\npass_env = [\"TOKEN=hunter2\"]\nenv = \"hunter2\"",
    "[kind.\"A=hunter2\"]\npool = \"base\"\nbuiltin = \"ecko\"",
    "[pool.\"A=hunter2\"]\nworkers = 0",
    "\"A=hunter2\" = 1",
    "telemetry.otpl = \"user:hunter2@host\"",
    "[server]\nthreads = 0 # hunter2",
    "[server]\nthreads = 8 8 # hunter2",
    "[server] # hunter2\nthreads = \"\"\"\nhunter2\nhunter2\"\"\"",
    "server = \"hunter2\"",
    "server.listen = \"127.0.0.1:1\\nhunter2\"",
    "[server.tls]\nkey = hunter2",
    "[server.tls]\nkey = \"MIIhunter2\nMIIhunter2\nhunter2=\n\"",
    "[server.tls]\nkey = \"\"\"\nMIIhunter2\nhunter2=\n",
    "[server.tls]\nkey = [\nhunter2 = 1\nhunter2=\n",
    "[kind.k.env]\nTOKEN = \"a\nhunter2=\"",
    "[server]\nthreads = 8 TOKEN = \"hunter2\"",
    "[server]\nthreads = 8 8\nevn = {\nhunter2 = 8 8",
    "[server]\nlisten = { x = hunter2 }",
    "hunter2",
];

/// Every way in which the faults of these sources can be shown.
fn assert_withheld(sources: &Sources) {
    let faults = load(sources).expect_err("there is something wrong in each");
    for shown in [faults.to_string(), faults.styled(), faults.to_json().to_string(), format!("{faults:?}")] {
        assert!(!shown.contains(SECRET), "{:?} {:?}\n{shown}", sources.file.as_ref().unwrap().text, sources.env);
    }
    for fault in faults.iter() {
        assert!(!format!("{} {fault:?}", fault.problem().help()).contains(SECRET), "{fault:?}");
    }
}

/// A key set by a flag and by variables, as they are spelled and in capitals, beside one that is wrong in any case.
fn overlaid(key: &str, value: &str) -> [Sources; 3] {
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
        ("telemetry.otlp", "me:hunter2@host"),
        ("kind.k.evn.TOKEN", "hunter2"),
        ("kind.echo.vars", "{ TOKEN = \"hunter2\" }"),
        ("kind.echo.vars", "[\"hunter2\", { A = [\"hunter2\"] }]"),
        ("kind.echo.env.A=hunter2", "x"),
        ("kind.echo.A hunter2", "x"),
        ("A hunter2", "x"),
        ("pool.base.workers.A hunter2", "x"),
        ("kind.k.exec", "[\"/bin/sh\"]\nhunter2"),
        ("telemetry.otpl", "user:hunter2@h"),
        ("server", "hunter2"),
    ];
    FILES.iter().for_each(|file| assert_withheld(&sources(file, &[], &[])));
    sets.iter().flat_map(|(key, value)| overlaid(key, value)).for_each(|sources| assert_withheld(&sources));
}

#[test]
fn no_fault_prints_what_was_given_in_place_of_a_path() {
    for pasted in PASTED {
        for path in PATHS {
            // One file alone is a fault whatever its path is.
            let file = format!("{path} = \"{pasted}\"\nauth.jwt.issuer = \"i\"\nauth.jwt.audience = [\"a\"]{FINE}");
            assert_withheld(&sources(&file, &[], &[]));
            for mut sources in overlaid(path, pasted).into_iter().chain(overlaid("server.tls.ca", pasted)) {
                let more = "auth.jwt.issuer = \"i\"\nauth.jwt.audience = [\"a\"]";
                sources.file.as_mut().unwrap().text.insert_str(0, more);
                assert_withheld(&sources);
            }
            let both = format!("[server.tls]\ncert = \"{pasted}\"\nkey = \"{pasted}\"\nclient_ca = \"{pasted}\"");
            assert_withheld(&sources(&format!("{both}{FINE}"), &[], &[]));
        }
    }
}

#[test]
fn a_path_is_shown() {
    let file = format!("server.tls.key = \"/etc/ww/tls.key\"{FINE}");
    let faults = load(&sources(&file, &[], &[])).expect_err("it stands alone").to_string();
    assert!(faults.contains("1 | server.tls.key = \"/etc/ww/tls.key\""), "{faults}");
}

/// A key of which each segment is one that somebody could write, known or not.
fn key() -> impl Strategy<Value = Vec<String>> {
    let known = prop::sample::select(vec![
        "server",
        "tls",
        "key",
        "auth",
        "jwt",
        "jwks",
        "kind",
        "echo",
        "k",
        "env",
        "pool",
        "base",
        "telemetry",
        "quota",
        "tenant",
        "drain",
        "limit",
        "rule",
    ]);
    prop::collection::vec(prop_oneof![known.prop_map(str::to_owned), "[a-zA-Z_]{1,9}"], 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The key that no reader knows is `zz`, somewhere: all below it is withheld.
    #[test]
    fn no_fault_prints_a_value_under_an_unknown_key(
        mut key in key(),
        at in any::<prop::sample::Index>(),
        pasted in prop::sample::select(PASTED.to_vec()),
        form in 0..4,
    ) {
        key.insert(at.index(key.len() + 1), "zz".into());
        let key = key.join(".");
        let value = match form {
            0 => format!("\"{pasted}\""),
            1 => format!("[1, \"{pasted}\"]"),
            2 => format!("{{ A = \"{pasted}\", \"A={pasted}\" = 2 }} # {pasted}"),
            _ => format!("\"{pasted}"),
        };
        assert_withheld(&sources(&format!("{key} = {value}\nserver.threads = 0"), &[], &[]));
        overlaid(&key, &value).iter().for_each(assert_withheld);
    }

    /// The keys whose values are secret, or may be given as one, with anything that is not what they take.
    #[test]
    fn no_fault_prints_the_value_of_a_key_that_holds_a_secret(
        key in prop::sample::select(["kind.k.env", "kind.k.env.A", "kind.k.pass_env", "telemetry.otlp"].as_slice()),
        form in prop::sample::select(["{}", "\"{}", "[{}]", "[\"A=@{}\"]", "{ \"A=@{}\" = 1 }", "\"A=@{}\"", "A=@{}"].as_slice()),
        before in "[a-z \\\\\"'=#\\[{]{0,6}",
    ) {
        let value = form.replace("{}", &format!("{before}@{SECRET}"));
        let file = format!("[kind.k]\npool = \"base\"\nexec = [\"/bin/sh\"]\n{FINE}");
        for mut overlaid in overlaid(key, &value) {
            overlaid.file = sources(&file, &[], &[]).file;
            assert_withheld(&overlaid);
        }
        assert_withheld(&sources(&format!("{key} = {value}\n{file}"), &[("WATERWHEEL_SERVER__THREADS", "0")], &[]));
    }
}
