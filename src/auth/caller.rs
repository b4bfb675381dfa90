use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{Denial, Rpc, Rpcs, Rule};

/// Longest tenant of a job, in bytes.
const MOST_TENANT: usize = 128;

/// Somebody whose credentials are sound, with the rules that name them.
#[derive(Debug)]
pub struct Caller {
    principal: String,
    rpcs: Rpcs,
    grants: Vec<Grant>,
}

/// A rule that names the caller.
#[derive(Debug)]
struct Grant {
    rule: Arc<Rule>,
    /// Tenant of the jobs that it lets in.
    tenant: String,
}

impl Caller {
    /// The caller `principal`. `own_tenant` is the one that the credentials name.
    pub(super) fn new(principal: String, own_tenant: Option<String>, rules: impl Iterator<Item = Arc<Rule>>) -> Self {
        let own = short(own_tenant.as_ref().unwrap_or(&principal));
        let grant = |rule: Arc<Rule>| Grant { tenant: rule.tenant.clone().unwrap_or_else(|| own.clone()), rule };
        let grants: Vec<_> = rules.map(grant).collect();
        let rpcs = grants.iter().fold(Rpcs::default(), |rpcs, grant| rpcs.or(grant.rule.rpcs));
        Self { principal, rpcs, grants }
    }

    /// Its name: `spiffe://…`, `subject:…`, `jwt:…` or `anonymous`.
    #[must_use]
    pub fn principal(&self) -> &str {
        &self.principal
    }

    /// Whether any rule allows `rpc` for some kind.
    ///
    /// # Errors
    /// [`Denial::Rpc`] where none does.
    pub fn may_call(&self, rpc: Rpc) -> Result<(), Denial> {
        if self.rpcs.has(rpc) { Ok(()) } else { Err(self.denied(rpc.name())) }
    }

    /// That no rule can allow `rpc`.
    #[must_use]
    pub fn denied(&self, rpc: &'static str) -> Denial {
        Denial::Rpc { principal: self.principal.clone(), rpc }
    }

    /// The tenant of a job of `kind`, which the first rule that allows it decides. `asked` is the tenant that the job
    /// names; empty where it names none.
    ///
    /// # Errors
    /// [`Denial::Kind`] where no rule allows it, [`Denial::Tenant`] where the job names another tenant.
    pub fn tenant_of_job(&self, rpc: Rpc, kind: &str, asked: &str) -> Result<&str, Denial> {
        let allows = |grant: &&Grant| {
            let Rule { rpcs, kinds, .. } = &*grant.rule;
            rpcs.has(rpc) && (kinds.is_empty() || kinds.iter().any(|allowed| allowed.matches(kind)))
        };
        let Some(Grant { tenant, .. }) = self.grants.iter().find(allows) else {
            return Err(Denial::Kind { principal: self.principal.clone(), rpc, kind: kind.to_owned() });
        };
        if !asked.is_empty() && asked != tenant {
            return Err(Denial::Tenant { principal: self.principal.clone(), tenant: tenant.clone() });
        }
        Ok(tenant)
    }
}

/// A name as a tenant: its digest, where it is longer than a tenant may be.
fn short(name: &str) -> String {
    if name.len() <= MOST_TENANT {
        return name.to_owned();
    }
    Sha256::digest(name).iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Pattern;

    fn rule(name: &str, rpcs: &[Rpc], kinds: &[&str], tenant: Option<&str>) -> Arc<Rule> {
        Arc::new(Rule {
            name: name.into(),
            principals: Vec::new(),
            rpcs: rpcs.iter().fold(Rpcs::default(), |set, rpc| set.with(*rpc)),
            kinds: kinds.iter().map(|kind| Pattern::new(kind)).collect(),
            tenant: tenant.map(str::to_owned),
        })
    }

    #[test]
    fn the_first_rule_that_allows_the_job_decides_its_tenant() {
        let rules = [
            rule("a", &[Rpc::Stream], &[], Some("streams")),
            rule("b", &[Rpc::Submit], &["img-*"], Some("images")),
            rule("c", &[Rpc::Submit], &["img-x", "sum"], None),
        ];
        let caller = Caller::new("jwt:me".into(), None, rules.into_iter());
        assert_eq!(caller.tenant_of_job(Rpc::Submit, "img-x", ""), Ok("images"));
        assert_eq!(caller.tenant_of_job(Rpc::Submit, "sum", ""), Ok("jwt:me"));
        assert_eq!(caller.tenant_of_job(Rpc::Stream, "sum", "streams"), Ok("streams"));
        assert_eq!(caller.tenant_of_job(Rpc::Submit, "other", "").unwrap_err().reason(), "KIND_DENIED");
        assert_eq!(caller.tenant_of_job(Rpc::SubmitMany, "sum", "").unwrap_err().reason(), "KIND_DENIED");
        assert_eq!(caller.tenant_of_job(Rpc::Submit, "sum", "images").unwrap_err().reason(), "TENANT_MISMATCH");
        assert!(caller.may_call(Rpc::Submit).is_ok() && caller.may_call(Rpc::Stats).is_err());
    }

    #[test]
    fn without_a_rule_nothing_is_allowed() {
        let caller = Caller::new("jwt:me".into(), Some("t".into()), std::iter::empty());
        assert!(Rpc::NAMES.iter().all(|(_, rpc)| caller.may_call(*rpc).is_err()));
        assert!(caller.tenant_of_job(Rpc::Submit, "sum", "").is_err());
    }

    #[test]
    fn a_long_name_is_a_tenant_by_its_digest() {
        let tenant = |principal: &str, own: Option<String>| {
            let caller = Caller::new(principal.into(), own, [rule("a", &[Rpc::Submit], &[], None)].into_iter());
            caller.tenant_of_job(Rpc::Submit, "sum", "").unwrap().to_owned()
        };
        let [a, b] = ["a", "b"].map(|letter| letter.repeat(129));
        assert!(tenant(&a, None).len() <= MOST_TENANT && tenant(&a, None) != tenant(&b, None));
        assert_eq!(tenant("me", Some(a.clone())), tenant(&a, None), "one that the credentials name, too");
    }
}
