//! Takes secrets out of text that others wrote: logs, answers of programs, messages of errors.
//!
//! It removes too much rather than too little: whatever follows a word that names a secret, the
//! user's part of a URL, private keys, and command lines that the kernel repeats.

/// What stands in the place of a secret.
const REMOVED: &str = "(removed)";
/// A word that contains one of these, in any case, names a secret.
const NAMES: &[&str] = &[
    "passw",
    "passphrase",
    "secret",
    "token",
    "credential",
    "apikey",
    "api_key",
    "api-key",
    "private_key",
    "private-key",
    "privatekey",
    "access_key",
    "access-key",
    "accesskey",
    "authorization",
    "bearer",
    "cookie",
];
/// Of these, all the rest of the line is secret.
const WHOLE_LINES: &[&str] = &["authorization", "cookie"];

/// `text` without secrets, line by line.
pub fn scrub(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        let begins = line.contains("-----BEGIN") && line.contains("PRIVATE KEY");
        if begins || in_key {
            in_key = !line.rsplit("-----BEGIN").next().unwrap_or(line).contains("-----END");
            clean += if begins { REMOVED } else { "" };
            clean += end;
            continue;
        }
        clean += &scrub_line(line);
        clean += end;
    }
    clean
}

fn scrub_line(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    if let Some(at) = lower.find("command line:") {
        return format!("{} {REMOVED}", &line[..at + "command line:".len()]);
    }
    let line = without_users(line);
    let lower = line.to_ascii_lowercase();
    let mut clean = String::with_capacity(line.len());
    let mut done = 0;
    while let Some(at) = NAMES.iter().filter_map(|name| lower[done..].find(name)).min() {
        let word = done + at;
        let in_word = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        let word_end = line[word..].find(|c| !in_word(c)).map_or(line.len(), |len| word + len);
        // Quotes, also escaped ones, and what stands between a name and its value.
        let between = |c: char| c.is_whitespace() || "\"'\\=:>([{".contains(c);
        let value = line[word_end..].find(|c| !between(c)).map_or(line.len(), |len| word_end + len);
        let whole = WHOLE_LINES.iter().any(|name| lower[word..word_end].contains(name));
        let end = if whole { line.len() } else { value_end(&line, word_end, value) };
        clean += &line[done..value];
        clean += if end > value { REMOVED } else { "" };
        done = end;
    }
    clean + &line[done..]
}

/// Where a value ends: at the quote that it began with, else at the next blank or separator.
fn value_end(line: &str, after_name: usize, value: usize) -> usize {
    let quote = line[after_name..value].chars().rfind(|c| "\"'".contains(*c));
    let closes = line[after_name..value].matches(['"', '\'']).count();
    // `"name": "value"`: the first quote ends the name.
    let quote = quote.filter(|_| line[after_name..value].ends_with(['"', '\'']) && closes > 0);
    let mut is_escaped = false;
    for (at, c) in line[value..].char_indices() {
        match quote {
            Some(quote) if c == quote && !is_escaped => return value + at,
            None if c.is_whitespace() || "\"',;&)}]".contains(c) => return value + at,
            _ => {}
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    line.len()
}

/// URLs without the user and password in them.
fn without_users(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, behind) = rest.split_at(at + 3);
        clean += before;
        let ends = |c: char| c.is_whitespace() || "\"'/<>".contains(c);
        let authority = &behind[..behind.find(ends).unwrap_or(behind.len())];
        rest = behind;
        if let Some(user) = authority.rfind('@') {
            clean += REMOVED;
            rest = &behind[user..];
        }
    }
    clean + rest
}

#[cfg(test)]
mod tests {
    use super::scrub;

    #[test]
    fn secrets_are_taken_out_wherever_they_stand() {
        for (text, wanted) in [
            ("password=hunter2 next", "password=(removed) next"),
            ("DB_PASSWORD: hunter2, next", "DB_PASSWORD: (removed), next"),
            (
                "{\"admin_token\": \"hunter2\", \"n\": 1}",
                "{\"admin_token\": \"(removed)\", \"n\": 1}",
            ),
            ("{\"token\":\"hun\\\"ter2\"}", "{\"token\":\"(removed)\"}"),
            ("said {\\\"secret\\\":\\\"hunter2\\\"}", "said {\\\"secret\\\":\\\"(removed)"),
            ("tool --api-key hunter2 --fast", "tool --api-key (removed) --fast"),
            ("tool --token=hunter2", "tool --token=(removed)"),
            ("passphrase = 'hunter 2' next", "passphrase = '(removed)' next"),
            ("Authorization: Basic aHVudGVyMg==", "Authorization: (removed)"),
            ("set-cookie: id=hunter2; Secure", "set-cookie: (removed)"),
            ("Bearer hunter2", "Bearer (removed)"),
            ("at http://atoll:hunter2@etcd:2379/a b@c", "at http://(removed)@etcd:2379/a b@c"),
            ("two://a@b two://c@d", "two://(removed)@b two://(removed)@d"),
            ("kernel: Command line: root=/dev/a key=hunter2", "kernel: Command line: (removed)"),
            ("a token", "a token"),
            ("nothing at all: 7\n", "nothing at all: 7\n"),
            ("token hunter2\npassword hunter2", "token (removed)\npassword (removed)"),
            ("MiTTe: PassWort\u{e4}\u{20ac} x", "MiTTe: PassWort(removed) x"),
        ] {
            assert_eq!(scrub(text), wanted, "{text}");
        }
    }

    #[test]
    fn private_keys_go_as_a_whole() {
        let key = "-----BEGIN EC PRIVATE KEY-----\nhunter2\n-----END EC PRIVATE KEY-----";
        assert_eq!(scrub(&format!("before\n{key}\nafter\n")), "before\n(removed)\n\n\nafter\n");
        let one = "x \"-----BEGIN PRIVATE KEY-----\\nhunter2\\n-----END PRIVATE KEY-----\\n\" y\nz";
        assert_eq!(scrub(one), "(removed)\nz");
        assert_eq!(scrub("-----BEGIN PRIVATE KEY-----\nhunter2\nhunter2"), "(removed)\n\n");
        assert_eq!(
            scrub("-----BEGIN CERTIFICATE-----\nabc\n"),
            "-----BEGIN CERTIFICATE-----\nabc\n"
        );
    }

    /// Whatever is around it, and whatever bytes there are: no panic, and the secret is gone.
    #[test]
    fn any_line_can_be_scrubbed() {
        use proptest::prelude::*;
        let around = "[ -~\u{e0}-\u{ff}\u{20ac}]{0,12}";
        proptest!(|(before in around, after in around)| {
            let clean = scrub(&format!("{before} password=hunter2x {after}"));
            prop_assert!(!clean.contains("hunter2x"), "{clean}");
        });
    }
}
