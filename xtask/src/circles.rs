//! Files of one crate that import each other in a circle: nobody can read them top to bottom.

use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};

/// Which files each file imports from, by name.
pub type Imports = BTreeMap<String, BTreeSet<String>>;

/// The circles of one crate: each the sorted names of two files or more, with those of them that
/// the file imports from.
///
/// `sources` has every file of the crate's `src/`, named from there (`nbd/pump.rs`), with its text.
/// What a file takes through a re-export counts as taken from where it is defined, and a re-export
/// itself is no import. Imports of tests do not count.
///
/// # Errors
/// The name of a file that is not Rust, and why.
pub fn find(sources: &BTreeMap<String, String>) -> Result<Vec<Imports>, String> {
    let mut imports = imports(sources)?;
    let mut found = Vec::new();
    for circle in circles(&imports) {
        let mut within = Imports::new();
        for file in &circle {
            let mut from = imports.remove(file).unwrap_or_default();
            from.retain(|other| circle.contains(other));
            within.insert(file.clone(), from);
        }
        found.push(within);
    }
    Ok(found)
}

/// A file as a module: its path below the crate, and what it says about others.
#[derive(Default)]
struct Module {
    file: String,
    /// Paths that it uses, from the crate's root on.
    uses: Vec<Vec<String>>,
    /// Names that it hands on, with where they come from; `*` for all of them.
    hands_on: Vec<(String, Vec<String>)>,
}

fn imports(sources: &BTreeMap<String, String>) -> Result<Imports, String> {
    let mut modules: BTreeMap<Vec<String>, Module> = BTreeMap::new();
    for (file, text) in sources {
        let tree = syn::parse_file(text).map_err(|e| format!("{file}: {e}"))?;
        let path = module_path(file);
        let mut reader = Reader { here: path.clone(), depth: 0, module: Module::default() };
        reader.visit_file(&tree);
        modules.insert(path, Module { file: file.clone(), ..reader.module });
    }
    let mut imports = Imports::new();
    for module in modules.values() {
        let from = imports.entry(module.file.clone()).or_default();
        for used in &module.uses {
            if let Some(file) = defined_in(&modules, used, 0).filter(|file| *file != module.file) {
                from.insert(file);
            }
        }
    }
    Ok(imports)
}

/// `nbd/pump.rs` is `nbd::pump`; `lib.rs`, `main.rs` and `mod.rs` are what contains them.
fn module_path(file: &str) -> Vec<String> {
    let stem = file.trim_end_matches(".rs");
    let mut path: Vec<String> = stem.split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| ["lib", "main", "mod"].contains(&last.as_str())) {
        path.pop();
    }
    path
}

/// The file that defines what a path names, through re-exports.
fn defined_in(
    modules: &BTreeMap<Vec<String>, Module>,
    path: &[String],
    depth: usize,
) -> Option<String> {
    // Re-exports that lead to each other in a circle end somewhere.
    if depth > 8 {
        return None;
    }
    let known = (0..=path.len()).rev().find(|&len| modules.contains_key(&path[..len]))?;
    let module = &modules[&path[..known]];
    let Some(name) = path.get(known) else { return Some(module.file.clone()) };
    let handed = module.hands_on.iter().find(|(handed, _)| handed == name);
    if let Some((_, origin)) = handed {
        return defined_in(modules, origin, depth + 1);
    }
    Some(module.file.clone())
}

/// Reads one file's paths.
struct Reader {
    here: Vec<String>,
    /// Modules within the file around what is read.
    depth: usize,
    module: Module,
}

