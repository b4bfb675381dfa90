//! Metrics of calls and connections.

use std::{fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::{super::Subject, family::Families};

/// Durations of calls, and their connections.
pub(super) struct CallMetrics(pub(super) Arc<Subject>);

impl fmt::Debug for CallMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallMetrics")
    }
}

impl Collector for CallMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder);
        families.durations("rpc_server_call_duration", "Calls from arrival to the end of the work", |family| {
            for call in self.0.calls.read() {
                let labels =
                    [("rpc_method", call.method.as_str()), ("kind", &call.kind), ("rpc_status_code", call.status)];
                family.measured(&labels, &call.durations)?;
            }
            Ok(())
        });
        let listeners: Vec<_> =
            self.0.connections.get().into_iter().flatten().map(|(name, read)| (*name, read())).collect();
        families.gauge("waterwheel_connections", "Open connections", |family| {
            listeners.iter().try_for_each(|(name, all)| family.level(&[("listener", *name)], all.open as f64))
        });
        families.counter("waterwheel_connections_accepted", "Accepted connections", |family| {
            listeners.iter().try_for_each(|(name, all)| family.count(&[("listener", *name)], all.accepted))
        });
        families.counter("waterwheel_connections_refused", "Refused connections, by reason", |family| {
            listeners.iter().try_for_each(|(name, all)| {
                let mut reasons = all.refused.iter();
                reasons.try_for_each(|(reason, count)| family.count(&[("listener", *name), ("reason", reason)], *count))
            })
        });
        families.gauge("waterwheel_held_bytes", "Bytes of incomplete messages and unread answers", |family| {
            listeners.iter().try_for_each(|(name, all)| {
                let mut held = all.held.iter();
                held.try_for_each(|(what, bytes)| family.level(&[("listener", *name), ("what", what)], *bytes as f64))
            })
        });
        families.counter(
            "waterwheel_connections_closed",
            "Accepted connections that were closed, by reason",
            |family| {
                listeners.iter().try_for_each(|(name, all)| {
                    let mut reasons = all.closed.iter();
                    reasons.try_for_each(|(reason, count)| {
                        family.count(&[("listener", *name), ("reason", reason)], *count)
                    })
                })
            },
        );
        families.finish()
    }
}
