//! The receipt: the last line of a server's output.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    config::Drain,
    net::UnsentAnswer,
    pool::{LostJob, LostWhile},
};

/// The result of a drain, with every accepted job that it could not finish.
#[derive(Debug, Clone)]
pub struct Receipt {
    /// Duration of the drain.
    pub elapsed: Duration,
    /// Jobs that ended normally during the drain.
    pub finished: u64,
    /// Jobs that could not be finished.
    pub lost: Vec<LostJob>,
    /// Answers that were cut because their callers did not read them in time.
    pub cut: Vec<UnsentAnswer>,
    end: Instant,
}

impl Receipt {
    pub(super) fn new(begin: Instant, plan: Drain, finished: u64, lost: Vec<LostJob>, cut: Vec<UnsentAnswer>) -> Self {
        let end = begin + plan.notice + plan.finish + plan.kill;
        Self { elapsed: begin.elapsed(), finished, lost, cut, end }
    }

    /// Whether no job was lost, and no answer cut.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.cut.is_empty()
    }

    /// One line of JSON: `event` (`"drained"`), `elapsed_ms`, `finished`, and `lost`, a list of objects with `job`,
    /// `request_id`, `kind`, `pool` and `while` (`"queued"`: it had not begun, or `"running"`), and `cut`, a list of
    /// objects with `request_id`, `peer` and `unsent_bytes`.
    #[must_use]
    pub fn to_json(&self) -> String {
        let lost: Vec<Value> = self.lost.iter().map(lost_job).collect();
        let cut: Vec<Value> = self.cut.iter().map(cut_answer).collect();
        json!({
            "event": "drained",
            "elapsed_ms": u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX),
            "finished": self.finished,
            "lost": lost,
            "cut": cut,
        })
        .to_string()
    }

    /// Time left of the drain's total.
    pub(super) fn time_left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }
}

fn cut_answer(answer: &UnsentAnswer) -> Value {
    let UnsentAnswer { request_id, peer, unsent_bytes } = answer;
    json!({ "request_id": request_id, "peer": peer, "unsent_bytes": unsent_bytes })
}

fn lost_job(lost: &LostJob) -> Value {
    let LostJob { job, request_id, kind, pool, lost_while } = lost;
    json!({
        "job": job.to_string(),
        "request_id": request_id.as_str(),
        "kind": &**kind,
        "pool": &**pool,
        "while": match lost_while {
            LostWhile::Queued => "queued",
            LostWhile::Running => "running",
        },
    })
}
