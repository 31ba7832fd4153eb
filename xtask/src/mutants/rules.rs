//! Where a file could be wrong in a small way, by rule: each [`Mutant`] replaces some bytes of it
//! by an expression that does what was there, or, when it is the chosen one, something else.
//!
//! Left alone: tests, constants, patterns, what is said to people (`Display`, `Debug`, macros).

use proc_macro2::LineColumn;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, ExprLit, Lit, Stmt};

/// A way to be wrong.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Bytes of the file that are replaced.
    pub bytes: Range<usize>,
    /// Line of the first of them, from 1.
    pub line: usize,
    /// The function it is in, with its type.
    pub function: String,
    /// The rule that made it.
    pub rule: &'static str,
    /// What is there, on one line, shortened.
    pub was: String,
    /// What takes its place: `{on}` stands for whether this mutant is the chosen one.
    pub becomes: String,
}

/// Bytes below which a place is shown with as many before it.
const SHORT: usize = 16;

/// Calls that are easily taken for each other.
const TWINS: &[(&str, &str)] = &[
    ("min", "max"),
    ("any", "all"),
    ("first", "last"),
    ("is_some_and", "is_none_or"),
    ("is_some", "is_none"),
    ("is_ok", "is_err"),
    ("min_by_key", "max_by_key"),
    ("min_by", "max_by"),
    ("front", "back"),
    ("push_back", "push_front"),
    ("pop_back", "pop_front"),
    ("take_while", "skip_while"),
    ("insert", "remove"),
];

/// Everything that the rules find in a file.
///
/// # Errors
/// It is no Rust.
pub fn find(text: &str) -> Result<Vec<Mutant>, String> {
    let file = syn::parse_file(text).map_err(|e| e.to_string())?;
    let mut finder = Finder { text, within: Vec::new(), found: Vec::new() };
    finder.visit_file(&file);
    Ok(finder.found)
}

struct Finder<'a> {
    text: &'a str,
    within: Vec<String>,
    found: Vec<Mutant>,
}

