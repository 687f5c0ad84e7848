//! The measures of one file.

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Block, ImplItemFn, ItemEnum, ItemFn, ItemStruct, ItemTrait, ItemType, ItemUnion, TraitItemFn,
    visit::{self, Visit},
};

/// The widest comment line that fits a reader's screen beside another file, in columns.
pub(crate) const WIDTH: usize = 100;

/// The first words by which a doc comment becomes a riddle.
const QUESTIONS: [&str; 5] = ["What", "How", "Whether", "Where", "Who"];

/// The macros of `tracing` that log.
const LOGS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// A file's measures. Lines are counted from 1.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) lines: usize,
    pub(crate) doc_comments: usize,
    /// The lines of doc comments that open with a question word.
    pub(crate) questions: Vec<usize>,
    pub(crate) comment_lines: usize,
    /// The comment lines over [`WIDTH`].
    pub(crate) wide: Vec<usize>,
    /// The names of its types and traits.
    pub(crate) types: Vec<String>,
    pub(crate) logs: usize,
    /// The lengths of its functions in lines, from `fn` to the closing brace.
    pub(crate) functions: Vec<usize>,
}

impl Source {
    /// Measures a file's text.
    ///
    /// # Errors
    /// The text is not Rust.
    pub(crate) fn measure(text: &str) -> syn::Result<Self> {
        let mut source = Self::default();
        source.measure_comments(text);
        source.logs = logs(text.parse()?);
        source.visit_file(&syn::parse_file(text)?);
        Ok(source)
    }

    /// Measures comments line by line: the syntax tree has only documentation, without its lines.
    fn measure_comments(&mut self, text: &str) {
        let mut in_doc_comment = false;
        for (line, number) in text.lines().zip(1..) {
            self.lines = number;
            let trimmed = line.trim_start();
            if trimmed.starts_with("//") {
                self.comment_lines += 1;
                if line.chars().count() > WIDTH {
                    self.wide.push(number);
                }
            }
            let doc = trimmed
                .strip_prefix("///")
                .or_else(|| trimmed.strip_prefix("//!"));
            if let (Some(doc), false) = (doc, in_doc_comment) {
                self.doc_comments += 1;
                let first = doc
                    .split(|c: char| !c.is_alphabetic())
                    .find(|word| !word.is_empty());
                if first.is_some_and(|word| QUESTIONS.contains(&word)) {
                    self.questions.push(number);
                }
            }
            in_doc_comment = doc.is_some();
        }
    }

    fn add_function(&mut self, start: usize, body: &Block) {
        let end = body.brace_token.span.close().end().line;
        self.functions.push(end.saturating_sub(start) + 1);
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.add_function(item.sig.fn_token.span.start().line, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.add_function(item.sig.fn_token.span.start().line, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(body) = &item.default {
            self.add_function(item.sig.fn_token.span.start().line, body);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        self.types.push(item.ident.to_string());
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        self.types.push(item.ident.to_string());
        visit::visit_item_enum(self, item);
    }

    fn visit_item_union(&mut self, item: &'ast ItemUnion) {
        self.types.push(item.ident.to_string());
        visit::visit_item_union(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.types.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast ItemType) {
        self.types.push(item.ident.to_string());
        visit::visit_item_type(self, item);
    }
}

/// Counts calls of logging macros, also inside of other macros such as `select!`.
fn logs(tokens: TokenStream) -> usize {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let calls = tokens.windows(3).filter(|window| match window {
        [
            TokenTree::Ident(name),
            TokenTree::Punct(mark),
            TokenTree::Group(_),
        ] => mark.as_char() == '!' && LOGS.iter().any(|log| name == log),
        _ => false,
    });
    let here = calls.count();
    let groups = tokens.into_iter().filter_map(|token| match token {
        TokenTree::Group(group) => Some(logs(group.stream())),
        _ => None,
    });
    here + groups.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::Source;

    const TEXT: &str = r#"//! Purpose.

/// Whether it holds.
/// How is not the first word.
struct Widget;

impl Widget {
    /// A getter.
    fn get(&self) {
        tokio::select! {
            () = done => tracing::info!("done"),
        }
        warn!(cause, "again");
        format!("not a log");
    }
}

type Alias = Widget;

trait Shape {
    fn required();
    fn provided() {}
}
"#;

    #[test]
    fn measures_lines_comments_types_and_functions() {
        let source = Source::measure(TEXT).unwrap();
        assert_eq!(source.lines, 23);
        assert_eq!(source.doc_comments, 3);
        assert_eq!(source.questions, [3]);
        assert_eq!(source.comment_lines, 4);
        assert_eq!(source.types, ["Widget", "Alias", "Shape"]);
        assert_eq!(source.logs, 2);
        assert_eq!(source.functions, [7, 1]);
    }

    #[test]
    fn counts_columns_and_not_bytes() {
        let at_most = format!("// {}", "é".repeat(97));
        let wide = format!("{at_most}é");
        let source = Source::measure(&format!("{at_most}\n{wide}\n")).unwrap();
        assert_eq!(source.wide, [2]);
    }

    #[test]
    fn refuses_text_that_is_not_rust() {
        assert!(Source::measure("fn main( {").is_err());
    }
}
