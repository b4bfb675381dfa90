//! Tests of TLS: changed files, client certificates.

use std::fs;

use rcgen::{CertificateParams, KeyPair};
use tokio_rustls::rustls::pki_types::UnixTime;

use super::*;

struct Setting {
    dir: tempfile::TempDir,
    tls: Tls,
}

/// A certificate and its key, in PEM.
fn pair() -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let cert = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name").self_signed(&key);
    (cert.expect("a certificate").pem(), key.serialize_pem())
}

impl Setting {
    fn new(client_auth: ClientAuth) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (cert, key) = pair();
        for (name, text) in [("crt", &cert), ("key", &key), ("ca", &cert)] {
            fs::write(dir.path().join(name), text).expect("written");
        }
        let config = TlsConfig {
            cert: dir.path().join("crt"),
            key: dir.path().join("key"),
            client_ca: Some(dir.path().join("ca")),
            client_auth,
            min_version: TlsVersion::V1_3,
            handshake_timeout: Duration::from_secs(5),
            reload: Duration::from_secs(5),
            http1: false,
        };
        Self { tls: Tls::open(config).expect("sound files"), dir }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).expect("written");
    }

    /// What is in use after another look: whether there is anything, and how often it was changed, and found broken.
    fn look(&self) -> (bool, u64, u64) {
        self.tls.reload_if_changed();
        (self.tls.current.load().is_some(), self.tls.reloads.done(), self.tls.reloads.failed())
    }
}

#[test]
fn what_is_broken_is_counted_once_and_the_old_files_stay() {
    let setting = Setting::new(ClientAuth::Required);
    let first = setting.tls.current.load_full().expect("settings");
    assert_eq!(setting.look(), (true, 0, 0));
    let (cert, key) = pair();
    for (broken, (name, text)) in
        [("crt", cert.as_str()), ("key", "no key"), ("key", ""), ("crt", "no certificate")].into_iter().enumerate()
    {
        setting.write(name, text);
        let failed = broken as u64 + 1;
        assert_eq!((setting.look(), setting.look()), ((true, 0, failed), (true, 0, failed)), "{name}: {text}");
        assert!(Arc::ptr_eq(&first, &setting.tls.current.load_full().expect("settings")));
    }
    setting.write("crt", &cert);
    setting.write("key", &key);
    assert_eq!((setting.look(), setting.look()), ((true, 1, 4), (true, 1, 4)));
    assert!(!Arc::ptr_eq(&first, &setting.tls.current.load_full().expect("settings")));
}

/// A certificate that is broken does not keep a root in trust that was taken out, and the other way round.
#[test]
fn what_is_broken_keeps_no_other_file_from_being_taken_over() {
    let setting = Setting::new(ClientAuth::Required);
    let (cert, key) = pair();
    setting.write("crt", "no certificate");
    setting.write("ca", &cert);
    assert_eq!((setting.look(), setting.look()), ((true, 1, 1), (true, 1, 1)));
    setting.write("crt", &cert);
    setting.write("key", &key);
    setting.write("ca", "no certificate");
    assert_eq!((setting.look(), setting.look()), ((true, 2, 2), (true, 2, 2)));
}

#[test]
fn a_client_ca_that_is_gone_counts_from_the_second_look() {
    for (auth, is_left) in [(ClientAuth::Required, false), (ClientAuth::Optional, true)] {
        let setting = Setting::new(auth);
        let ca = fs::read_to_string(setting.dir.path().join("ca")).expect("read");
        fs::remove_file(setting.dir.path().join("ca")).expect("removed");
        assert_eq!(setting.look(), (true, 0, 1), "it may be on its way");
        assert_eq!(setting.look(), (is_left, 1, 1));
        assert_eq!(setting.look(), (is_left, 1, 1), "told once");
        setting.write("ca", " \n");
        assert_eq!((setting.look().0, setting.look().0), (is_left, is_left), "empty is gone");
        setting.write("ca", "no certificate");
        assert_eq!((setting.look().0, setting.look().0), (is_left, is_left), "nothing to take over");
        setting.write("ca", &ca);
        assert!(setting.look().0);
    }
}

