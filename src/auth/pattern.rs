//! Patterns in rules, for principals and kinds.

use std::str::FromStr;

/// A name with wildcards: `*` matches any characters but `/`, `**` matches any characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// `*`
    Segment,
    /// `**`
    Rest,
}

/// Callers that a rule applies to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrincipalPattern {
    /// Callers with neither a certificate nor a token. No wildcard matches them.
    Anonymous,
    /// Callers whose principal matches.
    Named(Pattern),
}

/// The text is not a principal pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a principal begins with spiffe://, subject: or jwt:, or is anonymous; ** matches everyone with credentials")]
pub struct InvalidPattern;

impl Pattern {
    /// Reads a pattern. Every text is valid.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('*') {
            if at > 0 {
                parts.push(Part::Text(rest[..at].to_owned()));
            }
            let stars = rest[at..].len() - rest[at..].trim_start_matches('*').len();
            parts.push(if stars == 1 { Part::Segment } else { Part::Rest });
            rest = &rest[at + stars..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Self(parts)
    }

    /// Whether it matches all of `name`.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self.0.as_slice() {
            [] => return name.is_empty(),
            [Part::Text(text)] => return text == name,
            [Part::Rest] => return true,
            _ => {}
        }
        // Positions of `name` that the parts so far can lead to. The work is bounded by the length of the name times
        // the number of parts.
        let mut ends = vec![false; name.len() + 1];
        ends[0] = true;
        for part in &self.0 {
            ends = match part {
                Part::Text(text) => after_text(&ends, name.as_bytes(), text.as_bytes()),
                Part::Segment => after_wildcard(&ends, name.as_bytes(), |byte| byte != b'/'),
                Part::Rest => after_wildcard(&ends, name.as_bytes(), |_| true),
            };
        }
        ends[name.len()]
    }
}

fn after_text(ends: &[bool], name: &[u8], text: &[u8]) -> Vec<bool> {
    let mut next = vec![false; ends.len()];
    for (at, _) in ends.iter().enumerate().filter(|(_, end)| **end) {
        if name[at..].starts_with(text) {
            next[at + text.len()] = true;
        }
    }
    next
}

fn after_wildcard(ends: &[bool], name: &[u8], takes: impl Fn(u8) -> bool) -> Vec<bool> {
    let mut next = ends.to_vec();
    for at in 0..name.len() {
        next[at + 1] |= next[at] && takes(name[at]);
    }
    next
}

impl PrincipalPattern {
    /// Whether it matches this principal.
    #[must_use]
    pub fn matches(&self, principal: &str) -> bool {
        matches!(self, Self::Named(pattern) if pattern.matches(principal))
    }
}

impl FromStr for PrincipalPattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        if text == "anonymous" {
            return Ok(Self::Anonymous);
        }
        let known = ["spiffe://", "subject:", "jwt:"].iter().any(|start| text.starts_with(start));
        // A single star matches no principal: each has a slash or begins with its type.
        (known || text == "**").then(|| Self::Named(Pattern::new(text))).ok_or(InvalidPattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!("anonymous".parse(), Ok(PrincipalPattern::Anonymous));
        assert!(!PrincipalPattern::Anonymous.matches("anonymous"));
        for wrong in ["", "*", "web", "anon*", "https://x"] {
            assert_eq!(wrong.parse::<PrincipalPattern>(), Err(InvalidPattern), "{wrong}");
        }
    }
}
