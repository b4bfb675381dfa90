//! Size limits of files and functions, and of the lines of comments, which the formatter leaves as they are.

use syn::{Block, Signature, visit::Visit};

use crate::tree::{Tree, Violation};

const FILE_LINES: usize = 400;
const FUNCTION_LINES: usize = 70;
const COMMENT_COLUMNS: usize = 120;
const ROOTS: [&str; 4] = ["src/", "tests/", "benches/", "examples/"];
const CODE: [&str; 9] = ["rs", "py", "js", "mjs", "ts", "go", "java", "sh", "proto"];

pub(crate) fn violations(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in tree.files.iter().filter(|file| is_held(&file.path) && CODE.contains(&file.extension())) {
        let lines = file.text.lines().count();
        if lines > FILE_LINES {
            found.push(Violation {
                path: file.path.clone(),
                line: FILE_LINES + 1,
                rule: "size",
                found: format!("the file has {lines} lines, the limit is {FILE_LINES}"),
                help: "split it by role: `foo.rs` beside `foo/`",
            });
        }
        if file.extension() == "rs" {
            found.extend(file.text.lines().enumerate().filter_map(|(at, line)| comment(&file.path, at + 1, line)));
            let mut functions = Functions { path: &file.path, found: &mut found };
            functions.visit_file(&file.parse());
        }
    }
    found
}

fn comment(path: &str, line: usize, text: &str) -> Option<Violation> {
    let columns = text.chars().count();
    let text = text.trim_start();
    // A row of a table cannot be broken.
    let is_row = text.trim_start_matches(['/', '!', ' ']).starts_with('|');
    (text.starts_with("//") && !is_row && columns > COMMENT_COLUMNS).then(|| Violation {
        path: path.to_owned(),
        line,
        rule: "size",
        found: format!("the comment has {columns} columns, the limit is {COMMENT_COLUMNS}"),
        help: "break the line",
    })
}

fn is_held(path: &str) -> bool {
    path == "build.rs" || ROOTS.iter().any(|root| path.starts_with(root))
}

struct Functions<'a> {
    path: &'a str,
    found: &'a mut Vec<Violation>,
}

impl Functions<'_> {
    fn measure(&mut self, signature: &Signature, block: &Block) {
        let first = signature.fn_token.span.start().line;
        let lines = block.brace_token.span.close().end().line + 1 - first;
        if lines > FUNCTION_LINES {
            self.found.push(Violation {
                path: self.path.to_owned(),
                line: first,
                rule: "size",
                found: format!("`{}` has {lines} lines, the limit is {FUNCTION_LINES}", signature.ident),
                help: "move a part of it to a new function",
            });
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.measure(&item.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        violations(&Tree::of(&[(path, text)])).into_iter().map(|one| format!("{}: {}", one.line, one.found)).collect()
    }

    fn function(lines: usize) -> String {
        format!("/// Doc.\n#[test]\nfn a() {{\n{}}}", "    b();\n".repeat(lines - 2))
    }

    #[test]
    fn a_file_over_the_limit_is_found() {
        let long = "// a\n".repeat(401);
        assert_eq!(found("src/a.rs", &long), ["401: the file has 401 lines, the limit is 400"]);
        assert_eq!(found("tests/clients/python/a.py", &long.replace("//", "#")).len(), 1);
        assert_eq!(found("build.rs", &long).len(), 1);
        assert_eq!(found("src/a.rs", &"// a\n".repeat(400)), [""; 0]);
    }

    #[test]
    fn a_line_of_a_comment_over_the_limit_is_found() {
        let comment = |columns: usize| format!("fn a() {{}}\n    /// {}\nfn b() {{}}\n", "ü".repeat(columns - 8));
        assert_eq!(found("src/a.rs", &comment(121)), ["2: the comment has 121 columns, the limit is 120"]);
        assert_eq!(found("src/a.rs", &comment(120)), [""; 0]);
    }

    #[test]
    fn a_function_over_the_limit_is_found_in_any_scope() {
        assert_eq!(found("src/a.rs", &function(71)), ["3: `a` has 71 lines, the limit is 70"]);
        assert_eq!(found("src/a.rs", &function(70)), [""; 0]);
        for around in ["impl A", "trait A", "mod a", "fn c()"] {
            let text = format!("{around} {{\n{}\n}}", function(71));
            assert!(!found("benches/a.rs", &text).is_empty(), "{around}");
        }
    }
}