impl Finder<'_> {
    fn source(&self, node: &impl Spanned) -> &str {
        &self.text[node.span().byte_range()]
    }

    fn add(&mut self, rule: &'static str, node: &impl Spanned, becomes: String) {
        let (bytes, LineColumn { line, .. }) = (node.span().byte_range(), node.span().start());
        self.add_at(rule, bytes, line, becomes);
    }

    fn add_at(&mut self, rule: &'static str, bytes: Range<usize>, line: usize, becomes: String) {
        // What is a flaw on purpose, and off, is none of ours.
        if self.text[bytes.clone()].contains("mutant!(") {
            return;
        }
        // Of a literal it is what stands before it that tells which it is.
        let before = if bytes.len() < SHORT { SHORT } else { 0 };
        let mut from = bytes.start.saturating_sub(before);
        while !self.text.is_char_boundary(from) {
            from += 1;
        }
        let words: Vec<&str> = self.text[from..bytes.end].split_whitespace().collect();
        let was: String = words.join(" ").chars().take(100).collect();
        let function = self.within.join("::");
        self.found.push(Mutant { bytes, line, function, rule, was, becomes });
    }

    /// `one` if this is the chosen mutant, else what was there.
    fn either(&mut self, rule: &'static str, node: &impl Spanned, one: String) {
        let was = self.source(node).to_owned();
        self.add(rule, node, format!("(if {{on}} {{ {one} }} else {{ {was} }})"));
    }

    fn of_binary(&mut self, e: &syn::ExprBinary) {
        let other = match e.op {
            BinOp::Lt(_) => "<=",
            BinOp::Le(_) => "<",
            BinOp::Gt(_) => ">=",
            BinOp::Ge(_) => ">",
            BinOp::Eq(_) => "!=",
            BinOp::Ne(_) => "==",
            BinOp::And(_) => "||",
            BinOp::Or(_) => "&&",
            _ => "",
        };
        if has_let(&e.left) || has_let(&e.right) {
            return;
        }
        let (left, right) = (self.source(&e.left).to_owned(), self.source(&e.right).to_owned());
        if !other.is_empty() {
            let rule =
                if matches!(e.op, BinOp::And(_) | BinOp::Or(_)) { "and-or" } else { "compare" };
            self.either(rule, e, format!("({left}) {other} ({right})"));
        } else if matches!(e.op, BinOp::Add(_) | BinOp::Sub(_)) {
            let was = self.source(e).to_owned();
            self.either("off-by-one", e, format!("({was}) + 1"));
        }
    }

    fn of_call(&mut self, e: &Expr, args: Vec<&Expr>) {
        for pair in args.windows(2) {
            let (a, b) = (pair[0].span().byte_range(), pair[1].span().byte_range());
            self.exchange("arguments", e, a, b);
        }
    }

    /// The same with two parts exchanged.
    fn exchange(&mut self, rule: &'static str, e: &Expr, a: Range<usize>, b: Range<usize>) {
        let whole = e.span().byte_range();
        let (one, two) = (&self.text[a.clone()], &self.text[b.clone()]);
        if one == two {
            return;
        }
        let exchanged = format!(
            "{}{two}{}{one}{}",
            &self.text[whole.start..a.start],
            &self.text[a.end..b.start],
            &self.text[b.end..whole.end]
        );
        self.either(rule, e, exchanged);
    }

    fn of_literal(&mut self, e: &ExprLit) {
        match &e.lit {
            Lit::Bool(_) => {
                let was = self.source(e).to_owned();
                self.add("flag", e, format!("({was} != {{on}})"));
            }
            Lit::Int(int) => {
                let Ok(value) = int.base10_parse::<u64>() else { return };
                let next = format!("{}{}", value.wrapping_add(1), int.suffix());
                self.either("off-by-one", e, next);
            }
            _ => {}
        }
    }

    fn of_statement(&mut self, s: &Stmt) {
        let Stmt::Expr(e, Some(_)) = s else { return };
        if can_be_left_out(e) {
            let was = self.source(s).to_owned();
            self.add("left-out", s, format!("if !{{on}} {{ {was} }}"));
        }
    }

    fn of_block(&mut self, block: &syn::Block) {
        for pair in block.stmts.windows(2) {
            let [Stmt::Expr(a, Some(_)), Stmt::Expr(b, Some(_))] = pair else { continue };
            if !can_be_left_out(a) || !can_be_left_out(b) {
                continue;
            }
            let (one, two) = (self.source(&pair[0]).to_owned(), self.source(&pair[1]).to_owned());
            if !one.contains(".await") && !two.contains(".await") {
                continue;
            }
            let bytes = pair[0].span().byte_range().start..pair[1].span().byte_range().end;
            let becomes = format!("if {{on}} {{ {two} {one} }} else {{ {one} {two} }}");
            self.add_at("order", bytes, pair[0].span().start().line, becomes);
        }
    }

    fn of_function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let Some(first) = block.stmts.first() else { return };
        let result = match &signature.output {
            syn::ReturnType::Default => "",
            syn::ReturnType::Type(_, of) => match self.source(of.as_ref()) {
                "bool" => "false",
                text if text.starts_with("Result<()") => "Ok(())",
                text if text.starts_with("Option<") => "None",
                _ => return,
            },
        };
        let at = first.span().byte_range().start;
        let line = first.span().start().line;
        let becomes = format!("if {{on}} {{ return {result}; }} ");
        self.add_at("early-return", at..at, line, becomes);
    }

    fn in_function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        if signature.constness.is_some() {
            return;
        }
        self.within.push(signature.ident.to_string());
        self.of_function(signature, block);
        self.visit_block(block);
        self.within.pop();
    }
}

/// Whether a statement may be missing: it does something, and nothing is made by it.
fn can_be_left_out(e: &Expr) -> bool {
    match e {
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) | Expr::Await(_) => true,
        Expr::Try(e) => can_be_left_out(&e.expr),
        Expr::Binary(e) => matches!(
            e.op,
            BinOp::AddAssign(_)
                | BinOp::SubAssign(_)
                | BinOp::BitOrAssign(_)
                | BinOp::BitAndAssign(_)
        ),
        _ => false,
    }
}

fn has_let(e: &Expr) -> bool {
    match e {
        Expr::Let(_) => true,
        Expr::Binary(e) => has_let(&e.left) || has_let(&e.right),
        Expr::Paren(e) => has_let(&e.expr),
        _ => false,
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        let text = quote_of(a);
        text.contains("test") || text.contains("mutants")
    })
}

