//! Certificates for one test, and TLS clients that use them.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, SanType,
    SerialNumber, string::Ia5String,
};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, DEFAULT_VERSIONS, RootCertStore, SupportedProtocolVersion,
        crypto::aws_lc_rs,
        pki_types::{PrivateKeyDer, ServerName},
    },
};
use tonic::transport::{Channel, Endpoint, Error, Uri};

/// An authority that issues certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// The public key of an example in RFC 7517. With a key, rules apply, and callers without a token are `anonymous`.
pub(crate) const KEYS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "kid": "1",
    "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4", "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;

/// A certificate with its key.
pub(crate) struct Leaf {
    pub(crate) cert: rcgen::Certificate,
    pub(crate) key: KeyPair,
}

/// The name in a certificate.
pub(crate) enum Name<'a> {
    Spiffe(&'a str),
    Common(&'a str),
}

/// The TLS configuration of a client: trusted roots, certificate and protocols.
#[derive(Clone)]
pub(crate) struct TlsClient(pub(crate) ClientConfig);

/// Files in a directory that lasts as long as the test.
pub(crate) struct Files(TempDir);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A server on 127.0.0.1.
    pub(crate) fn server(&self, serial: u64) -> Leaf {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
        params.serial_number = Some(SerialNumber::from(serial));
        self.issue(params)
    }

    pub(crate) fn client(&self, name: &Name<'_>) -> Leaf {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        match name {
            Name::Spiffe(id) => {
                params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(*id).unwrap())];
            }
            Name::Common(name) => params.distinguished_name.push(DnType::CommonName, *name),
        }
        self.issue(params)
    }

    fn issue(&self, params: CertificateParams) -> Leaf {
        let key = KeyPair::generate().unwrap();
        Leaf { cert: params.signed_by(&key, &self.0).unwrap(), key }
    }
}

impl TlsClient {
    pub(crate) fn new(trusts: &Authority, shows: Option<&Leaf>) -> Self {
        Self::of_version(DEFAULT_VERSIONS, trusts, shows)
    }

    pub(crate) fn of_version(
        versions: &[&'static SupportedProtocolVersion],
        trusts: &Authority,
        shows: Option<&Leaf>,
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(trusts.0.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_protocol_versions(versions).unwrap().with_root_certificates(roots);
        let mut config = match shows {
            Some(Leaf { cert, key }) => {
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![cert.der().clone()], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self(config)
    }

    /// Only the handshake, from the view of the client.
    pub(crate) async fn handshake(&self, server: SocketAddr) -> std::io::Result<TlsStream<TcpStream>> {
        let socket = TcpStream::connect(server).await?;
        let name = ServerName::IpAddress(server.ip().into());
        TlsConnector::from(Arc::new(self.0.clone())).connect(name, socket).await
    }

    /// A channel on a new connection.
    pub(crate) async fn channel(&self, server: SocketAddr) -> Result<Channel, Error> {
        let client = self.clone();
        let connect = move |_: Uri| {
            let client = client.clone();
            async move { client.handshake(server).await.map(TokioIo::new) }
        };
        let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
        endpoint.connect_with_connector(tower::service_fn(connect)).await
    }
}

impl Files {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// The certificate of a server, and the same authority for its clients.
    pub(crate) fn of_server() -> (Self, Authority) {
        let (files, ca) = (Self::new(), Authority::new("ca"));
        files.put_leaf("server", &ca.server(1));
        files.put("clients.crt", &ca.pem());
        (files, ca)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces a file as a mounted secret is replaced: its name is a link to a version of it, and the link is swapped.
    pub(crate) fn put(&self, name: &str, text: &str) {
        let (_, version) = tempfile::NamedTempFile::new_in(self.0.path()).unwrap().keep().unwrap();
        std::fs::write(&version, text).unwrap();
        let new = self.path("new");
        std::os::unix::fs::symlink(version, &new).unwrap();
        std::fs::rename(new, self.path(name)).unwrap();
    }

    pub(crate) fn put_leaf(&self, name: &str, leaf: &Leaf) {
        self.put(&format!("{name}.crt"), &leaf.cert.pem());
        self.put(&format!("{name}.key"), &leaf.key.serialize_pem());
    }

    /// The section `server.tls` of a configuration, with the files `server.crt` and `server.key`.
    ///
    /// `clients` is the value of `client_auth`. If it is given, `clients.crt` is the client CA.
    pub(crate) fn tls_section(&self, clients: Option<&str>) -> String {
        let path = |name: &str| toml_string(&self.path(name));
        let clients = clients.map(|auth| format!("client_ca = {}\nclient_auth = \"{auth}\"\n", path("clients.crt")));
        format!(
            "[server.tls]\ncert = {}\nkey = {}\nreload = \"100ms\"\n{}",
            path("server.crt"),
            path("server.key"),
            clients.unwrap_or_default()
        )
    }
}

pub(crate) fn toml_string(path: &Path) -> String {
    format!("{:?}", path.to_str().unwrap())
}
