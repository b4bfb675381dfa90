//! The PROXY protocol, versions 1 and 2: a header in which a proxy reports its client's address.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use ppp::{HeaderResult, PartialResult, v1, v2};

use super::{connection::Unestablished, stream::Stream, tracker::Closed};
use crate::model::{Origin, Peer};

/// Longest accepted header, in bytes. Version 2 allows more, but proxies send far less.
const MAX_HEADER: usize = 2048;

/// First bytes of a version 1 header.
const TEXT: &[u8] = b"PROXY ";
/// Longest version 1 header, in bytes.
const MAX_LINE: usize = 107;

/// The peer's address, if it is a proxy of these networks.
pub(super) fn proxy_address(proxies: &[IpNet], origin: &Origin) -> Option<SocketAddr> {
    let Origin::Address(address) = origin else { return None };
    let ip = address.ip().to_canonical();
    proxies.iter().any(|network| network.contains(&ip)).then_some(*address)
}

/// If the peer is a proxy, reads the header from the stream, and replaces the proxy's address by the client's.
pub(super) async fn read_header(stream: &mut Stream, peer: &mut Peer, proxies: &[IpNet]) -> Result<(), Unestablished> {
    let Some(proxy) = proxy_address(proxies, &peer.origin) else { return Ok(()) };
    loop {
        match parse(stream.ahead()) {
            Parsed::Partial if stream.ahead().len() < MAX_HEADER => stream.read_ahead(MAX_HEADER).await?,
            Parsed::Partial | Parsed::Invalid => {
                let cause = "the peer is a proxy, but sent no valid PROXY header";
                return Err(Unestablished::new(Closed::ProxyHeader, cause));
            }
            Parsed::Header { length, source } => {
                stream.skip(length);
                // A proxy's own health check has no client address.
                if let Some(source) = source {
                    peer.origin = Origin::Address(source);
                    peer.proxy = Some(proxy);
                }
                return Ok(());
            }
        }
    }
}

/// Result of parsing the first bytes of a connection.
#[derive(Debug, PartialEq)]
pub(super) enum Parsed {
    Partial,
    Invalid,
    Header { length: usize, source: Option<SocketAddr> },
}

pub(super) fn parse(bytes: &[u8]) -> Parsed {
    // The parser of version 1 reports a partial address as invalid, and ends at the first carriage return. So it gets
    // only whole lines.
    let is_text = bytes.starts_with(TEXT) || TEXT.starts_with(bytes);
    if is_text {
        let Some(end) = bytes.windows(2).take(MAX_LINE).position(|pair| pair == b"\r\n") else {
            return if bytes.len() < MAX_LINE { Parsed::Partial } else { Parsed::Invalid };
        };
        if bytes[..end].iter().any(|byte| b"\r\n".contains(byte)) {
            return Parsed::Invalid;
        }
    } else if !bytes.starts_with(v2::PROTOCOL_PREFIX) && !v2::PROTOCOL_PREFIX.starts_with(bytes) {
        return Parsed::Invalid;
    }
    let header = HeaderResult::parse(bytes);
    if header.is_incomplete() {
        return if is_text { Parsed::Invalid } else { Parsed::Partial };
    }
    match header {
        HeaderResult::V1(Ok(header)) => {
            let source = match header.addresses {
                v1::Addresses::Unknown => None,
                v1::Addresses::Tcp4(tcp) => Some((IpAddr::V4(tcp.source_address), tcp.source_port).into()),
                v1::Addresses::Tcp6(tcp) => Some((IpAddr::V6(tcp.source_address), tcp.source_port).into()),
            };
            Parsed::Header { length: header.header.len(), source }
        }
        HeaderResult::V2(Ok(header)) => {
            let source = match (header.command, header.addresses) {
                (v2::Command::Proxy, v2::Addresses::IPv4(ip)) => Some((ip.source_address, ip.source_port).into()),
                (v2::Command::Proxy, v2::Addresses::IPv6(ip)) => Some((ip.source_address, ip.source_port).into()),
                (v2::Command::Local, _) | (_, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => None,
            };
            Parsed::Header { length: header.len(), source }
        }
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => Parsed::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

    /// A header of version 2 with these bytes behind the signature.
    fn v2(rest: &[u8]) -> Vec<u8> {
        [V2, rest].concat()
    }

    fn header_from(length: usize, source: &str) -> Parsed {
        Parsed::Header { length, source: Some(source.parse().expect("an address")) }
    }

    #[test]
    fn headers_of_both_versions_name_the_peer() {
        let ipv4 = v2(b"\x21\x11\0\x0c\x0a\0\0\x01\x0a\0\0\x02\x04\xd2\x1b\x9e");
        let with_more = v2(b"\x21\x11\0\x10\x0a\0\0\x01\x0a\0\0\x02\x04\xd2\x1b\x9e\x04\0\x01\0");
        let ipv6 = [&v2(b"\x21\x21\0\x24")[..], &[0; 15], b"\x01", &[0; 16], b"\x04\xd2\x1b\x9e"].concat();
        for (header, source) in [
            (b"PROXY TCP4 10.0.0.1 10.0.0.2 1234 7070\r\n".to_vec(), Some("10.0.0.1:1234")),
            (b"PROXY TCP6 ::1 ::2 1234 7070\r\n".to_vec(), Some("[::1]:1234")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN whatever it says\r\n".to_vec(), None),
            (ipv4, Some("10.0.0.1:1234")),
            (with_more, Some("10.0.0.1:1234")),
            (ipv6, Some("[::1]:1234")),
            (v2(b"\x20\0\0\0"), None),
        ] {
            let length = header.len();
            let whole = source.map_or(Parsed::Header { length, source: None }, |source| header_from(length, source));
            for partial in 0..length {
                assert_eq!(parse(&header[..partial]), Parsed::Partial, "{partial} of {header:?}");
            }
            for more in [&b""[..], b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01\xff\xfe"] {
                assert_eq!(parse(&[&header, more].concat()), whole, "{header:?}");
            }
        }
    }

    #[test]
    fn an_invalid_header_is_refused_without_more_bytes() {
        let long = [b"PROXY UNKNOWN ".as_slice(), &[b'x'; 120]].concat();
        for bytes in [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(),
            b"PROXY TCP4 10.0.0.1 10.0.0.2 1234\r\n",
            b"PROXY TCP4 10.0.0.256 10.0.0.2 1 2\r\n",
            b"PROXY TCP4 10.0.0.1 10.0.0.2 1 70700\r\n",
            b"PROXY \xff\r\n",
            b"PROXY UNKNOWN \n\r\r\n",
            b"PROXY\rTCP4",
            b"GET / HTTP/1.1\r\n",
            &long,
            &v2(b"\x31\x11\0\x0c"),
            &v2(b"\x21\x11\0\x04\0\0\0\0"),
        ] {
            assert_eq!(parse(bytes), Parsed::Invalid, "{bytes:?}");
        }
    }
}
