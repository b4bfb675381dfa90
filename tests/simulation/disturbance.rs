//! Periods in which calls may break.

use std::time::Duration;

use crate::{record::SentJob, server::NOTICE};

/// Longest time after a disturbance until both sides have detected broken connections: the keepalive and some margin.
const DETECTED: Duration = Duration::from_millis(350);

/// A period in which calls between a server and its callers may break.
#[derive(Debug)]
pub(crate) struct Disturbance {
    /// Whether it is a drain. A drain answers the callers of all accepted jobs.
    pub(crate) is_drain: bool,
    /// `None` for all callers.
    pub(crate) caller: Option<usize>,
    pub(crate) server: usize,
    pub(crate) begin: Duration,
    pub(crate) end: Option<Duration>,
}

impl Disturbance {
    /// Whether the call may have broken because of it.
    pub(crate) fn excuses(&self, sent: &SentJob) -> bool {
        self.begin <= sent.end && self.may_concern(sent)
    }

    /// Whether it may prevent or delay the message that cancels the call.
    pub(crate) fn may_hide_end_of(&self, sent: &SentJob) -> bool {
        !self.is_drain && self.may_concern(sent)
    }

    /// Whether it may have prevented a connection for this call until `end`.
    pub(crate) fn may_refuse(&self, sent: &SentJob, end: Duration) -> bool {
        let begin = self.begin + if self.is_drain { NOTICE } else { Duration::ZERO };
        self.is_between(sent) && begin <= end && self.end.is_none_or(|end| sent.begin <= end)
    }

    fn may_concern(&self, sent: &SentJob) -> bool {
        self.is_between(sent) && self.end.is_none_or(|end| sent.begin <= end + DETECTED)
    }

    fn is_between(&self, sent: &SentJob) -> bool {
        self.server == sent.server && self.caller.is_none_or(|caller| caller == sent.caller)
    }
}
