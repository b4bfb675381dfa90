//! What of a text that somebody gave may be repeated to others: what has the form of what was asked for. A secret that
//! was given in its place has another form; some harmless texts have too, and are withheld with it.

use std::{borrow::Cow, path::Path};

use super::{WITHHELD, without_userinfo};

/// Longest name that is repeated: one more than what a pool may be called, so that it is seen what is too long.
const LONGEST_NAME: usize = 64;

/// Longest value that is repeated: a command line may be that long, a private key is longer.
const LONGEST_VALUE: usize = 256;

/// Longest part of a path that is repeated: a UUID in words, and less than what 32 random bytes are in base64.
const LONGEST_PART: usize = 40;

/// Whether a name may be repeated: what TOML lets stand without quotes. `TOKEN=hunter2` is none.
pub(crate) fn is_name(text: &str) -> bool {
    let bare = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    text.len() <= LONGEST_NAME && text.bytes().all(bare)
}

/// A name as it may be repeated.
pub(crate) fn name(text: &str) -> &str {
    if is_name(text) { text } else { WITHHELD }
}

/// Whether the value of a key that takes no secret may be repeated: one line, of some length, and no part of a PEM file.
pub(crate) fn is_value(text: &str) -> bool {
    text.len() <= LONGEST_VALUE && !text.contains(char::is_control) && !text.contains("----")
}

/// A value as it may be repeated, without who a URL logs in as.
pub(crate) fn value(text: &str) -> String {
    if is_value(text) { without_userinfo(text).into_owned() } else { WITHHELD.into() }
}

/// Whether a text that was given as a path may be repeated, for the key or the token itself may have been given instead.
///
/// A path begins with `/`, `.` or `~`, or ends in an extension. None of its parts is as long as those of keys and of
/// tokens in base64, and it holds nothing of what base64, JSON and PEM have besides letters.
pub(crate) fn is_path(text: &str) -> bool {
    let begins = text.starts_with(['/', '.', '~']);
    let extension = text.rsplit_once('.').map_or("", |(_, extension)| extension);
    let ends = (1..=8).contains(&extension.len()) && extension.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let parts = text.split(['/', '.']).all(|part| part.len() <= LONGEST_PART);
    is_value(text) && (begins || ends) && parts && !text.contains(['=', '+', '{', '"', ','])
}

/// A path as it may be repeated.
pub(crate) fn path(path: &Path) -> Cow<'_, str> {
    let text = path.to_string_lossy();
    if is_path(&text) { text } else { WITHHELD.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_the_form_of_a_path_is_repeated() {
        let paths =
            ["/etc/ww/tls.key", "tls.key", "./key", "../a b/key", "~/.token", "certs/server.pem", "/run/secrets/token"];
        for text in paths {
            assert_eq!(path(Path::new(text)), text);
        }
    }

    #[test]
    fn a_key_and_a_token_have_no_form_of_a_path() {
        let pasted = [
            "hunter2",
            "-----BEGIN PRIVATE KEY-----",
            "----BEGIN",
            "MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC",
            "1O5y2/kTWErVttjx92n4rTr+fCjL8dT74JeojyR1WEI=",
            "/O5y2/kTWErVttjx92n4rTr+fCjL8dT74JeojyR1WEI=",
            r#"{"keys":[{"kty":"oct","k":"aHVudGVyMg"}]}"#,
            "eyJhbGciOiJFUzI1NiIsImtpZCI6Im9uZSJ9.eyJzdWIiOiJodW50ZXIyIiwiZXhwIjoxNzAwMDAwMDAwMH0.c2ln",
            "/etc/key\nhunter2",
        ];
        for text in pasted {
            assert_eq!(path(Path::new(text)), WITHHELD, "{text}");
        }
    }

    #[test]
    fn a_name_holds_no_value() {
        for text in ["env", "2B", "C-D", "When-Full", ""] {
            assert_eq!(name(text), text);
        }
        for text in ["A=hunter2", "a b", "a.b", "ä", &"a".repeat(65)] {
            assert_eq!(name(text), WITHHELD);
        }
        assert_eq!(value("a b=c http://a:b@c"), "a b=c http://(withheld)@c");
        for text in ["a\nb", "----BEGIN", &"a".repeat(257)] {
            assert_eq!(value(text), WITHHELD);
        }
    }
}
