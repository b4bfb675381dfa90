//! The identity in a client certificate. `src/net/tls.rs` verifies the certificate in the handshake.

use std::sync::Arc;

use parking_lot::Mutex;
use x509_cert::{
    Certificate as X509,
    attr::AttributeTypeAndValue,
    der::{Decode, Encode, Tag, Tagged, asn1::ObjectIdentifier},
    ext::pkix::{SubjectAltName, name::GeneralName},
    name::Name,
};

use super::{Caller, Denial, denial::CertificateFault};

/// Longest SPIFFE ID by its specification.
const MAX_SPIFFE_ID: usize = 2_048;

/// Short names of attributes: those of RFC 4514, and OpenSSL's names of other common attributes.
const SHORT: [(ObjectIdentifier, &str); 14] = [
    (ObjectIdentifier::new_unwrap("2.5.4.3"), "CN"),
    (ObjectIdentifier::new_unwrap("2.5.4.7"), "L"),
    (ObjectIdentifier::new_unwrap("2.5.4.8"), "ST"),
    (ObjectIdentifier::new_unwrap("2.5.4.10"), "O"),
    (ObjectIdentifier::new_unwrap("2.5.4.11"), "OU"),
    (ObjectIdentifier::new_unwrap("2.5.4.6"), "C"),
    (ObjectIdentifier::new_unwrap("2.5.4.9"), "STREET"),
    (ObjectIdentifier::new_unwrap("0.9.2342.19200300.100.1.25"), "DC"),
    (ObjectIdentifier::new_unwrap("0.9.2342.19200300.100.1.1"), "UID"),
    (ObjectIdentifier::new_unwrap("2.5.4.4"), "SN"),
    (ObjectIdentifier::new_unwrap("2.5.4.42"), "GN"),
    (ObjectIdentifier::new_unwrap("2.5.4.12"), "title"),
    (ObjectIdentifier::new_unwrap("2.5.4.5"), "serialNumber"),
    (ObjectIdentifier::new_unwrap("1.2.840.113549.1.9.1"), "emailAddress"),
];

/// The verified client certificate of a connection.
#[derive(Debug)]
pub struct Certificate {
    principal: Result<String, CertificateFault>,
    /// The caller by the rules of that generation, created on first use.
    caller: Mutex<Option<(u64, Arc<Caller>)>>,
}

impl Certificate {
    /// Reads the name in a verified certificate: its SPIFFE ID, or else its subject.
    pub fn read(der: &[u8]) -> Self {
        Self { principal: principal(der), caller: Mutex::default() }
    }

    /// The name: `spiffe://…` or `subject:…`.
    ///
    /// # Errors
    /// [`Denial::InvalidCertificate`] if it has no usable name.
    pub fn principal(&self) -> Result<&str, Denial> {
        self.principal.as_deref().map_err(|fault| Denial::InvalidCertificate(*fault))
    }

    /// The caller, created once for this connection and these rules.
    pub(super) fn caller(&self, rules: u64, make: impl FnOnce(&str) -> Caller) -> Result<Arc<Caller>, Denial> {
        let principal = self.principal()?;
        let mut caller = self.caller.lock();
        match &*caller {
            Some((made_by, caller)) if *made_by == rules => Ok(Arc::clone(caller)),
            _ => Ok(Arc::clone(&caller.insert((rules, Arc::new(make(principal)))).1)),
        }
    }
}

fn principal(der: &[u8]) -> Result<String, CertificateFault> {
    let certificate = X509::from_der(der).map_err(|_| CertificateFault::Malformed)?.tbs_certificate;
    let names = certificate.get::<SubjectAltName>().map_err(|_| CertificateFault::Malformed)?;
    let names = names.map(|(_, SubjectAltName(names))| names).unwrap_or_default();
    let ids: Vec<&str> = names
        .iter()
        .filter_map(|name| match name {
            GeneralName::UniformResourceIdentifier(uri) if is_spiffe(uri.as_str()) => Some(uri.as_str()),
            _ => None,
        })
        .collect();
    match ids.as_slice() {
        [] => subject(&certificate.subject),
        [id] if is_valid_spiffe_id(id) => Ok((*id).to_owned()),
        _ => Err(CertificateFault::Spiffe),
    }
}

fn is_spiffe(uri: &str) -> bool {
    uri.get(..9).is_some_and(|start| start.eq_ignore_ascii_case("spiffe://"))
}

