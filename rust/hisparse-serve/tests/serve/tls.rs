//! TLS on both sides: whose certificate lets it in, and what a new certificate file does.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hisparse_serve::proto::admission_service_client::AdmissionServiceClient;
use hisparse_serve::proto::{ListLeasesRequest, ReleaseRequest};
use hisparse_serve::{Access, Config, Server, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use tonic::Code;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::{Served, admit, ask, config, refusal};

/// A certificate authority.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate with these names, and its key.
    fn issue(&self, names: &[&str]) -> (String, String) {
        let is_uri = |name: &&str| name.contains("://");
        let dns: Vec<_> = names.iter().filter(|name| !is_uri(name)).map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(dns).unwrap();
        let uris = names.iter().filter(|name| is_uri(name));
        params.subject_alt_names.extend(uris.map(|name| SanType::URI((*name).try_into().unwrap())));
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

fn write(folder: &Path, authority: &Authority) -> TlsFiles {
    let file = |name: &str, text: &str| -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let (certificate, key) = authority.issue(&["localhost"]);
    TlsFiles {
        certificate: file("cert.pem", &certificate),
        key: file("key.pem", &key),
        client_ca: file("ca.pem", &authority.pem),
    }
}

/// A server with TLS on every address of this machine, and its port.
fn serve_tls(authority: &Authority, access: &str) -> (Served, u16) {
    let home = tempfile::tempdir().unwrap();
    let tls = Some(write(home.path(), authority));
    let access = Access::parse(access).unwrap();
    let config = Config { listen: Some("0.0.0.0:0".into()), tls, access, ..config(&home, 100, 10) };
    let running = Server::start(config).unwrap();
    let port = running.addresses().iter().find_map(|address| address.strip_prefix("0.0.0.0:")?.parse().ok()).unwrap();
    (Served { running, home }, port)
}

async fn dial(port: u16, believed: &str, shown: Option<&(String, String)>) -> Result<Channel, tonic::transport::Error> {
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(believed)).domain_name("localhost");
    if let Some((certificate, key)) = shown {
        tls = tls.identity(Identity::from_pem(certificate, key));
    }
    Endpoint::from_shared(format!("https://127.0.0.1:{port}")).unwrap().tls_config(tls).unwrap().connect().await
}

/// Whether this certificate lets one call through.
async fn lets_in(port: u16, believed: &str, shown: Option<&(String, String)>) -> bool {
    match dial(port, believed, shown).await {
        Err(_) => false,
        Ok(channel) => answers(channel).await,
    }
}

async fn answers(channel: Channel) -> bool {
    let release = ReleaseRequest { request_id: "none".into(), ..Default::default() };
    AdmissionServiceClient::new(channel).release(release).await.is_ok()
}

#[tokio::test]
async fn a_certificate_that_the_list_names_has_its_role_and_any_other_is_not_let_in() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (served, port) = serve_tls(&ours, "cert:spiffe://here/router=router, cert:gateway.example=engine@a");
    let router = dial(port, &ours.pem, Some(&ours.issue(&["spiffe://here/router"]))).await.unwrap();
    let lease = admit(&mut AdmissionServiceClient::new(router), ask("r", 64, 0)).await.unwrap();

    let engine = dial(port, &ours.pem, Some(&ours.issue(&["gateway.example"]))).await.unwrap();
    let mut engine = AdmissionServiceClient::new(engine);
    let status = admit(&mut engine, ask("s", 64, 0)).await.unwrap_err();
    assert_eq!((refusal(&status).0, refusal(&status).1.as_str()), (Code::PermissionDenied, "WRONG_ROLE"));
    let seen = engine.list_leases(ListLeasesRequest::default()).await.unwrap().into_inner().leases;
    assert!(seen.is_empty(), "it is held to tenant a, and the lease {} is another's", lease.id);

    for (name, shown) in [
        ("one of our authority that the list does not name", Some(ours.issue(&["stranger.example"]))),
        ("one without names", Some(ours.issue(&[]))),
        ("a listed name signed by another authority", Some(theirs.issue(&["spiffe://here/router"]))),
        ("none at all", None),
    ] {
        assert!(!lets_in(port, &ours.pem, shown.as_ref()).await, "{name}");
    }
    let plain = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap().timeout(Duration::from_secs(2));
    assert!(!answers(plain.connect_lazy()).await, "plaintext");
    assert!(
        !lets_in(port, &theirs.pem, Some(&ours.issue(&["spiffe://here/router"]))).await,
        "the client is not fooled"
    );
    let notices = served.running.notices();
    assert!(
        notices.iter().any(|line| line.contains("stranger.example") && line.contains("access list")),
        "{notices:?}"
    );
    assert_eq!(notices.iter().filter(|line| line.contains("no TLS handshake")).count(), 1, "{notices:?}");
    assert!(notices.iter().all(|line| !line.contains("PRIVATE KEY")), "{notices:?}");
}

#[tokio::test]
async fn new_certificate_files_count_for_new_connections_and_broken_ones_change_nothing() {
    let (old, new) = (Authority::new(), Authority::new());
    let (served, port) = serve_tls(&old, "cert:router.example=router");
    let before = dial(port, &old.pem, Some(&old.issue(&["router.example"]))).await.unwrap();
    std::fs::write(served.home.path().join("cert.pem"), "half a file").unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(lets_in(port, &old.pem, Some(&old.issue(&["router.example"]))).await, "what was there still serves");
    write(served.home.path(), &new);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    assert!(lets_in(port, &new.pem, Some(&new.issue(&["router.example"]))).await);
    assert!(!lets_in(port, &old.pem, Some(&old.issue(&["router.example"]))).await, "the old authority is gone");
    admit(&mut AdmissionServiceClient::new(before), ask("r", 64, 0)).await.unwrap();
}

#[test]
fn everything_wrong_with_tls_is_said_before_anything_is_bound() {
    let home = tempfile::tempdir().unwrap();
    let authority = Authority::new();
    let files = write(home.path(), &authority);
    let start = |tls: TlsFiles, access: &str, listen: Option<&str>| {
        let access = Access::parse(access).unwrap();
        let config = Config { tls: Some(tls), access, listen: listen.map(Into::into), ..config(&home, 10, 4) };
        let problems = Server::start(config).map(|_| ()).unwrap_err();
        problems.iter().map(|problem| problem.field.clone()).collect::<Vec<_>>()
    };
    let cert = "cert:a=router";
    assert_eq!(start(files.clone(), "uid:1=router", Some("0.0.0.0:0")), ["access"]);
    assert_eq!(start(files.clone(), cert, None), ["tls_cert"]);
    let missing = |name: &str| home.path().join(name);
    let gone = TlsFiles { certificate: missing("x"), key: missing("y"), client_ca: missing("z") };
    assert_eq!(start(gone, cert, Some("0.0.0.0:0")), ["tls_cert", "tls_client_ca", "tls_key"]);
    let swapped = TlsFiles { certificate: files.key.clone(), key: files.certificate.clone(), ..files.clone() };
    assert_eq!(start(swapped, cert, Some("0.0.0.0:0")), ["tls_cert", "tls_key"]);
    std::fs::write(missing("other.pem"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let other = TlsFiles { key: missing("other.pem"), ..files };
    assert_eq!(start(other, cert, Some("0.0.0.0:0")), ["tls_key"]);
    assert!(!missing("h.sock").exists());
}
