//! The texts of statuses on the wire: shortened to a limit, and encoded as gRPC requires. A long text loses its middle,
//! because a message begins with what failed, and the output of a program ends with the reason.

use http::{HeaderMap, HeaderName, HeaderValue};

const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Decodes what tonic percent-encodes in `grpc-message` without need, because some clients do not decode it. gRPC
/// requires the encoding only for `%` and for all except printable ASCII. A header must not begin or end with a space.
pub(super) fn decode_message(headers: &mut HeaderMap) {
    let Some(message) = headers.get(GRPC_MESSAGE).filter(|message| message.as_bytes().contains(&b'%')) else { return };
    let (mut rest, mut decoded) = (message.as_bytes(), Vec::with_capacity(message.len()));
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after.split_at_checked(2).filter(|_| first == b'%');
        let inner = |after: &[u8]| !decoded.is_empty() && !after.is_empty();
        let plain = escaped.and_then(|(hex, after)| {
            let byte = u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok()?;
            let is_plain = (byte.is_ascii_graphic() && byte != b'%') || (byte == b' ' && inner(after));
            is_plain.then_some((byte, after))
        });
        let (byte, after) = plain.unwrap_or((first, after));
        decoded.push(byte);
        rest = after;
    }
    if let Ok(decoded) = HeaderValue::from_bytes(&decoded) {
        headers.insert(GRPC_MESSAGE, decoded);
    }
}

/// Replaces the removed part.
const GAP: &str = " … ";

/// `text` without control characters, in at most `max` bytes.
pub(super) fn shorten(text: &str, max: usize) -> String {
    cut(text, max, char::len_utf8)
}

/// The same, but counts bytes both as HTTP/2 sends them in `grpc-message` and in base64.
pub(super) fn shorten_encoded(text: &str, max: usize) -> String {
    cut(text, 3 * 8 * max, thirds_of_bits)
}

/// Three times the bits of a character that is sent both in `grpc-message` and in the details.
fn thirds_of_bits(character: char) -> usize {
    match u8::try_from(character) {
        Ok(byte @ b' '..=b'~') if byte != b'%' => 3 * header_bits(byte) + 32,
        // Each byte is sent as three plain characters.
        _ => (3 * 24 + 32) * character.len_utf8(),
    }
}

/// Bits of a character in a header: those of HPACK's Huffman code (RFC 7541, appendix B), which servers may use where
/// it is longer than the text, and at least the 8 of a peer that does not use it. `>` and `~` are also longer in
/// base64.
fn header_bits(byte: u8) -> usize {
    match byte {
        b'\\' => 19,
        b'~' => 16,
        b'<' | b'>' | b'`' | b'{' => 15,
        b'^' | b'}' => 14,
        b'$' | b'@' | b'[' | b']' => 13,
        b'#' => 12,
        b'+' | b'|' | b'\'' => 11,
        b'!' | b'"' | b'(' | b')' | b'?' => 10,
        _ => 8,
    }
}

fn cut(text: &str, max: usize, cost: impl Fn(char) -> usize) -> String {
    let clean: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let spent = |text: &str| text.chars().map(&cost).sum::<usize>();
    if spent(&clean) <= max {
        return clean;
    }
    let space = max.saturating_sub(spent(GAP));
    let head = fitting(clean.chars(), space / 3, &cost);
    let tail = fitting(clean.chars().rev(), space - space / 3, &cost);
    format!("{}{GAP}{}", &clean[..head], &clean[clean.len() - tail..])
}