/// Whether an ID follows the SPIFFE specification: a trust domain in lower case, and a path without empty or relative
/// segments. So each name has only one spelling.
fn is_valid_spiffe_id(id: &str) -> bool {
    let Some(rest) = id.strip_prefix("spiffe://").filter(|_| id.len() <= MAX_SPIFFE_ID) else { return false };
    let (domain, path) = rest.split_once('/').map_or((rest, None), |(domain, path)| (domain, Some(path)));
    let in_domain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    let in_path = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let segment = |segment: &str| !["", ".", ".."].contains(&segment) && segment.bytes().all(in_path);
    !domain.is_empty() && domain.bytes().all(in_domain) && path.is_none_or(|path| path.split('/').all(segment))
}

/// The subject in the format of RFC 4514 and `openssl x509 -subject -nameopt RFC2253`: the last attribute comes first.
fn subject(name: &Name) -> Result<String, CertificateFault> {
    let mut text = String::new();
    for rdn in name.0.iter().rev() {
        for (at, attribute) in rdn.0.as_slice().iter().rev().enumerate() {
            let separator = if text.is_empty() {
                "subject:"
            } else if at > 0 {
                "+"
            } else {
                ","
            };
            text.push_str(separator);
            write_attribute(&mut text, attribute)?;
        }
    }
    if text.is_empty() { Err(CertificateFault::Nameless) } else { Ok(text) }
}

