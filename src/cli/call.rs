//! A call with its metadata and its deadline.

use std::time::Duration;

use clap::Args;
use tokio::time::Instant;
use tonic::{
    Request, Response, Status,
    metadata::{Ascii, MetadataValue},
};

use super::{
    access::AccessArgs,
    connect::{Address, CONNECT_TIMEOUT, Connection},
    exit::Exit,
    failure::Failure,
    output::setting,
    values::any_duration,
};

/// Time after the deadline in which the server's answer may still arrive.
const SLACK: Duration = Duration::from_millis(250);

/// Flags that become metadata.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct CallArgs {
    /// Deadline of the job: queue and run together, such as 2s or 500ms [default: the server's].
    #[arg(long, value_name = "DURATION", value_parser = any_duration)]
    deadline: Option<Duration>,
    /// Id of the job in logs and traces [default: chosen by the server].
    #[arg(long, value_name = "ID", value_parser = request_id)]
    request_id: Option<MetadataValue<Ascii>>,
}

impl CallArgs {
    /// With this deadline.
    pub(crate) fn within(deadline: Duration) -> Self {
        Self { deadline: Some(deadline), request_id: None }
    }
}

/// One call on its own connection.
///
/// It sends its deadline to the server, and also ends itself if the server does not answer.
pub(crate) struct Call {
    pub(crate) connection: Connection,
    address: Address,
    args: CallArgs,
    give_up: Option<Instant>,
}

impl Call {
    /// Connects, and starts the clock once the connection is open.
    ///
    /// # Errors
    /// If a file for the access cannot be used, or the server is unreachable.
    pub(crate) async fn begin(address: &Address, access: &AccessArgs, args: CallArgs) -> Result<Self, Failure> {
        let limit = args.deadline.map_or(CONNECT_TIMEOUT, |it| it.min(CONNECT_TIMEOUT));
        let connection = Connection::open(address, &access.load(address)?, limit).await?;
        let give_up = args.deadline.and_then(|it| Instant::now().checked_add(it + SLACK));
        Ok(Self { connection, address: address.clone(), args, give_up })
    }

    /// Sends `message` with the metadata of this call, and waits for the answer.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub(crate) async fn ask<M, A>(
        &self,
        message: M,
        send: impl AsyncFnOnce(&Connection, Request<M>) -> Result<Response<A>, Status>,
    ) -> Result<A, Failure> {
        Ok(self.wait(send(&self.connection, self.request(message))).await?.into_inner())
    }

    /// The message with the metadata of this call.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.args.deadline {
            request.set_timeout(deadline);
        }
        if let Some(id) = &self.args.request_id {
            request.metadata_mut().insert("x-request-id", id.clone());
        }
        request
    }

    /// Waits for the server's answer, at most until the deadline.
    ///
    /// # Errors
    /// If the deadline passes, or the status is a failure.
    pub(crate) async fn wait<T>(&self, answer: impl Future<Output = Result<T, Status>>) -> Result<T, Failure> {
        let answered = match (self.give_up, self.args.deadline) {
            (Some(at), Some(deadline)) => tokio::time::timeout_at(at, answer).await.map_err(|_| no_answer(deadline))?,
            _ => answer.await,
        };
        answered.map_err(|status| Failure::of_status(status, &self.address))
    }
}

fn no_answer(deadline: Duration) -> Failure {
    let what = format!("no answer by the deadline of {}; whether the job started is unknown", setting(deadline));
    Failure::new(Exit::DeadlineExceeded, what, "see \"waterwheel stats\" for the state of the server")
}

fn request_id(text: &str) -> Result<MetadataValue<Ascii>, String> {
    const MAX: usize = 128;
    let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
    if text.is_empty() || text.len() > MAX || !visible {
        return Err(format!("pass 1 to {MAX} visible ASCII characters"));
    }
    text.parse().map_err(|_| "pass visible ASCII characters".to_owned())
}

#[cfg(test)]
mod tests {
    use super::request_id;

    #[test]
    fn request_ids_are_what_the_server_keeps() {
        assert!(request_id("req-1/α").is_err());
        assert!(request_id("a b").is_err());
        assert!(request_id("").is_err());
        assert!(request_id(&"x".repeat(129)).is_err());
        assert_eq!(request_id("req-1").unwrap(), "req-1");
        assert!(request_id(&"x".repeat(128)).is_ok());
    }
}
