//! TLS between peers. Each host has a key of its own; there are no certificates by others. The
//! key's fingerprint, its *pin*, is in the host's record, and a peer that presents another key is
//! refused ([`crate::calls`]). The handshake proves only that the other end has
//! the key that it presents.
//!
//! Raw public keys (RFC 7250), TLS 1.3, both ends.

use parking_lot::Mutex;
use rekindle_env::{BoxFuture, Stream};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// The hash of a public key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let hash = blake3::Hash::from_hex(text).map_err(|_| "it is no hash".to_owned())?;
        Ok(Fingerprint(*hash.as_bytes()))
    }
}

/// A key of this host, ready for use.
#[derive(Clone)]
pub struct Key {
    certified: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
}

impl Key {
    /// Makes a new key, and returns it as PKCS #8, for a private file.
    pub fn generate() -> Result<Vec<u8>, String> {
        let random = ring::rand::SystemRandom::new();
        let key = ring::signature::Ed25519KeyPair::generate_pkcs8(&random);
        key.map(|key| key.as_ref().to_vec()).map_err(|_| "no key can be made here".to_owned())
    }

    /// Reads a key.
    pub fn read(pkcs8: &[u8]) -> Result<Key, String> {
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.to_vec()));
        let damaged = |_| "it is no key of this host".to_owned();
        let signing = provider().key_provider.load_private_key(der).map_err(damaged)?;
        let public = signing.public_key().ok_or("it is no key of this host")?;
        let fingerprint = fingerprint(public.as_ref());
        let certificate = CertificateDer::from(public.as_ref().to_vec());
        let certified = Arc::new(CertifiedKey::new(vec![certificate], signing));
        Ok(Key { certified, fingerprint })
    }

    /// Its fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

fn fingerprint(public: &[u8]) -> Fingerprint {
    Fingerprint(*blake3::hash(public).as_bytes())
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// What the other end of a connection has proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Secured {
    /// The key that it has; `None`: the connection is not encrypted.
    pub key: Option<Fingerprint>,
    /// A secret that only the two ends of this connection know.
    pub binding: [u8; 32],
}

/// How connections between peers are secured.
#[derive(Clone)]
pub enum Channel {
    /// Not at all: for simulations, whose random numbers must be their own.
    Plain,
    Tls(Arc<Tls>),
}

/// TLS with the present key of this host.
pub struct Tls(Mutex<Both>);

#[derive(Clone)]
struct Both {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// TLS with this key.
    pub fn new(key: &Key) -> Result<Arc<Tls>, String> {
        Ok(Arc::new(Tls(Mutex::new(Both::new(key)?))))
    }

    /// Uses another key for connections from now on.
    pub fn rotate(&self, key: &Key) -> Result<(), String> {
        *self.0.lock() = Both::new(key)?;
        Ok(())
    }
}

impl Both {
    fn new(key: &Key) -> Result<Both, String> {
        let provider = provider();
        let verifier = Arc::new(AnyKey(provider.signature_verification_algorithms));
        let told = |error: Error| format!("TLS cannot be used: {error}");
        let resolver =
            rustls::client::AlwaysResolvesClientRawPublicKeys::new(key.certified.clone());
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(told)?
            .dangerous()
            .with_custom_certificate_verifier(verifier.clone())
            .with_client_cert_resolver(Arc::new(resolver));
        client.enable_sni = false;
        // A resumed connection would go on with a key that was replaced since.
        client.resumption = rustls::client::Resumption::disabled();
        let resolver =
            rustls::server::AlwaysResolvesServerRawPublicKeys::new(key.certified.clone());
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(told)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(resolver));
        server.send_tls13_tickets = 0;
        Ok(Both { client: Arc::new(client), server: Arc::new(server) })
    }
}

impl Channel {
    /// Secures a connection that this end has begun.
    pub(crate) fn connect(
        &self,
        stream: Box<dyn Stream>,
    ) -> BoxFuture<'_, io::Result<(Box<dyn Stream>, Secured)>> {
        Box::pin(async move {
            let Channel::Tls(tls) = self else { return Ok((stream, Secured::PLAIN)) };
            let peer = stream.peer();
            let config = tls.0.lock().client.clone();
            let name = ServerName::try_from("peer").expect("a name");
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            finish(peer, TlsStream::Client(stream))
        })
    }

    /// Secures a connection that the other end has begun.
    pub(crate) fn accept(
        &self,
        stream: Box<dyn Stream>,
    ) -> BoxFuture<'_, io::Result<(Box<dyn Stream>, Secured)>> {
        Box::pin(async move {
            let Channel::Tls(tls) = self else { return Ok((stream, Secured::PLAIN)) };
            let peer = stream.peer();
            let config = tls.0.lock().server.clone();
            let stream = TlsAcceptor::from(config).accept(stream).await?;
            finish(peer, TlsStream::Server(stream))
        })
    }
}

impl Secured {
    const PLAIN: Secured = Secured { key: None, binding: [0; 32] };
}

fn finish(
    peer: String,
    stream: TlsStream<Box<dyn Stream>>,
) -> io::Result<(Box<dyn Stream>, Secured)> {
    let public = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let key = Some(fingerprint(public.ok_or(io::ErrorKind::InvalidData)?.as_ref()));
    let (binding, label) = ([0; 32], b"EXPORTER-rekindle-peer");
    let binding = match &stream {
        TlsStream::Client(stream) => {
            stream.get_ref().1.export_keying_material(binding, label, None)
        }
        TlsStream::Server(stream) => {
            stream.get_ref().1.export_keying_material(binding, label, None)
        }
    };
    let binding = binding.map_err(io::Error::other)?;
    Ok((Box::new(Secure { peer, stream: Box::new(stream) }), Secured { key, binding }))
}

/// A stream in TLS.
struct Secure {
    peer: String,
    stream: Box<TlsStream<Box<dyn Stream>>>,
}

impl Stream for Secure {
    fn peer(&self) -> String {
        self.peer.clone()
    }

    fn is_closed(&self) -> bool {
        self.stream.get_ref().0.is_closed()
    }
}

impl AsyncRead for Secure {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Secure {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.stream).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(context)
    }
}

/// Accepts any key whose owner signs the handshake. Which key may be the one of which node is
/// decided when the other end has said which node it is.
#[derive(Debug)]
struct AnyKey(WebPkiSupportedAlgorithms);

impl AnyKey {
    fn verify(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.0)
    }
}

/// TLS 1.2 is not spoken.
fn never() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("peers speak TLS 1.3".to_owned()))
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        never()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        never()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, key, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
