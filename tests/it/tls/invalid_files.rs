//! Invalid replacements of certificate files, and their effect on the other files.

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tonic::Code;

use super::{ALLOW_ALL, ECHO, gets_through, serial};
use crate::{
    process::{Process, until},
    refusal::Way,
    service::{Client, Service, job},
    support::{Authority, Files, Name, TlsClient},
};

fn replace_by_fifo(files: &Files, name: &str) {
    let new = files.path("fifo");
    mknodat(CWD, &new, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    std::fs::rename(new, files.path(name)).unwrap();
}

/// Reading a FIFO blocks. While one replaces the client CA, its old roots stay and new certificates are loaded. While
/// one replaces the key, new roots are loaded. A restored file is loaded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fifo_in_place_of_one_file_does_not_block_the_reload_of_others() {
    let files = Files::new();
    let [ca, old, new] = ["server", "old", "new"].map(Authority::new);
    files.put_leaf("server", &ca.server(1));
    files.put("clients.crt", &old.pem());
    let service = Service::start(&format!("{ECHO}{}{ALLOW_ALL}", files.tls_section(Some("required"))), Vec::new());
    let show = |authority: &Authority| TlsClient::new(&ca, Some(&authority.client(&Name::Common("web"))));
    let (of_old, of_new) = (show(&old), show(&new));

    replace_by_fifo(&files, "clients.crt");
    let leaf = ca.server(2);
    files.put_leaf("server", &leaf);
    let expected = leaf.cert.der().to_vec();
    until("the new certificate", async || serial(&of_old, &service).await == expected).await;
    assert!(gets_through(&of_old, &service).await, "the old root is trusted");

    replace_by_fifo(&files, "server.key");
    files.put("clients.crt", &new.pem());
    until("the new root", async || gets_through(&of_new, &service).await).await;
    assert!(!gets_through(&of_old, &service).await);
    assert_eq!(serial(&of_new, &service).await, expected, "the old certificate stays");

    let leaf = ca.server(3);
    files.put_leaf("server", &leaf);
    let expected = leaf.cert.der().to_vec();
    until("the newest certificate", async || serial(&of_new, &service).await == expected).await;
}

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
