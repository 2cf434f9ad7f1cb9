//! Sockets: where the service may be found, and how it takes the place of a dead one without ever taking a live one's.
//!
//! ```text
//!  unix   lock folder ─► who answers there? ─ nobody, stale ─► unlink ─► bind ─► chmod 0660 ─► listen ─► unlock folder
//!                              └─ somebody ─► refused
//!  tcp    loopback in plain; any address with TLS
//! ```
//! The folder's lock (`flock`, held for a few system calls) keeps two starting servers from both finding a stale
//! socket and unlinking each other's fresh one. The mode is set before `listen`, so there is no moment at which a
//! stranger could connect.

use std::fs::{DirBuilder, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_core::limits::{MAX_SOCKET_PATH_BYTES, SOCKET_FOLDER_LOCK_WAIT};
use rustix::fs::{FlockOperation, Mode};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connections that may wait for `accept`.
const BACKLOG: i32 = 1_024;
/// Between two tries to lock the folder.
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// A Unix socket that this process listens on; its file goes when this does.
#[derive(Debug)]
pub(crate) struct UnixSocket {
    path: PathBuf,
    /// Device and inode of the file, so that only our own is ever removed.
    identity: (u64, u64),
    listener: Option<UnixListener>,
}

impl UnixSocket {
    /// Listens at `path`, mode 0660, making its folder (0700) where there is none.
    ///
    /// # Errors
    /// The path is too long, is something else than a socket, is served by a live server, or cannot be made.
    pub(crate) fn bind(path: &Path) -> Result<Self, Problems> {
        let failed = |error: &io::Error| problem(path, error.to_string(), "give a path in a folder that you may write");
        let length = path.as_os_str().len();
        if length > MAX_SOCKET_PATH_BYTES {
            let rule = format!("a socket path has at most {MAX_SOCKET_PATH_BYTES} bytes, this one has {length}");
            return Err(problem(path, rule, "give a shorter one, under /run or /tmp"));
        }
        let folder = match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
            None => return Err(problem(path, "is no path of a socket", "name a file in a folder")),
        };
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|error| failed(&error))?;
        let _locked = lock(folder).map_err(|error| failed(&error))?;
        clear_stale(path)?;

        let listener = bind_and_listen(path).map_err(|error| failed(&error.into()))?;
        let file = path.symlink_metadata().map_err(|error| failed(&error))?;
        Ok(Self { path: path.to_owned(), identity: (file.dev(), file.ino()), listener: Some(listener) })
    }

    /// Hands the listener out, once.
    pub(crate) fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let ours = self.path.symlink_metadata().is_ok_and(|file| (file.dev(), file.ino()) == self.identity);
        if ours {
            // Failing to remove it leaves a stale socket, which the next start replaces.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn bind_and_listen(path: &Path) -> rustix::io::Result<UnixListener> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(UnixListener::from(socket))
}

/// Locks a folder against other starting servers; unlocked when the file is dropped.
fn lock(folder: &Path) -> io::Result<File> {
    let file = File::open(folder)?;
    let tries = SOCKET_FOLDER_LOCK_WAIT.as_millis() / LOCK_RETRY.as_millis();
    for _ in 0..tries {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::park_timeout(LOCK_RETRY),
            result => return result.map(|()| file).map_err(Into::into),
        }
    }
    Err(io::Error::other("another server is starting in this folder"))
}

/// Removes the socket of a dead server, if there is one.
fn clear_stale(path: &Path) -> Result<(), Problems> {
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(problem(path, error.to_string(), "give a path that you may read")),
    };
    if !found.file_type().is_socket() {
        return Err(problem(path, "is there already, and is no socket", "give another path, or move that file away"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| problem(path, error.to_string(), "remove the stale socket"))
        }
        // Answered, or too busy to answer, or not ours to ask: somebody is there.
        _ => Err(problem(path, "a live server listens there", "stop that server, or give another path")),
    }
}

