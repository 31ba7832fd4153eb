//! As much of Rust's grammar as tidy needs: what of a file is code, and how long functions are.

/// The file with comments, and the insides of strings and character literals, as blanks. Lines
/// and columns stay where they were.
pub fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' | b'b' | b'c' if !continues_word(bytes, at) => match raw_string_end(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            b'\'' => match character_end(bytes, at) {
                Some(end) => end,
                None => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end;
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&b| b == b'\n').map_or(bytes.len(), |n| at + n)
}

fn comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"..."`, `r#"..."#`, `br"..."` and so on, if one begins here.
fn raw_string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    while at < bytes.len() && matches!(bytes[at], b'b' | b'c') {
        at += 1;
    }
    if bytes.get(at) != Some(&b'r') {
        return None;
    }
    at += 1;
    let hashes = bytes[at..].iter().take_while(|&&b| b == b'#').count();
    at += hashes;
    if bytes.get(at) != Some(&b'"') {
        return None;
    }
    let mut close = vec![b'"'];
    close.resize(1 + hashes, b'#');
    let inside = at + 1;
    let found = bytes[inside..].windows(close.len()).position(|w| w == close);
    Some(found.map_or(bytes.len(), |n| inside + n + close.len()))
}

/// The end of a character literal; `None` for a lifetime.
fn character_end(bytes: &[u8], start: usize) -> Option<usize> {
    let next = *bytes.get(start + 1)?;
    if next == b'\\' {
        let close = bytes.get(start + 3..)?.iter().position(|&b| b == b'\'')?;
        return Some(start + 3 + close + 1);
    }
    // One character may be up to four bytes.
    (2..=5).map(|n| start + n).find(|&at| bytes.get(at) == Some(&b'\'')).and_then(|at| {
        let inside = std::str::from_utf8(&bytes[start + 1..at]).ok()?;
        (inside.chars().count() == 1).then_some(at + 1)
    })
}

fn continues_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_word(bytes[at - 1])
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Line numbers (from 1) on which `word` stands alone in `code`.
pub fn lines_with_word(code: &str, word: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let bytes = line.as_bytes();
        let stands_alone = line.match_indices(word).any(|(at, _)| {
            let end = at + word.len();
            let before = at > 0 && is_word(bytes[at - 1]) && is_word(word.as_bytes()[0]);
            let after = end < bytes.len()
                && is_word(bytes[end])
                && word.as_bytes().last().is_some_and(|&b| is_word(b));
            !before && !after
        });
        if stands_alone {
            found.push(number + 1);
        }
    }
    found
}

/// Every function with a body: (name, first line, lines).
pub fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let bytes = code.as_bytes();
    let mut out = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        if continues_word(bytes, at) {
            continue;
        }
        let name: String =
            code[at + 3..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            continue;
        }
        // The body is the first brace outside brackets; a declaration ends with a semicolon.
        let mut depth = 0i32;
        let mut brackets = 0i32;
        for (offset, &byte) in bytes[at..].iter().enumerate() {
            match byte {
                b'(' | b'[' => brackets += 1,
                b')' | b']' => brackets -= 1,
                b';' if depth == 0 && brackets == 0 => break,
                b'{' => depth += 1,
                b'}' => {
                    depth -= 1;
                    if depth == 0 {
                        let first = code[..at].matches('\n').count() + 1;
                        let lines = code[at..at + offset].matches('\n').count() + 1;
                        out.push((name, first, lines));
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{code_only, functions, lines_with_word};

    #[test]
    fn comments_and_strings_are_no_code() {
        let text = "a // x\n/* x /* x */ x */ b \"x\\\"x\" r#\"x\"x\"# 'x' '\\'' <'x> c\n";
        let code = code_only(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "<'x>", "c"]);
    }

    #[test]
    fn words_stand_alone() {
        let code = "unsafe_code\nunsafe {\nmy_unsafe\nx(tokio::spawn)\n";
        assert_eq!(lines_with_word(code, "unsafe"), [2]);
        assert_eq!(lines_with_word(code, "tokio::"), [4]);
    }

    #[test]
    fn functions_are_measured_from_name_to_brace() {
        let code = "fn a();\nfn b(x: [u8; 3]) {\n  if y {\n  }\n}\n";
        assert_eq!(functions(code), [("b".to_owned(), 2, 4)]);
    }
}
