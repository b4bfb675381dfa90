//! An authenticated caller and its rights. `authenticator.rs` makes the callers.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::{Denial, Rpc, Rule, token::Credentials};
use crate::model::{Job, MAX_TENANT, Reason, WhenFull};

/// The tenant of a rule for any tenant.
const ANY: &str = "*";

/// Maximum bytes of a principal that each job keeps.
const MAX_NAME: usize = 256;

/// An authenticated caller, with the rules that name it.
#[derive(Debug)]
pub struct Caller {
    principal: String,
    /// The principal, cut to the length that each job keeps.
    name: Arc<str>,
    grants: Vec<Grant>,
    /// The token's credentials; `None` with a certificate or without credentials.
    credentials: Option<Credentials>,
}

/// A rule that names the caller.
#[derive(Debug)]
struct Grant {
    rule: Arc<Rule>,
    /// Tenant of the jobs that the rule allows; `None` means any.
    tenant: Option<String>,
}

impl Caller {
    /// The caller `principal`. `own_tenant` is the tenant in its credentials.
    pub(super) fn new(principal: String, own_tenant: Option<String>, rules: impl Iterator<Item = Arc<Rule>>) -> Self {
        let own = short(own_tenant.as_ref().unwrap_or(&principal));
        // Only a rule can stand for any tenant, and no name in a token.
        let tenant = |rule: &Rule| match rule.tenant.as_deref() {
            Some(ANY) => None,
            named => Some(named.unwrap_or(&own).to_owned()),
        };
        let grant = |rule: Arc<Rule>| Grant { tenant: tenant(&rule), rule };
        let grants = rules.map(grant).collect();
        let name = Arc::from(&principal[..principal.floor_char_boundary(MAX_NAME)]);
        Self { principal, name, grants, credentials: None }
    }

    /// The same caller, authenticated by a token.
    pub(super) fn by_token(self, credentials: Credentials) -> Self {
        Self { credentials: Some(credentials), ..self }
    }

    pub(super) fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Its name: `spiffe://…`, `subject:…`, `jwt:…` or `anonymous`.
    pub fn principal(&self) -> &str {
        &self.principal
    }

    /// Its tenant: that of its first rule.
    pub fn tenant(&self) -> &str {
        self.grants.first().and_then(|grant| grant.tenant.as_deref()).unwrap_or(&self.name)
    }

    /// The principal, cut to 256 bytes.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether any rule allows `rpc` for some kind.
    ///
    /// # Errors
    /// [`Denial::Forbidden`] if no rule does.
    pub fn may_call(&self, rpc: Rpc) -> Result<(), Denial> {
        let is_allowed = self.grants.iter().any(|grant| grant.rule.rpcs.contains(&rpc));
        if is_allowed { Ok(()) } else { Err(self.denied(rpc.name())) }
    }

    /// The denial of an RPC that no rule covers.
    pub fn denied(&self, rpc: &str) -> Denial {
        Denial::forbidden(Reason::RpcDenied, &self.principal, &[("rpc", rpc)])
    }

    /// Checks that rules allow `rpc` for each of these kinds.
    ///
    /// # Errors
    /// [`Denial::Forbidden`] for the first kind that no rule allows.
    pub fn may_serve(&self, rpc: Rpc, kinds: &[String]) -> Result<(), Denial> {
        let denied = kinds.iter().find(|kind| self.grant(rpc, kind).is_none());
        denied.map_or(Ok(()), |kind| Err(self.kind_denied(rpc, kind)))
    }

    /// The first rule that allows `rpc` for `kind`.
    fn grant(&self, rpc: Rpc, kind: &str) -> Option<&Grant> {
        self.grants.iter().find(|grant| grant.rule.allows(rpc, Some(kind)))
    }

    /// The tenant whose jobs the caller may read or change by `rpc`. The first rule that allows it decides: for jobs of
    /// `kind`, or of all kinds if `None`, and of `tenant`, if given.
    ///
    /// `None` stands for all tenants.
    ///
    /// # Errors
    /// [`Denial::Forbidden`] if no rule allows the kind, or none allows it for that tenant.
    pub fn tenant_of_jobs<'a>(
        &'a self,
        rpc: Rpc,
        kind: Option<&str>,
        tenant: Option<&'a str>,
    ) -> Result<Option<&'a str>, Denial> {
        let allowed = self.grants.iter().filter(|grant| grant.rule.allows(rpc, kind));
        let mut tenants = allowed.map(|grant| grant.tenant.as_deref()).peekable();
        let first = tenants.peek().copied().ok_or_else(|| self.kind_denied(rpc, kind.unwrap_or("*")))?;
        let wanted = tenant.or(first);
        let is_allowed = |tenant: Option<_>| tenant.is_none() || tenant == wanted;
        if tenants.any(is_allowed) { Ok(wanted) } else { Err(self.tenant_denied(first.unwrap_or(ANY))) }
    }

    /// The tenant of a job. The first rule that allows the job's kind decides; `None` if it is for any tenant, so that
    /// the job does.
    ///
    /// # Errors
    /// [`Denial::Forbidden`] if no rule allows the kind, if the job names another tenant, or if it claims more than the
    /// rule allows.
    pub fn tenant_of_job(&self, rpc: Rpc, job: &Job) -> Result<Option<&str>, Denial> {
        let Job { kind, tenant: asked, criticality, when_full, .. } = job;
        let Grant { rule, tenant } = self.grant(rpc, kind).ok_or_else(|| self.kind_denied(rpc, kind))?;
        if let Some(tenant) = tenant.as_ref().filter(|tenant| !asked.is_empty() && asked != *tenant) {
            return Err(self.tenant_denied(tenant));
        }
        if *criticality > rule.max_criticality {
            return Err(Denial::criticality(&self.principal, *criticality, rule.max_criticality));
        }
        if *when_full == Some(WhenFull::Shed) && !rule.may_shed {
            return Err(Denial::forbidden(Reason::ShedDenied, &self.principal, &[]));
        }
        Ok(tenant.as_deref())
    }

    fn kind_denied(&self, rpc: Rpc, kind: &str) -> Denial {
        Denial::forbidden(Reason::KindDenied, &self.principal, &[("rpc", rpc.name()), ("kind", kind)])
    }

    fn tenant_denied(&self, tenant: &str) -> Denial {
        Denial::forbidden(Reason::TenantMismatch, &self.principal, &[("tenant", tenant)])
    }
}

