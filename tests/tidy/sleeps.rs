//! Tests wait for a signal, for readiness, or on a paused clock. If a test needs real time, its file gives the reason
//! in a comment line that begins with the marker below.

use syn::{Attribute, ItemFn, visit::Visit};

use crate::{
    layering::imports,
    tree::{File, Tree, Violation},
};

/// Prefix of the comment with the reason why the tests of a file need real time.
const MARKER: &str = "// tidy: real time, because ";
/// These tests have no real clock.
const SIMULATED: &str = "tests/simulation/";
const SLEEPS: [&str; 3] = ["sleep", "sleep_until", "sleep_ms"];

pub(crate) fn violations(tree: &Tree) -> Vec<Violation> {
    let files = tree.rust().filter(|file| file.path.starts_with("src/") || file.path.starts_with("tests/"));
    let files = files.filter(|file| !file.path.starts_with(SIMULATED));
    files.filter(|file| !says_why(file)).flat_map(in_file).collect()
}

fn says_why(file: &File) -> bool {
    file.text.lines().any(|line| line.trim_start().strip_prefix(MARKER).is_some_and(|reason| !reason.trim().is_empty()))
}

fn in_file(file: &File) -> Vec<Violation> {
    let parsed = file.parse();
    let imported = imports(&parsed).iter().filter(|import| is_clock(&import.segments)).count() > 0;
    let only_tests = file.path.starts_with("tests/") || file.path.ends_with("/tests.rs");
    let mut calls = Calls { imported, in_tests: only_tests, lines: Vec::new() };
    calls.visit_file(&parsed);
    let violation = |line| Violation {
        path: file.path.clone(),
        line,
        rule: "sleeps",
        found: "a test sleeps on a clock that is not paused".to_owned(),
        help: "wait for a signal, or use `#[tokio::test(start_paused = true)]`; if the test needs real time, \
               write a line `// tidy: real time, because …` in the file",
    };
    calls.lines.into_iter().map(violation).collect()
}

/// Whether a path is `tokio::time::sleep` or a similar function, in any length.
fn is_clock(segments: &[String]) -> bool {
    let [.., module, name] = segments else { return false };
    (module == "time" || module == "thread") && SLEEPS.contains(&name.as_str())
}

struct Calls {
    /// Whether the file imports a sleep function, so that the bare name counts.
    imported: bool,
    in_tests: bool,
    lines: Vec<usize>,
}

impl<'ast> Visit<'ast> for Calls {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let outer = self.in_tests;
        self.in_tests |= item.attrs.iter().any(is_cfg_test);
        syn::visit::visit_item_mod(self, item);
        self.in_tests = outer;
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !pauses(item) {
            syn::visit::visit_item_fn(self, item);
        }
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(callee) = &*call.func {
            let segments: Vec<_> = callee.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            let bare = self.imported && segments.len() == 1 && SLEEPS.contains(&segments[0].as_str());
            if self.in_tests && (bare || is_clock(&segments)) {
                self.lines.push(callee.path.segments[0].ident.span().start().line);
            }
        }
        syn::visit::visit_expr_call(self, call);
    }
}

fn is_cfg_test(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().contains("test"))
}

/// Whether the test runs on a paused clock, by its attribute or its runtime.
fn pauses(item: &ItemFn) -> bool {
    let by_attribute = |attribute: &Attribute| {
        attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().contains("start_paused = true"))
    };
    item.attrs.iter().any(by_attribute) || Pauses::in_block(&item.block)
}

#[derive(Default)]
struct Pauses(bool);

impl Pauses {
    fn in_block(block: &syn::Block) -> bool {
        let mut pauses = Self::default();
        pauses.visit_block(block);
        pauses.0
    }
}

impl<'ast> Visit<'ast> for Pauses {
    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.0 |= call.method == "start_paused";
        syn::visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(callee) = &*call.func {
            self.0 |= callee.path.segments.last().is_some_and(|segment| segment.ident == "pause");
        }
        syn::visit::visit_expr_call(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        violations(&Tree::of(&[(path, text)])).into_iter().map(|one| one.line).collect()
    }

    #[test]
    fn a_sleep_on_the_real_clock_is_found() {
        let async_test = "#[tokio::test]\nasync fn a() {\n tokio::time::sleep(b).await;\n}";
        assert_eq!(lines("tests/it/a.rs", async_test), [3]);
        assert_eq!(lines("tests/it/a.rs", "use std::thread;\nfn a() { thread::sleep(b); }"), [2]);
        assert_eq!(lines("tests/it/a.rs", "use tokio::time::{sleep, timeout};\nfn a() { sleep(b); }"), [2]);
        assert_eq!(lines("src/a.rs", "#[cfg(test)]\nmod tests {\n fn a() { time::sleep(b); }\n}"), [3]);
        assert_eq!(lines("src/pool/tests.rs", "fn a() { time::sleep_until(b); }"), [1]);
    }

    #[test]
    fn paused_clocks_given_reasons_and_production_code_pass() {
        let none: [usize; 0] = [];
        let paused = "#[tokio::test(start_paused = true)]\nasync fn a() { tokio::time::sleep(b).await; }";
        assert_eq!(lines("tests/it/a.rs", paused), none);
        assert_eq!(lines("tests/it/a.rs", "async fn a() { time::pause(); time::sleep(b).await; }"), none);
        let reason = "// tidy: real time, because a kernel timer is what is tested\nfn a() { time::sleep(b); }";
        assert_eq!(lines("tests/it/a.rs", reason), none);
        assert_eq!(lines("tests/it/a.rs", "fn a() { sleep(b); jobs::sleep(c); }"), none);
        assert_eq!(lines("src/a.rs", "fn a() { time::sleep(b); }"), none);
    }

    #[test]
    fn simulated_tests_may_sleep() {
        let sleeps = "fn a() { time::sleep(b); }";
        assert_eq!(lines("tests/simulation/a.rs", sleeps), [0; 0]);
        assert_eq!(lines("tests/simulations.rs", sleeps), [1]);
    }

    #[test]
    fn the_marker_needs_a_reason() {
        assert_eq!(lines("tests/it/a.rs", "// tidy: real time, because \nfn a() { time::sleep(b); }"), [2]);
    }
}
