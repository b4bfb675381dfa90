//! Times in which calls may break off.

use std::time::Duration;

use crate::{record::Asked, server::NOTICE};

/// From the end of a disturbance until both sides have found out what is broken: the keepalive, and a little.
const FOUND_OUT: Duration = Duration::from_millis(350);

/// A time in which calls between these may break off.
#[derive(Debug)]
pub(crate) struct Disturbance {
    /// Whether the server drains, which answers the callers of all that it has accepted.
    pub(crate) is_drain: bool,
    /// All of them, where there is no number.
    pub(crate) caller: Option<usize>,
    pub(crate) server: usize,
    pub(crate) begin: Duration,
    pub(crate) end: Option<Duration>,
}

impl Disturbance {
    /// Whether a call may have broken off for it.
    pub(crate) fn excuses(&self, asked: &Asked) -> bool {
        self.begin <= asked.end && self.may_concern(asked)
    }

    /// Whether the server may not hear from the caller that it has left, or not in time.
    pub(crate) fn may_hide_end_of(&self, asked: &Asked) -> bool {
        !self.is_drain && self.may_concern(asked)
    }

    /// Whether it may have kept a connection for this call from being made by `end`.
    pub(crate) fn may_refuse(&self, asked: &Asked, end: Duration) -> bool {
        let begin = self.begin + if self.is_drain { NOTICE } else { Duration::ZERO };
        self.is_between(asked) && begin <= end && self.end.is_none_or(|end| asked.begin <= end)
    }

    fn may_concern(&self, asked: &Asked) -> bool {
        self.is_between(asked) && self.end.is_none_or(|end| asked.begin <= end + FOUND_OUT)
    }

    fn is_between(&self, asked: &Asked) -> bool {
        self.server == asked.server && self.caller.is_none_or(|caller| caller == asked.caller)
    }
}