/// The tenant name of a principal: the principal itself, or its digest if it is too long.
fn short(name: &str) -> String {
    if name.len() <= MAX_TENANT {
        return name.to_owned();
    }
    Sha256::digest(name).iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{auth::Pattern, model::Criticality};

    fn rule(name: &str, rpcs: &[Rpc], kinds: &[&str], tenant: Option<&str>) -> Arc<Rule> {
        Arc::new(Rule {
            name: name.into(),
            principals: Vec::new(),
            rpcs: rpcs.to_vec(),
            kinds: kinds.iter().map(|kind| Pattern::new(kind)).collect(),
            tenant: tenant.map(str::to_owned),
            max_criticality: Criticality::Critical,
            may_shed: name != "meek",
        })
    }

    fn job(kind: &str, tenant: &str) -> Job {
        Job::new(kind, "").tenant(tenant)
    }

    #[test]
    fn the_first_rule_that_allows_the_job_decides_its_tenant() {
        let rules = [
            rule("a", &[Rpc::Stream], &[], Some("streams")),
            rule("b", &[Rpc::Submit], &["img-*"], Some("images")),
            rule("c", &[Rpc::Submit], &["img-x", "sum"], None),
        ];
        let caller = Caller::new("jwt:me".into(), None, rules.into_iter());
        assert_eq!(caller.tenant_of_job(Rpc::Submit, &job("img-x", "")), Ok(Some("images")));
        assert_eq!(caller.tenant_of_job(Rpc::Submit, &job("sum", "")), Ok(Some("jwt:me")));
        assert_eq!(caller.tenant_of_job(Rpc::Stream, &job("sum", "streams")), Ok(Some("streams")));
        assert_eq!(caller.tenant_of_job(Rpc::Submit, &job("other", "")).unwrap_err().reason().name(), "KIND_DENIED");
        assert_eq!(caller.tenant_of_job(Rpc::SubmitMany, &job("sum", "")).unwrap_err().reason().name(), "KIND_DENIED");
        assert_eq!(
            caller.tenant_of_job(Rpc::Submit, &job("sum", "images")).unwrap_err().reason().name(),
            "TENANT_MISMATCH"
        );
        assert!(caller.may_call(Rpc::Submit).is_ok() && caller.may_call(Rpc::Stats).is_err());
    }

    #[test]
    fn a_rule_for_any_tenant_lets_the_caller_name_one_or_see_all() {
        let rules =
            [rule("a", &[Rpc::GetJob], &["own"], Some("me")), rule("b", &[Rpc::GetJob, Rpc::Submit], &[], Some(ANY))];
        let caller = Caller::new("jwt:me".into(), None, rules.into_iter());
        let of = |kind, tenant| caller.tenant_of_jobs(Rpc::GetJob, kind, tenant).unwrap();
        assert_eq!((of(None, None), of(None, Some("web"))), (None, Some("web")));
        assert_eq!((of(Some("own"), None), of(Some("own"), Some("web"))), (Some("me"), Some("web")));
        assert_eq!(caller.tenant_of_job(Rpc::Submit, &job("sum", "web")), Ok(None));
        let token = Caller::new("jwt:me".into(), Some(ANY.into()), [rule("a", &[Rpc::GetJob], &[], None)].into_iter());
        assert_eq!(token.tenant_of_jobs(Rpc::GetJob, None, None), Ok(Some(ANY)), "a name in a token is no rule");
        assert!(token.tenant_of_jobs(Rpc::GetJob, None, Some("web")).is_err());
    }

    #[test]
    fn a_long_name_is_a_tenant_by_its_digest() {
        let tenant = |principal: &str, own: Option<String>| {
            let caller = Caller::new(principal.into(), own, [rule("a", &[Rpc::Submit], &[], None)].into_iter());
            caller.tenant_of_job(Rpc::Submit, &job("sum", "")).unwrap().unwrap().to_owned()
        };
        let [a, b] = ["a", "b"].map(|letter| letter.repeat(129));
        assert!(tenant(&a, None).len() <= MAX_TENANT && tenant(&a, None) != tenant(&b, None));
        assert_eq!(tenant("me", Some(a.clone())), tenant(&a, None), "one that the credentials name, too");
    }
}
