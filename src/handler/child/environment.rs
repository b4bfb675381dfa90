//! The environment variables of a program.

use std::collections::BTreeMap;

use crate::{
    handler::Context,
    model::{Job, TraceContext},
};

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The variables of a program for all its jobs, but for those that its directory decides.
pub(in crate::handler) fn for_program(own: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
    variables.extend(own.clone());
    variables
}

/// Adds the variables of a job. They come last, so that no other can pass itself off as one of them.
pub(in crate::handler) fn for_job(variables: &mut BTreeMap<String, String>, job: &Job, cx: &Context) {
    for (key, value) in &job.labels {
        variables.insert(label_variable(key), value.clone());
    }
    let mut set = |name: &str, value: String| variables.insert(name.to_owned(), value);
    set("WATERWHEEL_JOB_ID", cx.job().to_string());
    set("WATERWHEEL_KIND", cx.kind().to_string());
    set("WATERWHEEL_REQUEST_ID", cx.request_id().to_string());
    set("WATERWHEEL_DEADLINE_MS", cx.budget().as_millis().to_string());
    set("WATERWHEEL_CONTENT_TYPE", job.content_type.clone());
    set("WATERWHEEL_TENANT", job.tenant.clone());
    let attempt = cx.attempt();
    set("WATERWHEEL_ATTEMPT", attempt.map_or(1, |attempt| attempt.number).to_string());
    set("WATERWHEEL_IDEMPOTENCY_KEY", attempt.map_or_else(String::new, |attempt| attempt.job.clone()));
    set("WATERWHEEL_TOKEN", attempt.map_or_else(String::new, ToString::to_string));
    if let Some(TraceContext { traceparent, tracestate, baggage }) = cx.outgoing_trace() {
        for (name, value) in [("TRACEPARENT", traceparent), ("TRACESTATE", tracestate), ("BAGGAGE", baggage)] {
            if !value.is_empty() {
                set(name, value);
            }
        }
    }
}

fn label_variable(key: &str) -> String {
    let portable = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("WATERWHEEL_LABEL_{}", key.chars().map(portable).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_portable_names() {
        assert_eq!(label_variable("a.b-c_1"), "WATERWHEEL_LABEL_A_B_C_1");
    }
}
