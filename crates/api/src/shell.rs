//! Words of printed command lines: whoever copies a line into a shell runs what was meant.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// `word` so that a shell reads it as one word: as it is if nothing in it is special, else in
/// single quotes; with control characters or bytes that are not UTF-8, as `$'...'` (bash, ksh,
/// zsh), so that it stays one printable line.
pub fn quote(word: impl AsRef<OsStr>) -> String {
    let bytes = word.as_ref().as_bytes();
    let plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b"-_./:@%+,".contains(&byte);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.is_empty() && bytes.iter().all(plain) => text.to_owned(),
        Ok(text) if !text.contains(char::is_control) => {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
        _ => {
            let mut quoted = String::from("$'");
            for chunk in bytes.utf8_chunks() {
                for c in chunk.valid().chars() {
                    match c {
                        '\'' | '\\' => quoted.extend(['\\', c]),
                        c if c.is_control() => {
                            let mut buffer = [0; 4];
                            for byte in c.encode_utf8(&mut buffer).bytes() {
                                octal(&mut quoted, byte);
                            }
                        }
                        c => quoted.push(c),
                    }
                }
                for &byte in chunk.invalid() {
                    octal(&mut quoted, byte);
                }
            }
            quoted + "'"
        }
    }
}

/// Three digits always: what follows is never taken for a part of it, as it would be after `\x`.
fn octal(quoted: &mut String, byte: u8) {
    quoted.push_str(&format!("\\{byte:03o}"));
}

#[cfg(test)]
mod tests {
    use super::quote;
    use proptest::prelude::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn special_words_are_quoted() {
        for (word, quoted) in [
            ("", "''"),
            ("/var/tmp/atoll-1/a%20b", "/var/tmp/atoll-1/a%20b"),
            ("unix:///run/a.sock", "unix:///run/a.sock"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$(x)", "'$(x)'"),
            ("~", "'~'"),
            ("nbd://h/v?x=y", "'nbd://h/v?x=y'"),
            ("\u{e4}", "'\u{e4}'"),
            ("a\n'\\1", r"$'a\012\'\\1'"),
        ] {
            assert_eq!(quote(word), quoted);
        }
        assert_eq!(quote(OsStr::from_bytes(b"\xff1")), r"$'\3771'");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_shell_reads_the_same_word(word in prop::collection::vec(1..=u8::MAX, 0..40)) {
            let line = format!("printf %s {}", quote(OsStr::from_bytes(&word)));
            prop_assert!(!line.contains(char::is_control));
            let done = std::process::Command::new("bash")
                .env("LC_ALL", "C.UTF-8")
                .args(["-c", &line])
                .output()
                .unwrap();
            prop_assert_eq!(done.stdout, word, "{}", line);
        }
    }
}
