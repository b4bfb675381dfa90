//! Metrics of denied calls, quotas and reloaded files.

use std::{fmt, sync::Arc};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};

use super::{super::Subject, family::Families};

/// Denied calls, and reloads of certificates and keys. Parts that are not configured have no series.
pub(super) struct SecurityMetrics(pub(super) Arc<Subject>);

/// Files, reloads that succeeded, reloads that failed.
type Changes = (&'static str, u64, u64);

impl fmt::Debug for SecurityMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecurityMetrics")
    }
}

impl Collector for SecurityMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder);
        let Subject { guard, tls, .. } = &*self.0;
        let mut changes: Vec<Changes> = Vec::new();
        if let Some(tls) = tls {
            changes.push(("tls", tls.reloads().done(), tls.reloads().failed()));
        }
        if let Some(gate) = &guard.gate {
            let counts = gate.counts();
            changes.push(("keys", counts.keys_reloaded, counts.keys_broken));
            families.counter("waterwheel_calls_denied", "Denied calls and jobs", |family| {
                family.count(&[("reason", "unauthenticated")], counts.unauthenticated)?;
                family.count(&[("reason", "permission_denied")], counts.denied)
            });
        }
        if let Some(quotas) = &*guard.quotas.load() {
            families.counter("waterwheel_quota_refused", "Jobs over the quota of their tenant", |family| {
                family.only_count(quotas.refused())
            });
            families.gauge("waterwheel_quota_tenants", "Tenants with a quota of their own in use", |family| {
                family.only_level(quotas.tenants() as f64)
            });
        }
        if !changes.is_empty() {
            families.counter("waterwheel_file_changes", "Changed files, by whether they could be loaded", |family| {
                changes.iter().try_for_each(|(files, done, failed)| {
                    family.count(&[("files", *files), ("outcome", "taken")], *done)?;
                    family.count(&[("files", *files), ("outcome", "broken")], *failed)
                })
            });
        }
        families.finish()
    }
}
