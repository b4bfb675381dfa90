//! Removes user names and passwords of URLs from texts.

use std::{borrow::Cow, ops::Range};

/// Replaces a value that must not be shown.
pub(crate) const WITHHELD: &str = "(withheld)";

/// Replaces the userinfo of each URL in a text with `(withheld)`.
pub(crate) fn without_userinfo(text: &str) -> Cow<'_, str> {
    let found = userinfo(text);
    if found.is_empty() {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    let mut end = 0;
    for range in found {
        shown.push_str(&text[end..range.start]);
        shown.push_str(WITHHELD);
        end = range.end;
    }
    shown.push_str(&text[end..]);
    shown.into()
}

/// Byte ranges of the userinfo of each URL in the text.
///
/// A password may contain a `/` that was not encoded. So if there is a `:`, the userinfo ends at the last `@`.
pub(crate) fn userinfo(text: &str) -> Vec<Range<usize>> {
    const BEGIN: &str = "://";
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = text[from..].find(BEGIN) {
        let start = from + at + BEGIN.len();
        let ends = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '`' | '<' | '>');
        let url = &text[start..];
        let url = &url[..url.find(ends).unwrap_or(url.len())];
        let url = &url[..url.find(BEGIN).unwrap_or(url.len())];
        let authority = &url[..url.find(['/', '?', '#']).unwrap_or(url.len())];
        let whole = if authority.contains(':') && !authority.contains('@') { url } else { authority };
        if let Some(length) = whole.rfind('@') {
            found.push(start..start + length);
        }
        from = start + url.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn userinfo_is_withheld_and_nothing_else() {
        let cases = [
            ("http://user:pw@host:4317/", "http://(withheld)@host:4317/"),
            ("`http://user@host` and \"a://b:c@d@e/f\".", "`http://(withheld)@host` and \"a://(withheld)@e/f\"."),
            ("http://user:p/w?@host", "http://(withheld)@host"),
            ("x http://u:ü@host http://v:w@host", "x http://(withheld)@host http://(withheld)@host"),
            ("a://u:p,b://v:w@host", "a://u:p,b://(withheld)@host"),
        ];
        for (text, shown) in cases {
            assert_eq!(without_userinfo(text), shown);
        }
        for whole in ["", "http://host:4317", "https://host/@scope/pkg", "jwt:alice@example.com", "a://", "mail a@b"] {
            assert_eq!(without_userinfo(whole), whole);
        }
    }
}
