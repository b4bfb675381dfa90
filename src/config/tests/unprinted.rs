//! What no fault prints, however it is shown: values below `env`, whatever the slip.

use proptest::prelude::*;

use super::{FINE, Flag, load, sources};
use crate::config::Sources;

/// Part of every secret in here.
const SECRET: &str = "hunter2";

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
    "telemetry.otlp = http://me:hunter2@host",
    "[kind.k]\nenv.A = \"a\nhunter2\"",
    "[kind.k.env] A=\"hunter2\"",
    "[kind.k]\nenv = {\n A = \"hunter2\" # }\n B = \"hunter2\n}",
    "[kind.k]\nenv = [ \"a\", [1]\n \"hunter2\" ]",
    // What does, and slips in its keys.
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
];

/// Every way in which the faults of these sources can be shown.
fn assert_withheld(sources: &Sources) {
    let faults = load(sources).expect_err("there is something wrong in each");
    for shown in [faults.to_string(), faults.styled(), faults.to_json().to_string(), format!("{faults:?}")] {
        assert!(!shown.contains(SECRET), "{:?} {:?}\n{shown}", sources.file.as_ref().unwrap().text, sources.env);
    }
    for fault in faults.iter() {
        assert!(!format!("{} {fault:?}", fault.help()).contains(SECRET), "{fault:?}");
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
        ("kind.k.evn.TOKEN", "hunter2"),
    ];
    FILES.iter().for_each(|file| assert_withheld(&sources(file, &[], &[])));
    sets.iter().flat_map(|(key, value)| overlaid(key, value)).for_each(|sources| assert_withheld(&sources));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The keys whose values are secret, or may be given as one, with anything that is not what they take.
    #[test]
    fn no_fault_prints_the_value_of_a_key_that_holds_a_secret(
        key in prop::sample::select(["kind.k.env", "kind.k.env.A", "kind.k.envs.A", "kind.k.evn"].as_slice()),
        form in prop::sample::select(["{}", "\"{}", "[{}]", "[\"A=@{}\"]", "\"A=@{}\"", "A=@{}"].as_slice()),
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
