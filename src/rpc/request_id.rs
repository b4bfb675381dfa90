//! The request id of a call: that of the caller, or a new one. `src/model/request_id.rs` generates and parses ids.

use http::HeaderValue;

use crate::model::RequestId;

/// Header with the id of a request.
pub(super) const REQUEST_ID: &str = "x-request-id";

/// The id that the caller sent if it is valid, or a new one.
pub(super) fn request_id(sent: Option<&HeaderValue>) -> RequestId {
    let sent = sent.and_then(|value| value.to_str().ok()).and_then(|text| text.parse().ok());
    sent.unwrap_or_else(RequestId::generate)
}