impl Reader {
    /// The path from the crate's root on; none if it names nothing of this crate.
    fn resolve(&self, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let mut base = match first.as_str() {
            "crate" => Vec::new(),
            "self" if self.depth == 0 => self.here.clone(),
            // One `super` a module within this file leads to the file itself.
            "super" if self.depth == 0 => self.here[..self.here.len().checked_sub(1)?].to_vec(),
            _ => return None,
        };
        let mut rest = rest;
        while let [next, left @ ..] = rest
            && next == "super"
        {
            base.pop()?;
            rest = left;
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    fn tree(&mut self, tree: &syn::UseTree, prefix: &[String], public: bool) {
        let mut path = prefix.to_vec();
        match tree {
            syn::UseTree::Path(of) => {
                path.push(of.ident.to_string());
                self.tree(&of.tree, &path, public);
            }
            syn::UseTree::Group(of) => {
                of.items.iter().for_each(|item| self.tree(item, prefix, public));
            }
            syn::UseTree::Name(of) => {
                let name = of.ident.to_string();
                if name != "self" {
                    path.push(name.clone());
                }
                self.used(&path, &name, public);
            }
            syn::UseTree::Rename(of) => {
                path.push(of.ident.to_string());
                self.used(&path, &of.rename.to_string(), public);
            }
            syn::UseTree::Glob(_) => self.used(&path, "*", public),
        }
    }

    fn used(&mut self, path: &[String], name: &str, public: bool) {
        let relative = || self.depth == 0 && path.first().is_some_and(|p| p != "crate");
        match self.resolve(path) {
            Some(path) if public => self.module.hands_on.push((name.to_owned(), path)),
            Some(path) => self.module.uses.push(path),
            // `pub use pump::serve` in the file that declares `pump`.
            None if public && relative() => {
                let path = self.here.iter().chain(path).cloned().collect();
                self.module.hands_on.push((name.to_owned(), path));
            }
            None if relative() => {
                let path = self.here.iter().chain(path).cloned().collect();
                self.module.uses.push(path);
            }
            None => {}
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| match &a.meta {
        syn::Meta::List(list) => {
            let words = list.tokens.to_string();
            a.path().is_ident("cfg") && (words == "test" || words.starts_with("all (test"))
        }
        meta => meta.path().is_ident("test"),
    })
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if is_test(&item.attrs) {
            return;
        }
        self.depth += 1;
        visit::visit_item_mod(self, item);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test(&item.attrs) {
            let public = !matches!(item.vis, syn::Visibility::Inherited);
            self.tree(&item.tree, &[], public);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        if names.len() > 1 {
            let relative = names[0] != "crate" && self.depth == 0;
            let here = || self.here.iter().chain(&names).cloned().collect();
            let resolved = self.resolve(&names).or_else(|| relative.then(here));
            self.module.uses.extend(resolved);
        }
        visit::visit_path(self, path);
    }
}

/// Sets of files that reach each other.
fn circles(imports: &Imports) -> Vec<Vec<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        imports.keys().map(|file| (file, reached(imports, file))).collect();
    let mut found: Vec<Vec<String>> = Vec::new();
    for file in imports.keys() {
        if found.iter().any(|circle| circle.contains(file)) {
            continue;
        }
        let circle: Vec<String> = imports
            .keys()
            .filter(|other| reach[file].contains(other) && reach[other].contains(file))
            .cloned()
            .collect();
        if circle.len() > 1 {
            found.push(circle);
        }
    }
    found
}

fn reached<'a>(imports: &'a Imports, from: &String) -> BTreeSet<&'a String> {
    let mut all = BTreeSet::new();
    let mut next: Vec<&String> = imports[from].iter().collect();
    while let Some(file) = next.pop() {
        if all.insert(file) {
            next.extend(&imports[file]);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::find;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let sources = files.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        let found = find(&sources).expect("Rust");
        found.into_iter().map(|circle| circle.into_keys().collect()).collect()
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "pub struct B; fn f() -> crate::c::C { todo() }"),
            ("c.rs", "use super::a; pub struct C(a::A);"),
        ]);
        assert_eq!(found, [["a.rs", "b.rs", "c.rs"]]);
    }

    #[test]
    fn a_re_export_is_no_import_and_hides_none() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
            ("a.rs", "use crate::B; pub struct A;"),
            ("b.rs", "pub struct B;"),
        ];
        assert!(circles(&files).is_empty());
        let files = [files[0], files[1], ("b.rs", "pub struct B(crate::A);")];
        assert_eq!(circles(&files), [["a.rs", "b.rs"]]);
    }

    #[test]
    fn a_folder_and_what_it_contains() {
        let files = [
            ("lib.rs", "mod nbd;"),
            ("nbd/mod.rs", "mod pump; pub fn run() { pump::go() } pub struct Up;"),
            ("nbd/pump.rs", "use super::Up; pub fn go() {}"),
        ];
        assert_eq!(circles(&files), [["nbd/mod.rs", "nbd/pump.rs"]]);
    }

    #[test]
    fn tests_may_use_anything() {
        let found = circles(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "pub struct B; #[cfg(test)] mod tests { use crate::a; use super::*; }"),
        ]);
        assert!(found.is_empty());
    }
}
