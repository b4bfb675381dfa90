//! The calls by curl in docs/calling.md.

use std::collections::BTreeSet;

use tokio::{process::Command, time::timeout};
use waterwheel::rpc::openapi;

use crate::process::{PATIENCE, Process};

const CALLING: &str = include_str!("../../../docs/calling.md");

/// Why calls of the table fail: their job is an example, or has not failed, or `dev` has no file. A watch never ends.
const EXPECTED: [&str; 4] = ["NOT_FOUND", "WRONG_STATE", "NO_CONFIG", "CALL_TIMEOUT"];

#[tokio::test]
async fn every_rpc_has_a_call_by_curl_that_works() {
    let rows = CALLING.lines().skip_while(|line| *line != "| RPC | call |").skip(2);
    let rows = rows.map_while(|line| line.strip_prefix("| `")?.strip_suffix("` |")?.split_once("` | `"));
    let rows: Vec<_> = rows.collect();
    let contract = openapi::contract();
    let paths = contract["paths"].as_object().unwrap().keys();
    let names: BTreeSet<_> = paths.map(|path| path.replace("/waterwheel.v1.", "").replace('/', ".")).collect();
    assert_eq!(rows.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>(), names);

    let server = Process::dev(&["--set", "store.memory=true"]).await;
    for (name, line) in rows {
        assert!(line.ends_with(&format!(".{}", name.replace('.', "/"))), "{name}: {line}");
        let mut command = Command::new("bash");
        command.args(["-c", line]).kill_on_drop(true);
        for (variable, address) in [("callers", server.public), ("operators", server.ops)] {
            command.env(variable, format!("http://{}/waterwheel.v1", address.0));
        }
        let ended = timeout(PATIENCE, command.output()).await.expect("the command ends").unwrap();
        let answer = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success(), "{name}: {}", String::from_utf8_lossy(&ended.stderr));
        let fails = answer.contains("\"code\":");
        let is_expected = EXPECTED.iter().any(|reason| answer.contains(&format!("\"reason\":\"{reason}\"")));
        assert!(answer.contains('{') && (!fails || is_expected), "{name}: {answer}");
    }
}
