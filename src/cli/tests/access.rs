//! Tests of addresses, and of the files for TLS and tokens.

use std::fs;

use super::*;

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    file
}

fn with_token(text: &str, address: &str) -> Result<Access, Failure> {
    let file = file(text);
    let args = AccessArgs { token_file: Some(file.path().into()), ..AccessArgs::default() };
    args.load(&address.parse().unwrap())
}

#[test]
fn a_token_is_sent_as_it_stands_in_its_file_and_never_shown() {
    let access = with_token("abc.def.ghi\n", "127.0.0.1:1").unwrap();
    let token = access.token.unwrap();
    assert_eq!(token, "Bearer abc.def.ghi");
    assert_eq!(format!("{token:?}"), "Sensitive");
    for wrong in ["", "two words", "\u{e9}"] {
        let error = with_token(wrong, "127.0.0.1:1").err().unwrap().to_string();
        assert!(error.ends_with(" contains no token"), "{wrong}: {error}");
    }
}

/// Tokens, keys, certificates and CAs must be regular files: a FIFO would block.
#[test]
fn only_regular_files_of_a_sound_size_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let (fifo, huge) = (dir.path().join("fifo"), dir.path().join("huge"));
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::File::create(&huge).unwrap().set_len(1 << 40).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let valid = file(&rcgen::CertificateParams::default().self_signed(&key).unwrap().pem());
    let cases = [
        (&*fifo, ["it is a pipe, and only regular files are read"; 4]),
        (Path::new("/dev/zero"), ["it is a device, and only regular files are read"; 4]),
        (
            &*huge,
            ["it is larger than 64KiB", "it is larger than 4MiB", "it is larger than 4MiB", "it is larger than 64KiB"],
        ),
    ];
    for (path, whats) in cases {
        let (path, valid) = (Some(path.to_path_buf()), Some(valid.path().to_path_buf()));
        let none = AccessArgs::default();
        let args = [
            AccessArgs { token_file: path.clone(), ..none.clone() },
            AccessArgs { ca: path.clone(), ..none.clone() },
            AccessArgs { ca: valid.clone(), cert: path.clone(), key: valid.clone(), ..none.clone() },
            AccessArgs { ca: valid.clone(), cert: valid, key: path.clone(), ..none },
        ];
        for (args, what) in args.into_iter().zip(whats) {
            let error = args.load(&"127.0.0.1:1".parse().unwrap()).err().unwrap();
            assert_eq!(error.to_string(), format!("cannot read {}: {what}", path.as_ref().unwrap().display()));
            assert_eq!(error.help().unwrap(), "write it to a regular file, and pass that file");
        }
    }
}

/// Made by OpenSSL 3.0, by `openssl x509 -req` without extensions.
const VERSION_1: &str = "\
    -----BEGIN CERTIFICATE-----\n\
    MIIBGjCBwgIUf8It/duLbn6oNAw7v2lt7olmXYgwCgYIKoZIzj0EAwIwDTELMAkG\n\
    A1UEAwwCY2EwHhcNMjYxMTIzMjM0OTMyWhcNMjYxMjIzMjM0OTMyWjAUMRIwEAYD\n\
    VQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAAQARxLuZZRb\n\
    FshFyOlEhR1RGMrQPX3UeXq2ZZHEttc5N+0fNaOlzI76i+OW1XV8H0IdEQRDzhy4\n\
    RaeRFXUy/O9cMAoGCCqGSM49BAMCA0cAMEQCIAz6nc77Jf9GvNYDLvEHOXoDwqxc\n\
    8KgUzYrcZapwhu6FAiAkmhyfiuPuwMryYfQ1KC2HpYx3VgC/26CQ8Qs3kOr0Kw==\n\
    -----END CERTIFICATE-----\n";