/// Bytes of the leading characters that fit into `space`.
fn fitting(characters: impl Iterator<Item = char>, space: usize, cost: impl Fn(char) -> usize) -> usize {
    let mut left = space;
    let bytes = characters.map_while(|character| {
        left = left.checked_sub(cost(character))?;
        Some(character.len_utf8())
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tonic::{Code, Status};

    use super::*;

    #[test]
    fn a_short_text_stays_but_for_control_characters() {
        assert_eq!(shorten("cannot read\n\tit: \"ß\"\u{7}", 30), "cannot read  it: \"ß\" ");
        assert_eq!(shorten_encoded("", 0), "");
    }

    #[test]
    fn a_long_text_keeps_its_ends() {
        assert_eq!(shorten("0123456789abcdefghijklmnopqrstuvwxyz", 17), "0123 … stuvwxyz");
        assert_eq!(shorten(&"€".repeat(40), 17), "€ … €€");
        assert_eq!(shorten("0123456789", 2), GAP);
    }

    #[test]
    fn only_what_must_be_is_encoded() {
        let every_sign: String = (' '..='~').collect();
        for (message, encoded) in [
            ("did you mean \"a b\"?; <{#`}>", "did you mean \"a b\"?; <{#`}>"),
            ("100 % of ß\n", "100 %25 of %C3%9F%0A"),
            ("%3F", "%253F"),
            (" a ", "%20a%20"),
            ("plain", "plain"),
            (every_sign.as_str(), &format!("%20{}", every_sign.trim_start().replace('%', "%25"))),
        ] {
            let mut headers = Status::new(Code::Unknown, message).into_http::<()>().into_parts().0.headers;
            decode_message(&mut headers);
            assert_eq!(headers["grpc-message"], encoded, "{message:?}");
            assert_eq!(Status::from_header_map(&headers).expect("a status").message(), message);
        }
    }

    /// Bytes of the headers of an answer, as the HTTP/2 library sends them.
    async fn sent(headers: HeaderMap) -> usize {
        let (near, mut far) = tokio::io::duplex(64 << 10);
        let answers = async move {
            let mut server = h2::server::handshake(near).await.expect("a preface");
            let (_, mut respond) = server.accept().await.expect("a call").expect("no fault");
            let mut response = http::Response::new(());
            *response.headers_mut() = headers;
            respond.send_response(response, true).expect("the stream is open");
            std::future::poll_fn(|cx| server.poll_closed(cx)).await
        };
        let call =
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x06\x01\x05\0\0\0\x01\x83\x86\x84\x41\x01\x61";
        let size = async move {
            far.write_all(call).await.expect("there is room");
            loop {
                let mut head = [0; 9];
                far.read_exact(&mut head).await.expect("a frame");
                let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                far.read_exact(&mut vec![0; length]).await.expect("a frame");
                if head[3] == 1 {
                    return length;
                }
            }
        };
        tokio::select! {
            size = size => size,
            end = answers => panic!("{end:?}"),
        }
    }

    #[tokio::test]
    async fn a_message_takes_what_it_may_and_no_more() {
        let every_sign: String = (' '..='~').collect();
        let signs = every_sign.chars().map(String::from).chain(["ß", "€", "🦀", "\u{ffbf}", "a €"].map(String::from));
        let mixed = ["{\"a\": <b>}", "ab>", "ab~", &every_sign].map(String::from);
        for filler in signs.chain(mixed) {
            let long = format!("/bin/p exited with code 1: {} no such bucket", filler.repeat(3_000));
            let short = shorten_encoded(&long, 2_000);
            assert!(short.starts_with("/bin/p exited with code 1: ") && short.ends_with(" no such bucket"), "{short}");
            let mut headers = Status::with_details(Code::Unknown, &short, short.clone().into()).into_http::<()>();
            let headers = headers.headers_mut();
            decode_message(headers);
            let plain = headers["grpc-message"].len() + headers["grpc-status-details-bin"].len();
            let on_the_wire = sent(std::mem::take(headers)).await;
            assert!(plain <= 2_000 && on_the_wire <= 2_080, "{filler:?}: {plain} and {on_the_wire}");
            assert!(plain.max(on_the_wire) >= 1_500, "{filler:?}: {plain} and {on_the_wire}");
        }
    }
}