/// Listens for gRPC at `address` (`127.0.0.1:7411`, `[::1]:0`, `localhost:7411`), which must be loopback unless it speaks
/// TLS.
///
/// # Errors
/// The address is malformed, not loopback and without TLS, or in use.
pub(crate) fn bind_grpc(address: &str, tls: bool) -> Result<TcpListener, Problems> {
    let parsed = parse("listen", address)?;
    if !tls && !parsed.ip().is_loopback() {
        return Err(Problems::one(Problem::new(
            "listen",
            address,
            "an address that is not loopback needs certificates on both sides",
            "give --tls-cert, --tls-key and --tls-client-ca; or use 127.0.0.1, [::1] or the Unix socket",
        )));
    }
    bind("listen", parsed)
}

/// Listens for plain HTTP at any address: it only ever serves health and metrics.
///
/// # Errors
/// The address is malformed or in use.
pub(crate) fn bind_http(address: &str) -> Result<TcpListener, Problems> {
    bind("http", parse("http", address)?)
}

fn parse(field: &str, address: &str) -> Result<SocketAddr, Problems> {
    if let Some(port) = address.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    address.parse().map_err(|_| {
        Problems::one(Problem::new(field, address, "must be ADDRESS:PORT", "write it as 127.0.0.1:7411 or [::1]:7411"))
    })
}

fn bind(field: &str, address: SocketAddr) -> Result<TcpListener, Problems> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| {
        let (rule, remedy) = if error.kind() == io::ErrorKind::AddrInUse {
            ("the port is in use".to_owned(), "stop what listens there, or give another port (0 picks a free one)")
        } else {
            (error.to_string(), "give an address of this machine and a port you may use")
        };
        Problems::one(Problem::new(field, address, rule, remedy))
    })
}

fn problem(path: &Path, rule: impl Into<String>, remedy: &str) -> Problems {
    Problems::one(Problem::new("socket", path.display(), rule, remedy))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn rule(result: Result<UnixSocket, Problems>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn a_socket_is_for_owner_and_group_and_its_new_folder_for_the_owner() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("new/deep/h.sock");
        let _socket = UnixSocket::bind(&path).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o660, 0o700));
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_and_goes_with_its_owner() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("h.sock");
        drop(UnixListener::bind(&path).unwrap()); // closed, and its file still there
        assert!(path.exists());
        let socket = UnixSocket::bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_servers_socket_is_refused_and_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("h.sock");
        let _live = UnixSocket::bind(&path).unwrap();
        assert!(rule(UnixSocket::bind(&path)).contains("a live server listens there"));
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn another_servers_socket_is_not_removed_at_the_end() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("h.sock");
        let first = UnixSocket::bind(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = UnixSocket::bind(&path).unwrap();
        drop(first);
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_path_one_byte_too_long_is_refused_with_the_limit() {
        let home = tempfile::tempdir().unwrap();
        let stem = home.path().as_os_str().len() + 1;
        let path = |length: usize| home.path().join("s".repeat(length - stem));
        assert!(rule(UnixSocket::bind(&path(108))).contains("at most 107 bytes, this one has 108"));
        UnixSocket::bind(&path(107)).unwrap();
    }

    #[test]
    fn a_file_in_the_way_is_refused_and_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("notes.txt");
        std::fs::write(&path, "keep me").unwrap();
        assert!(rule(UnixSocket::bind(&path)).contains("is no socket"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "keep me");
    }

    #[test]
    fn only_loopback_is_served_without_mtls() {
        for address in ["0.0.0.0:0", "[::]:0", "10.0.0.1:0"] {
            let refusal = bind_grpc(address, false).unwrap_err().to_string();
            assert!(refusal.contains("needs certificates on both sides"), "{refusal}");
        }
        bind_grpc("0.0.0.0:0", true).unwrap();
        bind_grpc("127.0.0.1:0", false).unwrap();
        bind_grpc("localhost:0", false).unwrap();
        for address in ["7411", "host:1", "127.0.0.1:99999", ""] {
            assert!(bind_grpc(address, false).is_err(), "{address}");
        }
    }

    #[test]
    fn a_port_in_use_is_named() {
        let listener = bind_http("127.0.0.1:0").unwrap();
        let taken = listener.local_addr().unwrap().to_string();
        let refusal = bind_http(&taken).unwrap_err().to_string();
        assert!(refusal.contains(&format!("http is {taken}: the port is in use")), "{refusal}");
    }
}
