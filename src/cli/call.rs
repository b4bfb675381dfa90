//! A call with its metadata and its deadline.

use std::time::Duration;

use clap::Args;
use tokio::time::Instant;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
};

use super::{
    access::AccessArgs,
    connect::{Address, CONNECT_PATIENCE, Connection},
    failure::Failure,
};

/// Time after the deadline in which the server's answer may still arrive.
const SLACK: Duration = Duration::from_millis(250);

/// Flags that become metadata.
#[derive(Debug, Clone, Args)]
pub(crate) struct CallArgs {
    /// Deadline of the job: queue and run together, such as 2s or 500ms [default: the server's].
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) deadline: Option<Duration>,
    /// Id of the job in logs and traces [default: chosen by the server].
    #[arg(long, value_name = "ID", value_parser = request_id)]
    pub(crate) request_id: Option<MetadataValue<Ascii>>,
}

impl CallArgs {
    /// No deadline and no request id.
    pub(crate) fn none() -> Self {
        Self { deadline: None, request_id: None }
    }
}

/// One call. It sends its deadline to the server, and also ends by itself in case the server does not answer.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    address: Address,
    deadline: Option<Duration>,
    request_id: Option<MetadataValue<Ascii>>,
    give_up: Option<Instant>,
}

impl Call {
    /// Connects, and starts the clock once the connection is open.
    ///
    /// # Errors
    /// [`Failure::Access`] and [`Failure::Unreachable`].
    pub(crate) async fn begin(
        address: &Address,
        access: &AccessArgs,
        args: CallArgs,
    ) -> Result<(Self, Connection), Failure> {
        let CallArgs { deadline, request_id } = args;
        let patience = deadline.map_or(CONNECT_PATIENCE, |it| it.min(CONNECT_PATIENCE));
        let connection = Connection::open(address, &access.load(address)?, patience).await?;
        let call = Self {
            address: address.clone(),
            deadline,
            request_id,
            give_up: deadline.and_then(|it| Instant::now().checked_add(it + SLACK)),
        };
        Ok((call, connection))
    }

    /// The message with the metadata of this call.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        if let Some(id) = &self.request_id {
            request.metadata_mut().insert("x-request-id", id.clone());
        }
        request
    }

    /// The server's answer, unless the deadline passes first.
    ///
    /// # Errors
    /// [`Failure::NoAnswer`], or the failure in the status.
    pub(crate) async fn wait<T>(&self, answer: impl Future<Output = Result<T, Status>>) -> Result<T, Failure> {
        let answered = match (self.give_up, self.deadline) {
            (Some(at), Some(deadline)) => {
                tokio::time::timeout_at(at, answer).await.map_err(|_| Failure::NoAnswer { deadline })?
            }
            _ => answer.await,
        };
        answered.map_err(|status| Failure::of_status(status, &self.address))
    }
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
