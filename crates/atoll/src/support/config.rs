//! The configuration as a support bundle has it: keys that this release knows, with their values;
//! of any other only the name. A list of what is let through, so that a secret in a wrong place
//! stays where it is.

use crate::config::{GROUP_KEYS, KEYS, drop_in_files};
use crate::machine::disks::Known;
use std::fmt::Write;
use std::path::Path;
use toml::Value;

/// Bytes of a file that are read.
const FILE_MAX: u64 = 1 << 20;

/// The configuration file and those beside it: the name in the bundle, and what it says.
pub fn files(path: &Path) -> Vec<(String, Known<String>)> {
    let dir = path.parent().unwrap_or(Path::new(".")).join("conf.d");
    let mut all = vec![("config/atoll.toml".to_owned(), known(path))];
    match drop_in_files(&dir) {
        Ok(files) => all.extend(files.iter().map(|file| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let name: String = name.chars().filter(char::is_ascii_graphic).take(64).collect();
            (format!("config/conf.d/{name}"), known(file))
        })),
        Err(problem) => all.push(("config/conf.d".into(), Err(problem.detail))),
    }
    all
}

fn known(path: &Path) -> Known<String> {
    let meta = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !meta.is_file() || meta.len() > FILE_MAX {
        return Err("it is not a file, or longer than is read".into());
    }
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string())?;
    // The words of the error would quote the file.
    let table: toml::Table = text.parse().map_err(|_| "it is not TOML".to_owned())?;
    let mut shown = String::new();
    show("", &table, &mut shown);
    Ok(shown)
}

/// One line for each key: `network.api = "127.0.0.1:8460"`.
fn show(prefix: &str, table: &toml::Table, shown: &mut String) {
    for (name, value) in table {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let is_key = KEYS.iter().any(|key| key.path == path)
            || prefix == "group" && GROUP_KEYS.iter().any(|(key, _)| key == name);
        let leads_on =
            |path: &str| KEYS.iter().any(|key| key.path.starts_with(&format!("{path}.")));
        match value {
            value if is_key => {
                let _ = writeln!(shown, "{path} = {value}");
            }
            Value::Table(inner) if leads_on(&path) => show(&path, inner, shown),
            Value::Array(groups) if path == "group" => {
                for group in groups {
                    let _ = writeln!(shown, "# a [[group]]");
                    group.as_table().inspect(|group| show("group", group, shown));
                }
            }
            _ => {
                let _ = writeln!(shown, "# removed, not a key of this release: {path}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::files;

    #[test]
    fn what_is_not_a_key_is_named_and_not_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("atoll.toml");
        std::fs::create_dir(dir.path().join("conf.d")).unwrap();
        std::fs::write(
            &path,
            "# a note: hunter2\n[host]\nname = \"h1\"\nadmin_password = \"hunter2\"\n\
             [vault]\ntoken = \"hunter2\"\n[network]\napi = \"127.0.0.1:1\"\n\
             [[group]]\ndisks = [\"/dev/a\"]\nunlock = \"hunter2\"\n",
        )
        .unwrap();
        std::fs::write(dir.path().join("conf.d/a.toml"), "log.level = \"debug\"\n").unwrap();
        std::fs::write(dir.path().join("conf.d/b.toml"), "password = 'hunter2\n").unwrap();
        let all = files(&path);
        assert!(!format!("{all:?}").contains("hunter2"), "{all:?}");
        let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["config/atoll.toml", "config/conf.d/a.toml", "config/conf.d/b.toml"]);
        let shown = all[0].1.as_ref().unwrap();
        for line in [
            "host.name = \"h1\"\n",
            "# removed, not a key of this release: host.admin_password\n",
            "# removed, not a key of this release: vault\n",
            "network.api = \"127.0.0.1:1\"\n",
            "group.disks = [\"/dev/a\"]\n",
            "# removed, not a key of this release: group.unlock\n",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
        assert_eq!(all[1].1, Ok("log.level = \"debug\"\n".into()));
        assert_eq!(all[2].1, Err("it is not TOML".into()));
        let none = files(&dir.path().join("none/atoll.toml"));
        assert_eq!(none.len(), 1);
        assert!(none[0].1.as_ref().unwrap_err().contains("No such file"));
    }
}
