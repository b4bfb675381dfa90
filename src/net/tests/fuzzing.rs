//! Fuzz target for PROXY headers: see [`crate::fuzzing`].

use std::net::{IpAddr, SocketAddr};

use super::proxy::{Parsed, parse};

/// A PROXY header is accepted as a whole, rejected for good, or incomplete.
pub(crate) fn proxy(data: &[u8]) {
    match parse(data) {
        // A text header is short, and a binary one has its length.
        Parsed::Partial => assert!(data.len() < 107 || data.starts_with(b"\r\n\r\n\0\r\nQUIT\n")),
        Parsed::Invalid => {
            for more in [&b"\r\n"[..], b" 1\r\n", b"\0\0\0\0"] {
                assert_eq!(parse(&[data, more].concat()), Parsed::Invalid);
            }
        }
        Parsed::Header { length, source } => {
            let header = &data[..length];
            assert_eq!(source, expected_source(header));
            assert_eq!(parse(header), Parsed::Header { length, source });
            for cut in 0..length {
                assert_eq!(parse(&header[..cut]), Parsed::Partial, "{cut} bytes");
            }
        }
    }
}

/// The peer in a valid header, parsed in another way.
fn expected_source(header: &[u8]) -> Option<SocketAddr> {
    if let Some(line) = header.strip_prefix(b"PROXY ") {
        let line = str::from_utf8(line).expect("text").strip_suffix("\r\n").expect("a whole line");
        let words: Vec<_> = line.split(' ').collect();
        let ["TCP4" | "TCP6", source, _, port, _] = words.as_slice() else {
            assert_eq!(words[0], "UNKNOWN");
            return None;
        };
        return Some((source.parse::<IpAddr>().expect("an address"), port.parse().expect("a port")).into());
    }
    let (address, port): (IpAddr, &[u8]) = match (header[12], header[13] >> 4) {
        (0x21, 1) => (<[u8; 4]>::try_from(&header[16..20]).expect("4 bytes").into(), &header[24..26]),
        (0x21, 2) => (<[u8; 16]>::try_from(&header[16..32]).expect("16 bytes").into(), &header[48..50]),
        _ => return None,
    };
    Some((address, u16::from_be_bytes([port[0], port[1]])).into())
}