#[test]
fn what_is_wrong_with_a_certificate_has_its_own_help() {
    let (key, other) = (rcgen::KeyPair::generate().unwrap(), rcgen::KeyPair::generate().unwrap());
    let new = file(&rcgen::CertificateParams::default().self_signed(&key).unwrap().pem());
    let (old, key) = (file(VERSION_1), file(&other.serialize_pem()));
    for (cert, key, help) in [
        (&old, &key, "issue the certificate anew, as X.509 version 3"),
        (&new, &key, "pass the key that the certificate was made for"),
        (&key, &key, "pass a file with a block BEGIN CERTIFICATE"),
        (&new, &new, "pass a file with a block BEGIN PRIVATE KEY"),
    ] {
        let [ca, cert, key] = [&new, cert, key].map(|file| Some(file.path().into()));
        let args = AccessArgs { ca, cert, key, ..AccessArgs::default() };
        let error = args.load(&"127.0.0.1:1".parse().unwrap()).err().unwrap();
        assert!(error.help().unwrap().starts_with(help), "{error:?}");
    }
}

#[test]
fn an_address_without_tls_is_called_without_it() {
    for (address, help) in [
        ("http://127.0.0.1:1", "write https://127.0.0.1:1, or leave out --tls"),
        ("unix:/run/ww.sock", "leave out --tls"),
    ] {
        let address = address.parse().unwrap();
        let args = AccessArgs { tls: true, ..AccessArgs::default() };
        assert_eq!(args.load(&address).err().unwrap().help(), Some(help));
        let args = AccessArgs { ca: Some("/nowhere".into()), ..AccessArgs::default() };
        assert!(!args.load(&address).unwrap().has_tls());
    }
}

#[test]
fn a_token_does_not_travel_in_plaintext() {
    for local in ["localhost:1", "[::1]:1", "unix:/run/ww.sock"] {
        assert!(with_token("abc", local).is_ok(), "{local}");
    }
    for far in ["10.0.0.1:1", "host.example:1", "127.0.0.1.example:1"] {
        let error = with_token("abc", far).err().unwrap().to_string();
        assert_eq!(error, format!("the token would be sent to {far} in plaintext"));
    }
}

#[test]
fn contents_of_a_bad_file_are_not_quoted() {
    let secret = file("hunter2");
    let path = secret.path().to_path_buf();
    for args in [
        AccessArgs { ca: Some(path.clone()), ..AccessArgs::default() },
        AccessArgs { cert: Some(path.clone()), key: Some(path), ..AccessArgs::default() },
    ] {
        let error = args.load(&"127.0.0.1:1".parse().unwrap()).err().unwrap();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
}

#[test]
fn addresses_are_read_in_every_form() {
    const MALFORMED: &str = "not an address; pass HOST:PORT, http://HOST:PORT, https://HOST:PORT or unix:PATH";
    let cases = [
        ("127.0.0.1:7070", Ok("127.0.0.1:7070")),
        ("http://127.0.0.1:7071", Ok("127.0.0.1:7071")),
        ("http://host.example:80/", Ok("host.example:80")),
        ("[::1]:7070", Ok("[::1]:7070")),
        ("unix:/run/ww.sock", Ok("unix:/run/ww.sock")),
        ("unix:///run/ww.sock", Ok("unix:/run/ww.sock")),
        ("https://host:1", Ok("https://host:1")),
        ("host", Err("no port; pass HOST:PORT, such as 127.0.0.1:7070")),
        ("unix:", Err("no path after unix:; pass unix:PATH")),
        ("", Err(MALFORMED)),
        (":7070", Err(MALFORMED)),
        ("user@host:1", Err(MALFORMED)),
        ("host:1/path", Err(MALFORMED)),
        ("host:99999", Err("no port; pass HOST:PORT, such as 127.0.0.1:7070")),
    ];
    for (text, expected) in cases {
        let read = text.parse::<Address>().map(|address| address.to_string());
        assert_eq!(read, expected.map(str::to_owned), "{text}");
    }
}