/// A text without a certificate, a FIFO and a file without an end are slips: what was trusted before is trusted on.
#[test]
fn a_client_ca_that_is_no_such_file_changes_nothing() {
    let setting = Setting::new(ClientAuth::Required);
    let path = setting.dir.path().join("ca");
    let fifo = |path: &std::path::Path| {
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    };
    let replace = [
        (&|path: &std::path::Path| fs::write(path, "# roots of clients").expect("written"))
            as &dyn Fn(&std::path::Path),
        &fifo,
        &|path| std::os::unix::fs::symlink("/dev/zero", path).expect("a link"),
        &|path| fs::write(path, vec![b'#'; (4 << 20) + 1]).expect("written"),
    ];
    for (failed, put) in (1..).zip(replace) {
        fs::remove_file(&path).expect("removed");
        put(&path);
        assert_eq!(
            (setting.look(), setting.look(), setting.look()),
            ((true, 0, failed), (true, 0, failed), (true, 0, failed))
        );
    }
}

#[test]
fn every_file_that_is_missing_is_told() {
    let setting = Setting::new(ClientAuth::Required);
    for name in ["crt", "key", "ca"] {
        fs::remove_file(setting.dir.path().join(name)).expect("removed");
    }
    let errors = Tls::open(setting.tls.config.clone()).map(drop).expect_err("missing");
    let told: Vec<_> = errors.0.iter().map(|error| error.file).collect();
    assert_eq!(told, [TlsFile::Cert, TlsFile::Key, TlsFile::ClientCa]);
    assert_eq!(errors.to_string().matches("cannot read it: no such file or directory").count(), 3, "{errors}");
}

#[test]
fn an_error_says_what_to_do_and_nothing_of_the_file() {
    let setting = Setting::new(ClientAuth::Required);
    let config = setting.tls.config.clone();
    let open = || Tls::open(config.clone()).map(drop).expect_err("broken").to_string();
    setting.write("key", &pair().1);
    assert!(open().ends_with("it is not the key of the certificate; use the key that was made for the certificate"));
    setting.write("key", "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n");
    assert!(!open().contains("hunter2"), "{}", open());
    fs::remove_file(&config.key).expect("removed");
    assert!(open().starts_with("private key ") && open().contains("correct the path"), "{}", open());
}

/// A certificate and its key that are valid between two years.
fn pair_between(begin: i32, end: i32) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    (params.not_before, params.not_after) = (rcgen::date_time_ymd(begin, 1, 1), rcgen::date_time_ymd(end, 1, 1));
    (params.self_signed(&key).expect("a certificate").pem(), key.serialize_pem())
}

#[test]
fn an_expired_certificate_is_a_fault_and_one_that_ends_soon_a_warning() {
    let setting = Setting::new(ClientAuth::Required);
    assert!(setting.tls.certificate_seconds_left() > 365 * 86_400);
    assert!(!Lifetime::of(&setting.tls.files.lock().identity).is_nearly_over());
    let (cert, key) = pair_between(1990, 2020);
    setting.write("crt", &cert);
    setting.write("key", &key);
    assert_eq!(setting.look(), (true, 0, 1), "the old certificate stays");
    let fault = Tls::open(setting.tls.config.clone()).err().expect("a fault").to_string();
    assert!(fault.contains("it expired at 2020-01-01T00:00:00Z; renew it, or correct the clock"), "{fault}");
    // Decades, of which a year is left at most.
    let year = 1970 + i32::try_from(UnixTime::now().as_secs() / 31_556_952).expect("a year");
    let (cert, key) = pair_between(1971, year + 1);
    setting.write("crt", &cert);
    setting.write("key", &key);
    assert_eq!(setting.look(), (true, 1, 1));
    assert!(Lifetime::of(&setting.tls.files.lock().identity).is_nearly_over());
    setting.look();
    assert!(setting.tls.files.lock().warned.is_some());
}
