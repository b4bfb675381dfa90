//! Bounds of values, and sets of names, that several keys share.

use std::time::Duration as Time;

use crate::config::value_type::{
    Syntax,
    Syntax::OneOf,
    ValueType,
    ValueType::{Duration, Integer, Number, Size},
};

pub(super) const KIB: u64 = 1 << 10;
pub(super) const GIB: u64 = 1 << 30;
pub(super) const MILLI: Time = Time::from_millis(1);
pub(super) const SECOND: Time = Time::from_secs(1);
pub(super) const HOUR: Time = Time::from_secs(3600);
pub(super) const DAY: Time = Time::from_secs(24 * 3600);

/// Size of one gRPC message.
pub(super) const MESSAGE: ValueType = Size(1, GIB);
/// Memory for many messages, or for one stream.
pub(super) const MEMORY: ValueType = Size(1, 1024 * GIB);
/// HTTP/2 flow-control windows: from about the protocol's initial window to the largest power of two that it allows.
pub(super) const WINDOW: ValueType = Size(64 * KIB, GIB);
/// Time limits of peers: shorter ones would fail distant peers.
pub(super) const WAIT: ValueType = Duration(Time::from_millis(100), HOUR);
/// 365.25 days.
pub(super) const YEAR: Time = Time::from_secs(31_557_600);
/// Ages of connections: with shorter ones, each call would need a new connection. The largest is practically unlimited.
pub(super) const AGE: ValueType = Duration(SECOND, YEAR);
/// Deadlines and run limits: long enough for any job, and short enough to reveal a wrong unit.
pub(super) const RUN: ValueType = Duration(MILLI, Time::from_secs(7 * 24 * 3600));
/// Retention of ended jobs: from none to a year.
pub(super) const RETENTION: ValueType = Duration(Time::ZERO, YEAR);
/// Phases of a shutdown; 0 skips the phase.
pub(super) const GRACE: ValueType = Duration(Time::ZERO, DAY);
pub(super) const MILLION: ValueType = Integer(1, 1_000_000);
/// Number of entries that an index of 24 bits can address.
pub(super) const ENTRIES: i64 = 1 << 24;
/// Starts per second: from one in a quarter of an hour to the resolution of timers.
pub(super) const RATE: ValueType = Number(0.001, 1_000_000.0);

pub(super) const CLASSES: Syntax = OneOf(&["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"]);
/// Signature algorithms with a private key. With a shared secret, each reader of the file could sign tokens.
pub(super) const ALGORITHMS: Syntax =
    OneOf(&["ES256", "ES384", "EdDSA", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]);
/// Status codes that a program may report: they describe its work, never the pool.
pub(super) const FAILURES: Syntax = OneOf(&[
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNKNOWN",
]);