fn quote_of(attribute: &syn::Attribute) -> String {
    match &attribute.meta {
        syn::Meta::List(list) => list.tokens.to_string(),
        syn::Meta::Path(path) => path.get_ident().map(ToString::to_string).unwrap_or_default(),
        syn::Meta::NameValue(_) => String::new(),
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            self.in_function(&item.sig, &item.block);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            self.in_function(&item.sig, &item.block);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(_, path, _)| path_end(path));
        if of.is_some_and(|name| name == "Display" || name == "Debug" || name == "Drop") {
            return;
        }
        let name: String = self.source(item.self_ty.as_ref()).chars().take(40).collect();
        self.within.push(name.split('<').next().unwrap_or_default().to_owned());
        visit::visit_item_impl(self, item);
        self.within.pop();
    }

    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_type(&mut self, _: &'ast syn::Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.of_block(block);
        visit::visit_block(self, block);
    }

    fn visit_stmt(&mut self, s: &'ast Stmt) {
        self.of_statement(s);
        visit::visit_stmt(self, s);
    }

    fn visit_expr(&mut self, e: &'ast Expr) {
        match e {
            // Its length is a constant.
            Expr::Repeat(e) => return self.visit_expr(&e.expr),
            Expr::Const(_) => return,
            Expr::Lit(e) => self.of_literal(e),
            Expr::Binary(e) => self.of_binary(e),
            Expr::If(e) if !has_let(&e.cond) => {
                let was = self.source(e.cond.as_ref()).to_owned();
                self.add("condition", e.cond.as_ref(), format!("({was}) != {{on}}"));
            }
            Expr::Call(c) => self.of_call(e, c.args.iter().collect()),
            Expr::MethodCall(c) => {
                let name = c.method.to_string();
                for (a, b) in TWINS.iter().flat_map(|&(a, b)| [(a, b), (b, a)]) {
                    if name == a {
                        let (whole, part) = (e.span().byte_range(), c.method.span().byte_range());
                        let (start, end) =
                            (&self.text[whole.start..part.start], &self.text[part.end..whole.end]);
                        let one = format!("{start}{b}{end}");
                        self.either("twin", e, one);
                    }
                }
                self.of_call(e, c.args.iter().collect());
            }
            Expr::Struct(s) => {
                let fields: Vec<_> = s.fields.iter().collect();
                for pair in fields.windows(2) {
                    if pair.iter().all(|field| field.colon_token.is_some()) {
                        let [a, b] = [&pair[0].expr, &pair[1].expr].map(|e| e.span().byte_range());
                        self.exchange("fields", e, a, b);
                    }
                }
            }
            _ => {}
        }
        visit::visit_expr(self, e);
    }
}

fn path_end(path: &syn::Path) -> Option<String> {
    path.segments.last().map(|s| s.ident.to_string())
}

#[cfg(test)]
mod tests {
    use super::find;

    fn rules(text: &str) -> Vec<(&'static str, String)> {
        find(text).expect("Rust").into_iter().map(|m| (m.rule, m.was)).collect()
    }

    #[test]
    fn each_rule_finds_what_it_is_for() {
        let found = rules("fn f(a: u32) { if a < 3 { g(a, 4); } h(a.min(2)).await; k(true); }");
        for (rule, was) in [
            ("early-return", ""),
            ("condition", "a < 3"),
            ("compare", "a < 3"),
            ("off-by-one", "3"),
            ("left-out", "g(a, 4);"),
            ("arguments", "g(a, 4)"),
            ("twin", "a.min(2)"),
            ("flag", "true"),
            ("order", "h(a.min(2)).await; k(true);"),
        ] {
            let is_it = |(of, text): &(&str, String)| *of == rule && text.ends_with(was);
            assert!(found.iter().any(is_it), "{rule}: {was} in {found:?}");
        }
    }

    #[test]
    fn tests_constants_and_words_for_people_are_left_alone() {
        let text = "const A: u32 = 1 + 1; #[cfg(test)] mod tests { fn f() { g(1, 2); } }
            const fn c() -> u32 { 3 } impl Display for X { fn fmt(&self) { w(1); } }
            static S: u32 = 5;
            fn g(a: &B) -> u8 { if mutant!(\"x\") && a.b { x } y }";
        assert_eq!(rules(text), []);
    }

    #[test]
    fn what_takes_the_place_does_the_same_unless_it_is_chosen() {
        let text = "fn f(a: u32, b: u32) -> bool { a < b }";
        let found = find(text).expect("Rust");
        let compare = found.iter().find(|m| m.rule == "compare").expect("one");
        assert_eq!(&text[compare.bytes.clone()], "a < b");
        assert_eq!(compare.becomes, "(if {on} { (a) <= (b) } else { a < b })");
        assert_eq!((compare.line, compare.function.as_str()), (1, "f"));
    }
}
