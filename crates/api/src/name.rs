//! Names that people give to volumes and policies: checked once, here, and the same everywhere.
//!
//! A name is 1 to 64 ASCII letters, digits, `.`, `_` and `-`, and starts with a letter or digit.
//! So it never needs quoting in a URL, a directory key, a shell, or an NBD export, and never
//! contains `/` or `:` (the verbs of the interface).

/// The longest name, in bytes.
pub const NAME_MAX: usize = 64;

/// Whether `name` may be the name of a `what` ("volume").
///
/// # Errors
/// A sentence that shows the name (shortened, escaped) and says which rule it breaks.
pub fn check(what: &str, name: &str) -> Result<(), String> {
    const RULE: &str = "1 to 64 letters, digits, '.', '_' and '-', starting with a letter or digit";
    let shown = show(name);
    if name.is_empty() {
        return Err(format!("a {what} name must not be empty (rule: {RULE})"));
    }
    if name.len() > NAME_MAX {
        return Err(format!(
            "{what} name {shown} is {} bytes long, at most {NAME_MAX} are allowed (rule: {RULE})",
            name.len()
        ));
    }
    let bad = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')));
    if let Some(bad) = bad {
        return Err(format!("{what} name {shown} contains {bad:?} (rule: {RULE})"));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        let first = name.chars().next().expect("checked above: not empty");
        return Err(format!("{what} name {shown} starts with {first:?} (rule: {RULE})"));
    }
    Ok(())
}

/// `text` in quotes, control characters escaped, at most 40 characters of it.
pub fn show(text: &str) -> String {
    let mut shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
    if text.chars().count() > 40 {
        shown.push_str("...");
    }
    format!("'{shown}'")
}

#[cfg(test)]
mod tests {
    use super::{check, show};

    #[test]
    fn a_name_is_taken_or_refused_with_the_rule() {
        for good in ["a", "vm-1", "db.disk_0", "0", &"x".repeat(64)] {
            assert_eq!(check("volume", good), Ok(()), "{good}");
        }
        let long = "x".repeat(1000);
        for (bad, word) in [
            ("", "empty"),
            ("a/b", "'/'"),
            ("../etc", "'/'"),
            ("..", "starts with '.'"),
            ("-o", "starts with '-'"),
            ("a:resize", "':'"),
            ("nul\0", "'\\0'"),
            ("two words", "' '"),
            ("\u{e9}t\u{e9}", "'\u{e9}'"),
            ("a\nb", "'\\n'"),
            (long.as_str(), "1000 bytes"),
            (&"x".repeat(65), "65 bytes"),
        ] {
            let error = check("volume", bad).unwrap_err();
            assert!(error.contains(word), "{bad:?}: {error}");
            assert!(error.contains("1 to 64 letters"), "{error}");
            assert!(error.len() < 250 && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn a_shown_text_stays_on_one_line() {
        assert_eq!(show("a\r\nb\u{1b}[2J"), "'a\\r\\nb\\u{1b}[2J'");
        assert!(show(&"y".repeat(10_000)).len() < 50);
    }
}
