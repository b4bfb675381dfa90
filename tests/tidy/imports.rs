//! Collects the paths in a Rust file: in `use`, in code, and in the arguments of macros and attributes.

use proc_macro2::{TokenStream, TokenTree};
use syn::{UseTree, visit::Visit};

/// One path in the source.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) line: usize,
    /// Segments from left to right; a glob is `*`.
    pub(crate) segments: Vec<String>,
    /// The enclosing inline modules, outermost first.
    pub(crate) within: Vec<String>,
}

/// All paths of `file` with at least two segments, and all of its `use` declarations.
pub(crate) fn imports(file: &syn::File) -> Vec<Import> {
    let mut collector = Collector::default();
    collector.visit_file(file);
    collector.found
}

#[derive(Default)]
struct Collector {
    found: Vec<Import>,
    within: Vec<String>,
}

impl Collector {
    fn push(&mut self, line: usize, segments: Vec<String>) {
        self.found.push(Import { line, segments, within: self.within.clone() });
    }

    fn flatten(&mut self, tree: &UseTree, prefix: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.flatten(&path.tree, prefix);
                prefix.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.flatten(tree, prefix)),
            UseTree::Name(leaf) => self.leaf(leaf.ident.span(), leaf.ident.to_string(), prefix),
            UseTree::Rename(leaf) => self.leaf(leaf.ident.span(), leaf.ident.to_string(), prefix),
            UseTree::Glob(leaf) => self.leaf(leaf.star_token.spans[0], "*".to_owned(), prefix),
        }
    }

    fn leaf(&mut self, span: proc_macro2::Span, name: String, prefix: &[String]) {
        let mut segments = prefix.to_vec();
        segments.push(name);
        self.push(span.start().line, segments);
    }

    /// The parser does not parse the arguments of macros, so their paths are read from the tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.finish(line, &mut path);
                        line = ident.span().start().line;
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.finish(line, &mut path);
                    colons = 0;
                    self.tokens(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    self.finish(line, &mut path);
                    colons = 0;
                }
            }
        }
        self.finish(line, &mut path);
    }

    fn finish(&mut self, line: usize, path: &mut Vec<String>) {
        let segments = std::mem::take(path);
        if segments.len() > 1 {
            self.push(line, segments);
        }
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.within.push(item.ident.to_string());
        syn::visit::visit_item_mod(self, item);
        self.within.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.flatten(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let Some(first) = path.segments.first()
            && segments.len() > 1
        {
            self.push(first.ident.span().start().line, segments);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.visit_path(&list.path);
        self.tokens(list.tokens.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        let file = syn::parse_file(text).unwrap();
        imports(&file).iter().map(|import| format!("{}:{}", import.line, import.segments.join("::"))).collect()
    }

    #[test]
    fn uses_are_flattened() {
        let found = paths("use crate::{a::B, c::{self, D as E},\n f::*};\nuse tonic;");
        assert_eq!(found, ["1:crate::a::B", "1:crate::c::self", "1:crate::c::D", "2:crate::f::*", "3:tonic"]);
    }

    #[test]
    fn paths_in_code_types_macros_and_attributes_are_found() {
        let text = "#[derive(prost::Message)]\nstruct A(Vec<http::Uri>);\nfn b() {\n crate::c::d();\n \
                    assert!(x, \"{}\", [hyper::e(1)]); let f = 1;\n}";
        let found = paths(text);
        assert_eq!(found, ["1:prost::Message", "2:http::Uri", "4:crate::c::d", "5:hyper::e"]);
    }

    #[test]
    fn inline_modules_are_kept() {
        let file = syn::parse_file("mod a { mod b { use super::c; } }").unwrap();
        assert_eq!(imports(&file)[0].within, ["a", "b"]);
    }
}