/// Writes an attribute. Its value is escaped, so that it cannot look like another attribute.
fn write_attribute(
    text: &mut String,
    AttributeTypeAndValue { oid, value: given }: &AttributeTypeAndValue,
) -> Result<(), CertificateFault> {
    use Tag::{Ia5String, NumericString, PrintableString, TeletexString, Utf8String, VisibleString};
    let texts = [Utf8String, PrintableString, Ia5String, TeletexString, VisibleString, NumericString];
    let value = str::from_utf8(given.value()).ok().filter(|_| texts.contains(&given.tag()));
    let value = value.ok_or(CertificateFault::Malformed)?;
    if value.chars().any(char::is_control) {
        return Err(CertificateFault::Malformed);
    }
    let Some((_, name)) = SHORT.iter().find(|(known, _)| known == oid) else {
        let value = given.to_der().map_err(|_| CertificateFault::Malformed)?;
        let value: String = value.iter().map(|byte| format!("{byte:02X}")).collect();
        text.push_str(&format!("{oid}=#{value}"));
        return Ok(());
    };
    text.push_str(name);
    text.push('=');
    for (at, letter) in value.char_indices() {
        let at_the_edge = at == 0 || at + letter.len_utf8() == value.len();
        if ",+\"\\<>;".contains(letter) || (at == 0 && letter == '#') || (at_the_edge && letter == ' ') {
            text.push('\\');
        }
        text.push(letter);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, Engine};
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    /// Made and shown by OpenSSL 3.0:
    /// `openssl req -x509 -newkey ed25519 -utf8 -subj '/C=DE/ST= Süd /O=Acme, Inc. <#1> "x"\+y=z/OU=#jobs+CN=a\\b;
    /// /DC=…'`, and `openssl x509 -noout -subject -nameopt RFC2253,-esc_msb,utf8`.
    const OF_OPENSSL: &str = "\
        MIICgzCCAjWgAwIBAgIUUiRieKJIXcshwhBUlNqYGuHB33IwBQYDK2VwMIG1MQswCQYDVQQGEwJERTEPMA0GA1UECAwGIFPDvGQg\
        MSAwHgYDVQQKDBdBY21lLCBJbmMuIDwjMT4gIngiK3k9ejEcMAwGA1UEAwwFYVxiOyAwDAYDVQQLDAUjam9iczEXMBUGCgmSJomT\
        8ixkARkWB2V4YW1wbGUxEjAQBgoJkiaJk/IsZAEBDAJ1NzEaMBgGCSqGSIb3DQEJARYLYUBiLmV4YW1wbGUxDDAKBgNVBAMMA3dl\
        YjAgFw0yNjExMjIxMTEzNDBaGA8yMTI2MTAyOTExMTM0MFowgbUxCzAJBgNVBAYTAkRFMQ8wDQYDVQQIDAYgU8O8ZCAxIDAeBgNV\
        BAoMF0FjbWUsIEluYy4gPCMxPiAieCIreT16MRwwDAYDVQQDDAVhXGI7IDAMBgNVBAsMBSNqb2JzMRcwFQYKCZImiZPyLGQBGRYH\
        ZXhhbXBsZTESMBAGCgmSJomT8ixkAQEMAnU3MRowGAYJKoZIhvcNAQkBFgthQGIuZXhhbXBsZTEMMAoGA1UEAwwDd2ViMCowBQYD\
        K2VwAyEArD6Gq4ABbhq31gX6co8FF8NQ8BfIe57+i2D1HRRd+K6jUzBRMB0GA1UdDgQWBBSi4/U6N0vUTx0Nop3AxcRyNKuZPjAf\
        BgNVHSMEGDAWgBSi4/U6N0vUTx0Nop3AxcRyNKuZPjAPBgNVHRMBAf8EBTADAQH/MAUGAytlcANBAMU3AHhNKnRjA18iBoSU4r20\
        ajWHZzxUTTQX31+IBAyoOrXaykh/WVeb3Fu0YlRmzgPRIyp9v41+Uo5VonRDRgM=";
    const AS_OPENSSL: [&str; 2] = [
        r"CN=web,emailAddress=a@b.example,UID=u7,DC=example",
        r#"OU=\#jobs+CN=a\\b\;\ ,O=Acme\, Inc. \<#1\> \"x\"\+y=z,ST=\ Süd\ ,C=DE"#,
    ];

    fn named(uris: &[&str], subject: &[(DnType, &str)]) -> Result<String, CertificateFault> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let uri = |uri: &&str| SanType::URI(rcgen::string::Ia5String::try_from(*uri).expect("ASCII"));
        params.subject_alt_names = uris.iter().map(uri).collect();
        let key = KeyPair::generate().expect("a key");
        principal(params.self_signed(&key).expect("a certificate").der())
    }

    #[test]
    fn a_spiffe_id_goes_before_the_subject() {
        let subject = [(DnType::CommonName, "web")];
        assert_eq!(named(&["spiffe://prod/ns/a/sa/web"], &subject), Ok("spiffe://prod/ns/a/sa/web".into()));
        assert_eq!(named(&["https://web"], &subject), Ok("subject:CN=web".into()));
        assert_eq!(named(&[], &subject), Ok("subject:CN=web".into()));
        assert_eq!(named(&[], &[]), Err(CertificateFault::Nameless));
    }

    #[test]
    fn an_unsound_spiffe_id_is_nobody_and_not_the_subject() {
        let subject = [(DnType::CommonName, "web")];
        for uris in [
            &["spiffe://a/b", "spiffe://a/c"][..],
            &["spiffe://"],
            &["spiffe://a/"],
            &["spiffe://a/../b"],
            &["spiffe://a//b"],
            &["spiffe://A/b"],
            &["SPIFFE://a/b"],
            &["spiffe://a/b*"],
            &["spiffe://a:1/b"],
            &["spiffe://a/b?c"],
        ] {
            assert_eq!(named(uris, &subject), Err(CertificateFault::Spiffe), "{uris:?}");
        }
    }

    #[test]
    fn a_subject_is_written_as_rfc_4514_and_openssl_write_it() {
        let der = BASE64_STANDARD.decode(OF_OPENSSL).expect("base64");
        assert_eq!(principal(&der), Ok(format!("subject:{}", AS_OPENSSL.join(","))));
        let unknown = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 99999, 1]);
        let named = named(&[], &[(unknown, "web"), (DnType::CommonName, "x")]);
        assert_eq!(named, Ok("subject:CN=x,1.3.6.1.4.1.99999.1=#0C03776562".into()));
    }

    #[test]
    fn a_subject_cannot_pass_for_a_longer_one() {
        let two = named(&[], &[(DnType::OrganizationName, "acme"), (DnType::CommonName, "web")]);
        assert_eq!(two, Ok("subject:CN=web,O=acme".into()));
        assert_eq!(named(&[], &[(DnType::CommonName, "web,O=acme")]), Ok("subject:CN=web\\,O=acme".into()));
        assert_eq!(named(&[], &[(DnType::CommonName, "web\n")]), Err(CertificateFault::Malformed));
        assert_eq!(named(&[], &[(DnType::CommonName, " web ")]), Ok("subject:CN=\\ web\\ ".into()));
    }

    #[test]
    fn bytes_that_are_no_certificate_name_nobody() {
        assert_eq!(principal(b"\x30\x03abc"), Err(CertificateFault::Malformed));
    }
}
