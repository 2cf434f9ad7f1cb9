//! What may stand in a line for people: letters that show as themselves, and escapes of all that does not.
//!
//! ```text
//!  request "a<U+202E>b" of a caller ──► text  a\u{202e}b      JSON  a\u202eb
//! ```
//! A terminal or an editor obeys or hides the rest: control characters, marks that turn the direction of text, letters
//! without width, blanks that are none. It is the set that Rust's `Debug` and Python's `isprintable` go by.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a letter shows as itself.
pub fn is_printable(letter: char) -> bool {
    if letter.is_ascii() {
        return !letter.is_ascii_control();
    }
    // Behind another letter, where `Debug` lets the marks be that belong to the one before.
    let mut pair = [b'a', 0, 0, 0, 0];
    let length = 1 + letter.encode_utf8(&mut pair[1..]).len();
    str::from_utf8(&pair[..length]).is_ok_and(|pair| pair.escape_debug().nth(1) == Some(letter))
}

/// The text with an escape, as Rust writes it, for each letter that does not show as itself.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |letter, to| to.extend(letter.escape_default()))
}

/// A JSON document of one line with an escape for each such letter. They can only stand in its strings, and it still says the same.
pub fn printable_json(line: &str) -> Cow<'_, str> {
    escaped(line, |letter, to| {
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(to, "\\u{unit:04x}");
        }
    })
}

fn escaped(text: &str, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    if text.chars().all(is_printable) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_printable(letter) { safe.push(letter) } else { escape(letter, &mut safe) }
    }
    safe.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directions, a soft hyphen, no width, line and paragraph, tags, both sets of controls, a byte-order mark, a wide blank.
    const HIDDEN: &str = "\u{202a}\u{202e}\u{2066}\u{2069}\u{200e}\u{61c}\u{ad}\u{200b}\u{200d}\u{2028}\u{2029}\u{e0041}\
                          \u{1b}\u{7f}\u{9b}\u{feff}\u{a0}\n\0";

    #[test]
    fn what_is_obeyed_or_hidden_is_escaped_and_what_shows_is_let_be() {
        for letter in HIDDEN.chars() {
            assert!(!is_printable(letter), "{letter:?}");
        }
        let shown = "chat-1 \"quoted\" \\ Größe e\u{301} 中文 שלום 🚀";
        assert!(matches!(printable(shown), Cow::Borrowed(_)), "{}", printable(shown));
        assert_eq!(printable("a\u{202e}b\u{1b}[2J\n"), "a\\u{202e}b\\u{1b}[2J\\n");
    }

    #[test]
    fn an_escaped_document_says_what_it_said() {
        let text = serde_json::to_string(&serde_json::json!({ "name": HIDDEN, "other": "中 \u{e0041}" })).unwrap();
        let safe = printable_json(&text);
        assert!(safe.chars().all(is_printable), "{safe}");
        assert!(safe.contains("\\u202e") && safe.contains("\\udb40\\udc41"), "{safe}");
        let (said, meant): (serde_json::Value, serde_json::Value) = (safe.parse().unwrap(), text.parse().unwrap());
        assert_eq!(said, meant);
    }
}
