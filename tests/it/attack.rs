//! Hostile peers. Each test is one attack on a server in a process of its own; while it runs, and while what it leaves
//! behind is still held, another client's calls succeed, and afterwards memory, files and jobs are what they were.
//!
//! Where stock tonic falls to the same attack, the test says so by attacking a bare server with the same code.

mod age;
mod bombs;
mod connection;
mod control;
mod descriptors;
mod drains;
mod farewell;
mod floods;
mod frames;
mod headers;
mod held;
mod peer;
mod resets;
mod silence;
mod target;

/// The call that all attackers make.
const SUBMIT: &str = "/waterwheel.v1.WorkerPoolService/Submit";

/// A `Submit` of a job, as gRPC frames it.
fn submit(kind: &str, payload: &str) -> Vec<u8> {
    let request = waterwheel::proto::SubmitRequest { job: Some(crate::service::job(kind, payload.to_owned())) };
    frames::message(false, &prost::Message::encode_to_vec(&request))
}
