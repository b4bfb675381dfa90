use std::collections::BTreeMap;

use super::ExecCommand;
use crate::{
    handler::Context,
    model::{Job, TraceContext},
};

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Every variable that the program sees, but for those that its directory decides.
pub(super) fn environment(command: &ExecCommand, job: &Job, cx: &Context) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::from([("PATH".to_owned(), PATH.to_owned())]);
    variables.extend(command.env.clone());
    // What tells of the job comes last, so that nothing can pass itself off as it.
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
    if let Some(TraceContext { traceparent, tracestate, baggage }) = cx.outgoing_trace() {
        for (name, value) in [("TRACEPARENT", traceparent), ("TRACESTATE", tracestate), ("BAGGAGE", baggage)] {
            if !value.is_empty() {
                set(name, value);
            }
        }
    }
    variables
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
