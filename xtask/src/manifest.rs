//! Which crate may depend on which (`ARCHITECTURE.md`): data moves one way, nothing points back.

/// Every crate of the workspace with the ones of ours that it may depend on. Tests may look
/// around: development dependencies are not restricted.
const EDGES: &[(&str, &[&str])] = &[
    ("format", &[]),
    ("world", &["format"]),
    ("directory", &["format", "world"]),
    ("store", &["format", "world"]),
    ("transport", &["format", "world"]),
    ("object", &["format", "world", "transport"]),
    ("node", &["format", "world", "store", "transport", "object"]),
    ("front", &["world"]),
    ("real", &["format", "world", "directory"]),
    ("etcd", &["world", "directory"]),
    ("sim", &["format", "world", "directory", "store", "transport", "object", "node", "front"]),
    ("api", &["format"]),
    (
        "atoll",
        &[
            "format",
            "world",
            "directory",
            "store",
            "transport",
            "object",
            "node",
            "front",
            "real",
            "etcd",
            "sim",
            "api",
        ],
    ),
];

/// The names under `[dependencies]`, `[build-dependencies]` and their per-target kin.
pub fn dependencies(manifest: &str) -> Vec<String> {
    names(manifest, &["dependencies", "build-dependencies"])
}

/// The names under every table of dependencies, those of tests included.
pub fn all_dependencies(manifest: &str) -> Vec<String> {
    names(manifest, &["dependencies", "build-dependencies", "dev-dependencies"])
}

/// The names that the root manifest offers to all crates.
pub fn offered(manifest: &str) -> Vec<String> {
    let offer = manifest.lines().skip_while(|line| line.trim() != "[workspace.dependencies]");
    let lines = offer.skip(1).take_while(|line| !line.starts_with('['));
    let names = lines.filter_map(|line| line.split([' ', '=', '.']).next());
    names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(str::to_owned).collect()
}

fn names(manifest: &str, tables: &[&str]) -> Vec<String> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in manifest.lines() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let last = section.rsplit('.').next().unwrap_or(section);
            inside = tables.contains(&last) && !section.starts_with("workspace");
            // `[dependencies.name]` is one dependency.
            let mut parts = section.rsplitn(2, '.');
            let (name, table) = (parts.next(), parts.next());
            if let (Some(name), Some(table)) = (name, table)
                && tables.contains(&table)
            {
                names.push(name.to_owned());
            }
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || "-_".contains(c)));
            names.push(line[..end.unwrap_or(line.len())].to_owned());
        }
    }
    names
}

/// What is wrong with the dependencies of the crate in `crates/<folder>`.
pub fn check(folder: &str, manifest: &str) -> Vec<String> {
    let at = format!("crates/{folder}/Cargo.toml");
    let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == folder) else {
        return vec![format!("{at}: xtask/src/manifest.rs does not say what it may depend on")];
    };
    dependencies(manifest)
        .iter()
        .filter_map(|name| name.strip_prefix("atoll-"))
        .filter(|name| !allowed.contains(name))
        .map(|name| format!("{at}: {folder} must not depend on {name} (ARCHITECTURE.md)"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{all_dependencies, check, dependencies, offered};

    #[test]
    fn every_form_of_a_dependency_is_seen() {
        let manifest = "[package]\nname = \"x\"\n[dependencies]\na.workspace = true\n\
            b-c = { path = \"x\" }\n[dependencies.d]\nversion = \"1\"\n\
            [target.'cfg(unix)'.dependencies]\ne = \"1\"\n[dev-dependencies]\nf = \"1\"\n";
        assert_eq!(dependencies(manifest), ["a", "b-c", "d", "e"]);
        assert_eq!(all_dependencies(manifest), ["a", "b-c", "d", "e", "f"]);
    }

    #[test]
    fn the_offer_of_the_root_is_read() {
        let manifest =
            "[workspace]\n[workspace.dependencies]\na = \"1\"\n# x\nb = {}\n[profile]\nc = 1\n";
        assert_eq!(offered(manifest), ["a", "b"]);
    }

    #[test]
    fn an_edge_that_points_back_is_refused() {
        assert!(check("store", "[dependencies]\natoll-world.workspace = true\n").is_empty());
        let back = check("world", "[dependencies]\natoll-store.workspace = true\n");
        assert_eq!(back.len(), 1, "{back:?}");
        assert_eq!(check("unheard-of", "").len(), 1);
    }
}
