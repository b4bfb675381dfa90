//! The messages of the runner, as far as this server reads or writes them. All requests of one type of stream have the
//! same fields, and so have all answers.

use prost_types::Any;

/// How the runner wants the server.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Wanted {
    #[prost(bool, tag = "4")]
    pub(crate) use_tls: bool,
    #[prost(uint32, tag = "6")]
    pub(crate) message_receive_limit: u32,
    #[prost(message, optional, tag = "7")]
    pub(crate) server_creds: Option<Credentials>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Credentials {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) cert: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) key: Vec<u8>,
}

/// Where the server is.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Started {
    #[prost(string, tag = "1")]
    pub(crate) host: String,
    #[prost(uint32, tag = "2")]
    pub(crate) port: u32,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) pem_cert: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Header {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) value: Vec<String>,
}

/// A request whose answer is one message.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnaryRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) definition: Option<UnaryDefinition>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct UnaryDefinition {
    #[prost(message, repeated, tag = "1")]
    pub(crate) headers: Vec<Header>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) data: Vec<u8>,
    #[prost(message, optional, tag = "3")]
    pub(crate) error: Option<Failure>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) trailers: Vec<Header>,
    #[prost(uint32, tag = "6")]
    pub(crate) delay_ms: u32,
}

/// A request whose answer is a stream.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) definition: Option<StreamDefinition>,
}

/// One of several requests whose answer is a stream.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct DuplexRequest {
    #[prost(bool, tag = "2")]
    pub(crate) full_duplex: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StreamDefinition {
    #[prost(message, repeated, tag = "1")]
    pub(crate) headers: Vec<Header>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) data: Vec<Vec<u8>>,
    #[prost(uint32, tag = "3")]
    pub(crate) delay_ms: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) error: Option<Failure>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) trailers: Vec<Header>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Failure {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<Any>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Answer {
    #[prost(message, optional, tag = "1")]
    pub(crate) payload: Option<Payload>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Payload {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) data: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    pub(crate) request_info: Option<RequestInfo>,
}

/// What has arrived.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequestInfo {
    #[prost(message, repeated, tag = "1")]
    pub(crate) headers: Vec<Header>,
    #[prost(int64, optional, tag = "2")]
    pub(crate) timeout_ms: Option<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) requests: Vec<Any>,
}
