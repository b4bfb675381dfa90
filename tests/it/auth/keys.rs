//! The file with the issuer's keys, which the server reloads while it runs.

// tidy: real time, because the server polls the key file.

use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use tokio::time::{Instant, sleep};
use tonic::Code;

use tokio_stream::wrappers::ReceiverStream;
use waterwheel::proto::{SubmitManyRequest, submit_many_response::Outcome};

use super::{
    KINDS,
    tokens::{Setting, Signer, claims, jwks, tenant, with},
};
use crate::{
    process::{PATIENCE, Process, until},
    refusal::Way,
    service::job,
    support::{Files, toml_string},
};

/// Tokens of the removed key are refused although the server has accepted them before. An invalid file is ignored, and
/// an empty set refuses every token until its keys are back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_key_file_is_reloaded() {
    let setting = Setting::new();
    let next = Signer::new("next");
    let (old, new) = (setting.signer.sign(&claims()), next.sign(&claims()));
    let mut client = setting.client().await;
    assert!(tenant(&mut client, &old).await.is_ok() && tenant(&mut client, &new).await.is_err());
    setting.files.put("jwks.json", "{ \"keys\": [");
    setting.files.put("jwks.json", &jwks(&[next.public()]));
    until("the new key", async || tenant(&mut client.clone(), &new).await.is_ok()).await;
    assert_eq!(tenant(&mut client, &old).await.unwrap_err().code(), Code::Unauthenticated);

    setting.files.put("jwks.json", &jwks(&[]));
    until("the token is refused", async || tenant(&mut client.clone(), &new).await.is_err()).await;
    let refusal = setting.refusal(&new).await;
    assert_eq!((refusal.code(), refusal.reason().as_str()), (Code::Unauthenticated, "INVALID_TOKEN"));
    let help = "ask its operator to put the issuer's keys in the file of auth.jwt.jwks";
    assert!(refusal.message().contains(help), "{refusal:?}");
    setting.files.put("jwks.json", &jwks(&[next.public()]));
    until("the token is accepted again", async || tenant(&mut client.clone(), &new).await.is_ok()).await;
}

/// The jobs of an open call are refused once its token has expired or its key is removed. An added key changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_an_open_call_are_refused_once_its_token_is_invalid() {
    let (other, soon) = (Signer::new("other"), jsonwebtoken::get_current_timestamp() - 2);
    for (token, keys) in [("expires", None), ("loses its key", Some([&other]))] {
        let setting = Setting::new();
        // The token has expired two seconds ago, and three seconds of the leeway are left.
        let claims = if keys.is_none() { with("exp", soon.into()) } else { claims() };
        let (jobs, requests) = tokio::sync::mpsc::channel(1);
        let mut request = tonic::Request::new(ReceiverStream::new(requests));
        let bearer = format!("Bearer {}", setting.signer.sign(&claims));
        request.metadata_mut().insert("authorization", bearer.parse().unwrap());
        let mut results = setting.client().await.submit_many(request).await.unwrap().into_inner();
        let mut code = async || {
            let job = SubmitManyRequest { tag: "it".into(), job: Some(Box::new(job("echo", "x"))) };
            jobs.send(job).await.unwrap();
            match results.message().await.unwrap().unwrap().outcome.unwrap() {
                Outcome::Result(_) => Code::Ok,
                Outcome::Failure(failure) => Code::from(failure.code),
            }
        };
        assert_eq!(code().await, Code::Ok, "a token that {token} later");
        if let Some(keys) = keys {
            let reloaded = Signer::new("reloaded");
            setting.files.put("jwks.json", &jwks(&[setting.signer.public(), reloaded.public()]));
            let fresh = reloaded.sign(&self::claims());
            until("the new keys", async || tenant(&mut setting.client().await, &fresh).await.is_ok()).await;
            assert_eq!(code().await, Code::Ok, "the key of the token is still in the file");
            setting.files.put("jwks.json", &jwks(&keys.map(Signer::public)));
        }
        let begin = Instant::now();
        let refused = loop {
            match code().await {
                Code::Ok if begin.elapsed() < PATIENCE => sleep(Duration::from_millis(10)).await,
                code => break code,
            }
        };
        assert_eq!(refused, Code::Unauthenticated, "a token that {token}");
    }
}

/// The server logs a key file that is missing, incomplete or empty. It keeps the old keys, unless the new set is valid
/// and empty. If the key of a token is unknown, the refusal suggests that the operator adds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_the_key_file_are_logged() {
    let (files, signer) = (Files::new(), Signer::new("one"));
    files.put("jwks.json", &jwks(&[signer.public()]));
    let path = files.path("jwks.json");
    let config = format!(
        "{KINDS}[auth.jwt]\njwks = {}\nissuer = \"https://issuer.test\"\naudience = [\"waterwheel\"]\nreload = \"100ms\"\n\
         [auth.rule.all]\nprincipals = [\"jwt:me\"]\nrpcs = [\"*\"]\n",
        toml_string(&path)
    );
    let server = Process::serve(&config).await;
    let client = server.public.client().await;
    let call = async |signer: &Signer| {
        let bearer = format!("Bearer {}", signer.sign(&claims()));
        Way::Submit.fail(&client, Some(job("no-such-kind", "")), &[("authorization", &bearer)]).await
    };

    let stranger = call(&Signer::new("rotated")).await;
    let help = "ask the operator of this server to put the issuer's keys in the file of auth.jwt.jwks";
    assert!(stranger.message().contains(help), "{stranger:?}");
    server.logged("refused a token signed by a key that is not in the file").await;

    std::fs::remove_file(&path).unwrap();
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    server.logged("it is a pipe, and only regular files are read").await;
    assert_eq!(call(&signer).await.reason(), "UNKNOWN_KIND", "the old key is trusted");

    files.put("jwks.json", "");
    server.logged("it is not a JSON Web Key Set").await;
    assert_eq!(call(&signer).await.reason(), "UNKNOWN_KIND", "the old key is trusted");

    files.put("jwks.json", &jwks(&[]));
    server.logged("every token is refused; put").await;
    assert_eq!(call(&signer).await.reason(), "INVALID_TOKEN");
}
