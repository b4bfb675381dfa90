//! Rules: which callers a rule names, which RPCs and kinds it allows, and what their jobs may claim. `caller.rs` walks
//! the rules of a caller. A new RPC needs a row in the table below.

use crate::model::Criticality;

/// `[auth.rule.NAME]`: one rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Its name in the configuration.
    pub name: String,
    /// Callers that the rule applies to.
    pub principals: Vec<PrincipalPattern>,
    /// RPCs that it allows.
    pub rpcs: Vec<Rpc>,
    /// Kinds of jobs that it allows. Empty allows all.
    pub kinds: Vec<Pattern>,
    /// Tenant of the jobs; `*` is any, which the caller names. If `None`, the tenant claim of the token, or else the
    /// principal.
    pub tenant: Option<String>,
    /// Highest class that the jobs may claim.
    pub max_criticality: Criticality,
    /// Whether the jobs may evict less important ones.
    pub may_shed: bool,
}

macro_rules! rpcs {
    ($($service:literal: { $($rpc:ident $(= $method:literal as $name:literal)?),+ })+) => {
        /// An RPC that a rule can allow.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Rpc {
            $($(
                #[doc = concat!("Of `", $service, "`.")]
                $rpc,
            )+)+
        }

        impl Rpc {
            /// Every RPC, with its name in the configuration and in errors.
            pub const NAMES: [(&'static str, Self); [$($(Self::$rpc),+),+].len()] =
                [$($((rpcs!(@name $rpc $($name)?), Self::$rpc)),+),+];

            /// Service and method, as in a path, but without the first slash.
            pub fn path(self) -> &'static str {
                match self {
                    $($(Self::$rpc => concat!($service, "/", rpcs!(@name $rpc $($method)?)),)+)+
                }
            }
        }
    };
    (@name $rpc:ident) => { stringify!($rpc) };
    (@name $rpc:ident $name:literal) => { $name };
}

// `GetJob` makes the variant `Rpc::GetJob`, whose name in rules is `GetJob`. `ListDetached = "ListJobs" as "…"` has a
// method and a name that differ, because another service has a method of that name. A test compares the table with the
// contract.
rpcs! {
    "waterwheel.v1.WorkerPoolService": { Submit, Stream, SubmitMany, Stats, WatchStats }
    "waterwheel.v1.AdminService": {
        Drain, Pause, Resume, Resize, CancelJob, Explain, ListJobs, Reload, Restart, ListSchedules,
        WhoAmI, StatsHistory, Advise
    }
    "grpc.reflection.v1.ServerReflection": { Reflection = "ServerReflectionInfo" as "Reflection" }
    "xds.service.orca.v3.OpenRcaService": { LoadReports = "StreamCoreMetrics" as "LoadReports" }
    "externalscaler.ExternalScaler": { IsActive, StreamIsActive, GetMetricSpec, GetMetrics }
    "waterwheel.v1.WorkerService": { Attach }
    "waterwheel.v1.JobService": {
        CreateJob, CreateJobs, GetJob, ListDetached = "ListJobs" as "JobService.ListJobs", WaitJob,
        CancelDetached = "CancelJob" as "JobService.CancelJob", CancelJobs, RetryJob, RetryJobs, DeleteJob, PurgeJobs,
        WatchJob, GroupJobs, CreateGroup, CloseGroup, GetGroup
    }
}

impl Rpc {
    /// Its name.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }

    /// The RPC of this name; all of them for `*`.
    pub fn named(name: &str) -> impl Iterator<Item = Self> {
        Self::NAMES.into_iter().filter(move |(known, _)| *known == name || name == "*").map(|(_, rpc)| rpc)
    }

    /// The service with its package.
    pub fn service(self) -> &'static str {
        self.path().split_once('/').map_or("", |(service, _)| service)
    }

    /// The method of the service.
    pub fn method(self) -> &'static str {
        self.path().split_once('/').map_or("", |(_, method)| method)
    }

    /// The RPC of this path. Both versions of reflection are one RPC.
    pub fn at(path: &str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        if path == "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" {
            return Some(Self::Reflection);
        }
        Self::NAMES.iter().map(|(_, rpc)| *rpc).find(|rpc| rpc.path() == path)
    }
}

impl Rule {
    /// Whether the rule allows `rpc` for jobs of `kind`, or of all kinds if `None`.
    pub(super) fn allows(&self, rpc: Rpc, kind: Option<&str>) -> bool {
        let has_kind = |kind: &str| self.kinds.iter().any(|allowed| allowed.matches(kind));
        self.rpcs.contains(&rpc) && (self.kinds.is_empty() || kind.is_some_and(has_kind))
    }
}

