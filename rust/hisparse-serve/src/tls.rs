//! TLS with certificates on both sides: what every TCP listener beyond loopback speaks.
//!
//! ```text
//!  cert.pem, key.pem ─► what we show      ┐
//!                                         ├─► handshake ─► names of the peer's certificate ─► access list
//!  client-ca.pem ─► whom we believe       ┘                (URI names before DNS names)
//!     └─ files change ─► read anew, for connections from then on; a broken file keeps what was there
//! ```
//! TLS 1.3 alone, by rustls, with ring. A client without a certificate of ours gets no connection at all.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hisparse_core::env::{Clock, Moment};
use hisparse_core::error::{Problem, Problems};
use hisparse_core::limits::MAX_PEM_BYTES;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::NoServerSessionStorage;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto, version};
use tokio_rustls::server::TlsStream;

use crate::env::MachineClock;

/// Between two looks at whether the files have changed.
const LOOK: Duration = Duration::from_secs(1);

/// The files of a TLS listener, all PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of clients.
    pub client_ca: PathBuf,
}

impl TlsFiles {
    fn all(&self) -> [&Path; 3] {
        [&self.certificate, &self.key, &self.client_ca]
    }

    /// When each was last written; `None` where one cannot be looked at.
    fn versions(&self) -> [Option<(SystemTime, u64)>; 3] {
        self.all().map(|path| path.metadata().ok().and_then(|file| Some((file.modified().ok()?, file.len()))))
    }

    fn load(&self) -> Result<Arc<ServerConfig>, Problems> {
        let mut problems = Problems::new();
        let certificates = certificates("tls_cert", &self.certificate, &mut problems);
        let authorities = certificates_of_authorities(&self.client_ca, &mut problems);
        let key = read("tls_key", &self.key).and_then(|pem| {
            PrivateKeyDer::from_pem_slice(&pem).map_err(|_| {
                Problem::new("tls_key", self.key.display(), "must hold a private key in PEM", "write it as PKCS#8")
            })
        });
        let key = key.map_err(|problem| problems.push(problem)).ok();
        let (Some(certificates), Some(authorities), Some(key)) = (certificates, authorities, key) else {
            return Err(problems);
        };
        let wrong = |field: &str, path: &Path, error: &dyn std::fmt::Display, remedy: &str| {
            Problems::one(Problem::new(field, path.display(), error.to_string(), remedy))
        };
        let provider = Arc::new(crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities), Arc::clone(&provider));
        let verifier = verifier
            .build()
            .map_err(|error| wrong("tls_client_ca", &self.client_ca, &error, "give the certificate of an authority"))?;
        let versions = ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&version::TLS13]);
        let mut config = versions
            .map_err(|error| wrong("tls_cert", &self.certificate, &error, "use another build"))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(certificates, key)
            .map_err(|error| wrong("tls_key", &self.key, &error, "give the key of the certificate"))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        // Nothing to resume: a connection that resumes an older one would not show its certificate again.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }
}

fn read(field: &str, path: &Path) -> Result<Vec<u8>, Problem> {
    let problem =
        |rule: String| Problem::new(field, path.display(), rule, "give a PEM file that this process may read");
    let file = path.metadata().map_err(|error| problem(error.to_string()))?;
    if !file.is_file() || file.len() > MAX_PEM_BYTES {
        return Err(problem(format!("must be a file of at most {MAX_PEM_BYTES} bytes")));
    }
    std::fs::read(path).map_err(|error| problem(error.to_string()))
}

fn certificates(field: &str, path: &Path, problems: &mut Problems) -> Option<Vec<CertificateDer<'static>>> {
    let found = read(field, path).and_then(|pem| {
        let all = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
        all.ok().filter(|all| !all.is_empty()).ok_or_else(|| {
            Problem::new(field, path.display(), "must hold certificates in PEM", "write -----BEGIN CERTIFICATE-----")
        })
    });
    found.map_err(|problem| problems.push(problem)).ok()
}

fn certificates_of_authorities(path: &Path, problems: &mut Problems) -> Option<RootCertStore> {
    let mut store = RootCertStore::empty();
    for certificate in certificates("tls_client_ca", path, problems)? {
        if let Err(error) = store.add(certificate) {
            let remedy = "give the certificate of an authority";
            problems.push(Problem::new("tls_client_ca", path.display(), error.to_string(), remedy));
            return None;
        }
    }
    Some(store)
}

/// What handshakes are made with.
pub(crate) struct Tls {
    files: TlsFiles,
    clock: MachineClock,
    current: Mutex<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    versions: [Option<(SystemTime, u64)>; 3],
    looked: Moment,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive() // never the key
    }
}

impl Tls {
    /// # Errors
    /// Everything wrong with the files.
    pub(crate) fn new(files: TlsFiles, clock: MachineClock) -> Result<Self, Problems> {
        let versions = files.versions();
        let current = Current { config: files.load()?, versions, looked: clock.now() };
        Ok(Self { files, clock, current: Mutex::new(current) })
    }

    /// The certificates as the files have them, looked at once a second at most.
    fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        if now.saturating_since(current.looked) >= LOOK {
            current.looked = now;
            let versions = self.files.versions();
            // Files that are half-way written, or do not fit together, are looked at again.
            if versions != current.versions
                && let Ok(config) = self.files.load()
            {
                (current.config, current.versions) = (config, versions);
            }
        }
        Arc::clone(&current.config)
    }

    /// Makes the handshake; the stream, and the names of the peer's certificate.
    ///
    /// # Errors
    /// The peer speaks no TLS of ours, or shows no certificate that we believe.
    pub(crate) async fn handshake(&self, stream: TcpStream) -> io::Result<(TlsStream<TcpStream>, Vec<String>)> {
        let stream = TlsAcceptor::from(self.config()).accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let shown = shown.ok_or_else(|| io::Error::other("no certificate was shown"))?;
        let names = names(shown)?;
        Ok((stream, names))
    }
}

/// The alternative names of a certificate: URIs, then DNS names. The common name is no name: it has no type.
fn names(certificate: &CertificateDer<'_>) -> io::Result<Vec<String>> {
    let certificate = webpki::EndEntityCert::try_from(certificate).map_err(io::Error::other)?;
    Ok(certificate.valid_uri_names().chain(certificate.valid_dns_names()).map(str::to_owned).collect())
}
