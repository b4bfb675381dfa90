//! Invalid replacements of certificate files, and their effect on the other files.

use tonic::Code;

use super::ECHO;
use crate::{
    process::{Process, until},
    refusal::Way,
    service::{Client, job},
    support::{Files, Name, TlsClient},
};

/// An invalid client CA changes nothing. A missing one is reported in the log, and in the error of callers that sent a
/// certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_client_ca_is_reported_to_callers_and_operators() {
    let (files, ca) = Files::of_server();
    let rule = "[auth.rule.web]\nprincipals = [\"subject:CN=web\"]\nrpcs = [\"*\"]\n";
    let server = Process::serve(&format!("{ECHO}{}{rule}", files.tls_section(Some("optional")))).await;
    let client = TlsClient::new(&ca, Some(&ca.client(&Name::Common("web"))));
    let call = async |kind: &str| {
        let client = Client::new(client.channel(server.public.0).await.unwrap());
        Way::Submit.fail(&client, Some(job(kind, "")), &[]).await
    };
    files.put("clients.crt", "no roots here\n");
    server.logged("kept the old client CA").await;
    assert_eq!(call("none").await.reason(), "UNKNOWN_KIND", "the old root is trusted");

    std::fs::remove_file(files.path("clients.crt")).unwrap();
    server.logged("restore the file").await;
    until("the end of trust", async || call("none").await.reason() != "UNKNOWN_KIND").await;
    let refusal = call("none").await;
    assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::Unauthenticated, "NO_CREDENTIALS"));
    let help =
        "the client CA of this server is empty or missing; ask its operator to put the roots back, and connect anew";
    assert!(refusal.message().contains(help), "{refusal:?}");
}