/// A name with wildcards: `*` matches any characters except `/`, and `**` matches any characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

/// Callers that a rule applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrincipalPattern {
    /// Callers with neither a certificate nor a token. No wildcard matches them.
    Anonymous,
    /// Callers whose principal matches.
    Named(Pattern),
}

impl Pattern {
    /// Every text is a valid pattern.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Whether the pattern matches all of `name`.
    pub fn matches(&self, name: &str) -> bool {
        if !self.0.contains('*') {
            return self.0 == name;
        }
        let (mut rest, name) = (self.0.as_bytes(), name.as_bytes());
        // `ends[i]`: the pattern, as far as it was read, matches the first `i` bytes of the name. The work is at most
        // the product of both lengths.
        let mut ends = vec![false; name.len() + 1];
        ends[0] = true;
        while let [first, after @ ..] = rest {
            let stars = rest.iter().take_while(|byte| **byte == b'*').count();
            if stars > 0 {
                (0..name.len()).for_each(|at| ends[at + 1] |= ends[at] && (stars > 1 || name[at] != b'/'));
                rest = &rest[stars..];
            } else {
                (0..name.len()).rev().for_each(|at| ends[at + 1] = ends[at] && name[at] == *first);
                ends[0] = false;
                rest = after;
            }
        }
        ends[name.len()]
    }
}

impl PrincipalPattern {
    /// Parses `anonymous`, or a pattern that begins with `spiffe://`, `subject:` or `jwt:`. `**` matches all callers
    /// with credentials. `None` for other texts.
    pub fn parse(text: &str) -> Option<Self> {
        if text == "anonymous" {
            return Some(Self::Anonymous);
        }
        let known = ["spiffe://", "subject:", "jwt:"].iter().any(|start| text.starts_with(start));
        // A single `*` matches no principal: each one has a slash, or begins with its type.
        (known || text == "**").then(|| Self::Named(Pattern::new(text)))
    }

    /// Whether the pattern matches this principal.
    pub fn matches(&self, principal: &str) -> bool {
        matches!(self, Self::Named(pattern) if pattern.matches(principal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_stands_at_its_place_and_names_one_rpc() {
        for (name, rpc) in Rpc::NAMES {
            assert_eq!((rpc.name(), Rpc::named(name).collect()), (name, vec![rpc]));
            assert_eq!(Rpc::at(&format!("/{}", rpc.path())), Some(rpc));
            assert!(Rpc::named("*").any(|other| other == rpc));
            let documented = include_str!("../../docs/security.md").contains(&format!("`{name}`"));
            assert!(documented, "docs/security.md does not name {name}");
        }
        assert_eq!(Rpc::named("Submi").count(), 0);
    }

    #[test]
    fn a_star_ends_at_a_slash_and_two_do_not() {
        let cases = [
            ("spiffe://prod/ns/*/sa/web", "spiffe://prod/ns/a/sa/web", true),
            ("spiffe://prod/ns/*/sa/web", "spiffe://prod/ns/a/b/sa/web", false),
            ("spiffe://prod/ns/*/sa/web", "spiffe://prod/ns/a/sa/web2", false),
            ("spiffe://prod/**", "spiffe://prod/ns/a/sa/web", true),
            ("spiffe://prod/**", "spiffe://production/ns", false),
            ("spiffe://prod/*", "spiffe://prod/", true),
            ("**", "jwt:anyone", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("**/x", "a/b/x", true),
            ("**/x", "a/b/xx", false),
            ("resize", "resize", true),
            ("resize", "resizer", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("ü*", "üß", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(Pattern::new(pattern).matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn stars_do_not_multiply_the_work() {
        let pattern = Pattern::new(&format!("{}b", "*a".repeat(50)));
        assert!(!pattern.matches(&"a".repeat(20_000)));
    }

    #[test]
    fn anonymous_callers_are_named_by_that_word_alone() {
        assert_eq!(PrincipalPattern::parse("anonymous"), Some(PrincipalPattern::Anonymous));
        assert!(!PrincipalPattern::Anonymous.matches("anonymous"));
        for wrong in ["", "*", "web", "anon*", "https://x"] {
            assert_eq!(PrincipalPattern::parse(wrong), None, "{wrong}");
        }
    }
}
