//! `waterwheel explain`.

use clap::Args;

use super::{
    console::{BAD, Console, GOOD, STRONG, WARN, paint},
    failure::{Exit, Failure, indented},
    operate::OperatorArgs,
    output::{duration, sanitized, seconds, short_duration},
};
use crate::proto::{
    Binding, EndedState, ExplainRequest, ExplainResponse, HeldState, RunningState, Waterfall, explain_response::State,
};

/// Show the state of a job and what it waits for, or how it ended.
///
/// Each pool remembers its last ended jobs; pool.NAME.ended_jobs sets how many.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  waterwheel explain $JOB")]
pub(super) struct ExplainArgs {
    /// Id of the job, from its result, an error, "waterwheel jobs" or the log; or the request id of its call.
    job: String,
    #[command(flatten)]
    pub(super) operator: OperatorArgs,
}

pub(super) async fn run(args: ExplainArgs, console: &mut Console<'_>) -> Result<Exit, Failure> {
    let ExplainArgs { job: job_id, operator } = args;
    let request = ExplainRequest { job_id };
    let answer = operator.ask(request, async |server, request| server.admin().explain(request).await).await?;
    console.message(&answer, text).await?;
    Ok(Exit::Done)
}

fn text(answer: &ExplainResponse) -> String {
    let ExplainResponse { job_id, pool, kind, state, .. } = answer;
    let head = format!("{}  kind {}  pool {}", paint(STRONG, sanitized(job_id)), sanitized(kind), sanitized(pool));
    let lines = match state {
        Some(State::Held(held)) => self::held(held),
        Some(State::Running(running)) => self::running(running),
        Some(State::Ended(ended)) => self::ended(ended),
        None => String::new(),
    };
    format!("{head}\n{}{lines}{}", names(answer), others(answer))
}

/// Its names besides its id.
fn names(answer: &ExplainResponse) -> String {
    let ExplainResponse { tenant, request_id, principal, runner, .. } = answer;
    let names = [("tenant", tenant), ("caller", principal), ("request id", request_id), ("in", runner)];
    let known = names.into_iter().filter(|(_, name)| !name.is_empty());
    let known: Vec<_> = known.map(|(what, name)| format!("{what} {}", sanitized(name))).collect();
    if known.is_empty() { String::new() } else { format!("  {}\n", known.join("  ")) }
}

fn others(answer: &ExplainResponse) -> String {
    let others = &answer.other_job_ids;
    if others.is_empty() {
        return String::new();
    }
    let ids: Vec<_> = others.iter().map(|id| sanitized(id)).collect();
    format!("  other jobs of this request id, the newest first: {}\n", ids.join(", "))
}

fn held(held: &HeldState) -> String {
    let HeldState { position, ahead, expected_start, bound_by: _, age, left } = held;
    let place = match ahead {
        Some(ahead) => format!("queued at {position}, {ahead} ahead"),
        None => format!("waits for capacity at {position}"),
    };
    let expected = expected_start
        .as_ref()
        .map(|start| format!(", expected to start in {}", short_duration(duration(Some(start)))));
    let expected = expected.unwrap_or_default();
    format!(
        "  {}{expected}\n  because {}\n  arrived {} ago, {} left\n",
        paint(WARN, place),
        because(held.bound_by()),
        short_duration(duration(age.as_ref())),
        short_duration(duration(left.as_ref())),
    )
}

fn because(binding: Binding) -> &'static str {
    match binding {
        Binding::Unspecified => "of a cause that this client does not know",
        Binding::Pause => "its pool is paused",
        Binding::Room => "the queue is full",
        Binding::Workers => "no worker is free",
        Binding::Tenants => "no worker is free, and tenants that had less worker time go first",
        Binding::OrderingKey => "an earlier job has the same ordering key",
        Binding::LimitConcurrency => "its kind is at its concurrency limit",
        Binding::LimitRate => "its kind is at its rate limit",
        Binding::LimitKeyConcurrency => "its limit key is at its concurrency limit",
        Binding::LimitKeyRate => "its limit key is at its rate limit",
    }
}

