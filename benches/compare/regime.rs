//! The regimes: the load, the measured figures, and the expected ratios.

use std::time::Duration;

use serde::Serialize;

/// A server, or a way to call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Side {
    Waterwheel,
    /// Waterwheel without a log, so that no job has a span.
    Mute,
    /// Waterwheel by `Submit`, if the regime tests another method.
    Submit,
    Bare,
    Go,
}

/// A way to load a server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Regime {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) load: Load,
    pub(crate) rows: &'static [Row],
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Load {
    /// A constant number of calls in flight on each connection.
    Closed { rpc: &'static str, connections: usize, in_flight: usize, payload: usize },
    /// One call at a time over a path of 20 ms. It lasts `times` times as long as a burst.
    Delayed { payload: usize, times: u32 },
    /// A single volley of concurrent calls on each connection.
    Volley { connections: usize, calls: usize, payload: usize },
}

/// One comparison.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) figure: Figure,
    pub(crate) beside: Side,
    pub(crate) aim: Option<Aim>,
}

/// A figure that a burst measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Figure {
    CpuUsPerRequest,
    JobsPerCpuSecond,
    RequestsPerS,
    P50Ms,
    P99Ms,
    WritesPerReply,
    ServedShare,
    PeakMib,
}

/// The expected ratio of waterwheel to the other side.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Aim {
    AtMost(f64),
    AtLeast(f64),
}

/// Delay in one direction of the delayed regimes, half of their 20 ms.
pub(crate) const ONE_WAY: Duration = Duration::from_millis(10);

const MIB: usize = 1 << 20;
const UPLOAD: &[Row] = &[row(Figure::P50Ms, Side::Bare, Some(Aim::AtMost(1.1))), row(Figure::P50Ms, Side::Go, None)];
const VOLLEY: &[Row] = &[
    row(Figure::ServedShare, Side::Bare, Some(Aim::AtLeast(1.0))),
    row(Figure::ServedShare, Side::Go, None),
    row(Figure::PeakMib, Side::Bare, None),
    row(Figure::PeakMib, Side::Go, None),
    row(Figure::RequestsPerS, Side::Bare, None),
];

pub(crate) const REGIMES: &[Regime] = &[
    Regime {
        name: "echo",
        what: "echo of 64 B, 8 connections × 32",
        kind: "echo",
        load: closed("submit", 8, 32, 64),
        rows: &[
            row(Figure::CpuUsPerRequest, Side::Bare, Some(Aim::AtMost(1.1))),
            row(Figure::RequestsPerS, Side::Bare, None),
            row(Figure::WritesPerReply, Side::Bare, None),
            row(Figure::CpuUsPerRequest, Side::Go, None),
            row(Figure::RequestsPerS, Side::Go, None),
            row(Figure::CpuUsPerRequest, Side::Mute, Some(Aim::AtMost(1.07))),
        ],
    },
    Regime {
        name: "thousand",
        what: "echo of 64 B, 1,000 connections × 1",
        kind: "echo",
        load: closed("submit", 1000, 1, 64),
        rows: &[
            row(Figure::CpuUsPerRequest, Side::Bare, Some(Aim::AtMost(1.15))),
            row(Figure::P99Ms, Side::Bare, Some(Aim::AtMost(1.15))),
            row(Figure::CpuUsPerRequest, Side::Go, None),
            row(Figure::P99Ms, Side::Go, None),
        ],
    },
    Regime {
        name: "few",
        what: "echo of 64 B, 8 connections × 1",
        kind: "echo",
        load: closed("submit", 8, 1, 64),
        rows: &[
            row(Figure::P99Ms, Side::Bare, Some(Aim::AtMost(1.3))),
            row(Figure::CpuUsPerRequest, Side::Bare, None),
            row(Figure::P99Ms, Side::Go, None),
        ],
    },
    Regime {
        name: "large",
        what: "echo of 1 MiB, one at a time",
        kind: "echo",
        load: closed("submit", 1, 1, MIB),
        rows: &[
            row(Figure::RequestsPerS, Side::Bare, Some(Aim::AtLeast(0.9))),
            row(Figure::RequestsPerS, Side::Go, None),
        ],
    },
    Regime {
        name: "upload-64k",
        what: "uploads of 64 KiB over 20 ms",
        kind: "sha256",
        load: Load::Delayed { payload: 64 << 10, times: 1 },
        rows: UPLOAD,
    },
    Regime {
        name: "upload-1m",
        what: "uploads of 1 MiB over 20 ms",
        kind: "sha256",
        load: Load::Delayed { payload: MIB, times: 2 },
        rows: UPLOAD,
    },
    Regime {
        name: "upload-4m",
        what: "uploads of 4 MB over 20 ms",
        kind: "sha256",
        load: Load::Delayed { payload: 4_000_000, times: 4 },
        rows: UPLOAD,
    },
    Regime {
        name: "sha256",
        what: "sha256 of 64 B, 8 connections × 32",
        kind: "sha256",
        load: closed("submit", 8, 32, 64),
        rows: &[
            row(Figure::CpuUsPerRequest, Side::Go, Some(Aim::AtMost(1.0))),
            row(Figure::RequestsPerS, Side::Go, None),
            row(Figure::CpuUsPerRequest, Side::Bare, None),
        ],
    },
    Regime {
        name: "exec",
        what: "/bin/true by exec, 8 connections × 1",
        kind: "true",
        load: closed("submit", 8, 1, 0),
        rows: &[row(Figure::RequestsPerS, Side::Go, Some(Aim::AtLeast(0.9)))],
    },
    Regime {
        name: "many",
        what: "echo of 64 B by SubmitMany, 8 calls × 32",
        kind: "echo",
        load: closed("submit-many", 8, 32, 64),
        rows: &[
            row(Figure::JobsPerCpuSecond, Side::Submit, Some(Aim::AtLeast(6.0))),
            row(Figure::CpuUsPerRequest, Side::Bare, None),
        ],
    },
    Regime {
        name: "volley-100",
        what: "100 uploads of 1 MiB at once, 1 connection",
        kind: "echo",
        load: Load::Volley { connections: 1, calls: 100, payload: MIB },
        rows: VOLLEY,
    },
    Regime {
        name: "volley-16",
        what: "16 uploads of 3.9 MB at once, 1 connection",
        kind: "echo",
        load: Load::Volley { connections: 1, calls: 16, payload: 3_900_000 },
        rows: VOLLEY,
    },
    Regime {
        name: "volley-8x40",
        what: "8 × 40 uploads of 1 MiB at once, 8 connections",
        kind: "echo",
        load: Load::Volley { connections: 8, calls: 40, payload: MIB },
        rows: VOLLEY,
    },
];

impl Regime {
    /// Waterwheel, and the servers that it is compared with.
    pub(crate) fn sides(&self) -> Vec<Side> {
        let mut sides = vec![Side::Waterwheel];
        for row in self.rows {
            if !sides.contains(&row.beside) {
                sides.push(row.beside);
            }
        }
        sides
    }
}

impl Aim {
    pub(crate) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtMost(most) => ratio <= most,
            Self::AtLeast(least) => ratio >= least,
        }
    }
}

const fn row(figure: Figure, beside: Side, aim: Option<Aim>) -> Row {
    Row { figure, beside, aim }
}

const fn closed(rpc: &'static str, connections: usize, in_flight: usize, payload: usize) -> Load {
    Load::Closed { rpc, connections, in_flight, payload }
}