fn running(running: &RunningState) -> String {
    let RunningState { worker, queue, run, left, stopping, stuck } = running;
    let state = match (stuck, stopping) {
        (true, _) => paint(BAD, "ignored the request to stop"),
        (false, true) => paint(WARN, "asked to stop"),
        (false, false) => paint(GOOD, "runs"),
    };
    let [queue, run, left] = [queue, run, left].map(|it| short_duration(duration(it.as_ref())));
    format!("  {state} on worker {worker} for {run}, after {queue} in the queue\n  {left} left\n")
}

fn ended(ended: &EndedState) -> String {
    let EndedState { outcome, started, rung, waterfall, since, message, program } = ended;
    let style = if outcome == "COMPLETED" { GOOD } else { BAD };
    let waterfall = waterfall.unwrap_or_default();
    let Waterfall { budget_seconds, queue_seconds, run_seconds, left_seconds, worker } = waterfall;
    let [budget, queue, run, left] =
        [budget_seconds, queue_seconds, run_seconds, left_seconds].map(|part| short_duration(seconds(part)));
    let run = match started {
        true => format!("{run} running on worker {worker}"),
        false => "not started".to_owned(),
    };
    let mut text = format!(
        "  {} {} ago{}\n  {budget} budget: {queue} queued, {run}, {left} left\n",
        paint(style, sanitized(outcome)),
        short_duration(duration(since.as_ref())),
        if message.is_empty() { String::new() } else { format!(": {}", indented(&sanitized(message))) },
    );
    if !rung.is_empty() {
        text.push_str(&format!("  stop ladder: {}\n", sanitized(rung)));
    }
    if let Some(program) = program.as_ref().filter(|program| !program.stderr.is_empty()) {
        text.push_str(&format!("  its standard error ended in\n    {}\n", indented(&sanitized(&program.stderr))));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ProgramEnd;

    fn shown(state: State) -> String {
        let answer = ExplainResponse {
            job_id: "1-2".into(),
            pool: "cpu".into(),
            kind: "resize".into(),
            state: Some(state),
            ..ExplainResponse::default()
        };
        anstream::adapter::strip_str(&text(&answer)).to_string()
    }

    fn time(text: &str) -> Option<prost_types::Duration> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn each_state_has_its_words() {
        let held = HeldState {
            position: 4,
            ahead: Some(3),
            expected_start: time("1.5s"),
            bound_by: Binding::LimitRate.into(),
            age: time("0.2s"),
            left: time("29.8s"),
        };
        assert_eq!(
            shown(State::Held(held)),
            "1-2  kind resize  pool cpu\n  queued at 4, 3 ahead, expected to start in 1.5s\n  \
             because its kind is at its rate limit\n  arrived 200ms ago, 30s left\n"
        );
        let running = RunningState {
            worker: 7,
            queue: time("0.1s"),
            run: time("2s"),
            left: time("28s"),
            stopping: true,
            stuck: false,
        };
        assert_eq!(
            shown(State::Running(running)),
            "1-2  kind resize  pool cpu\n  asked to stop on worker 7 for 2.0s, after 100ms in the queue\n  28s left\n"
        );
        let waterfall =
            Waterfall { budget_seconds: 1.0, queue_seconds: 0.2, run_seconds: 0.79, left_seconds: 0.01, worker: 3 };
        let ended = EndedState {
            outcome: "RUN_TIMEOUT".into(),
            started: true,
            rung: "forced".into(),
            waterfall: Some(waterfall),
            since: time("60s"),
            message: "first\nsecond".into(),
            program: Some(ProgramEnd { stderr: "a\x1b\nb".into(), ..ProgramEnd::default() }),
        };
        assert_eq!(
            shown(State::Ended(ended)),
            "1-2  kind resize  pool cpu\n  RUN_TIMEOUT 1m 0s ago: first\n    second\n  \
             1.0s budget: 200ms queued, 790ms running on worker 3, 10ms left\n  stop ladder: forced\n  \
             its standard error ended in\n    a\u{fffd}\n    b\n"
        );
    }
}
