//! The service in a child process, which can be killed as a machine's out-of-memory killer would.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hisparse_core::ledger::NodeCapacity;
use hisparse_serve::{Config, NodeConfig, Server as Service};

use crate::{PAGES, SEATS};

/// Tells the child which socket to serve.
const SOCKET: &str = "HISPARSE_SIM_SERVE";

pub(crate) struct Server(Child);

impl Server {
    /// Starts a child and waits until its socket takes connections.
    pub(crate) fn start(socket: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve_where_a_parent_asks_for_it", "--test-threads=1"])
            .env(SOCKET, socket)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let give_up = Instant::now() + Duration::from_secs(20);
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < give_up, "no server at {}", socket.display());
            std::thread::yield_now();
        }
        Self(child)
    }

    /// SIGKILL, and the wait for its end.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A panic elsewhere leaves no process behind; one that was killed already is no news.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// In the child: serves until it is killed.
pub(crate) fn serve_if_asked() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let node = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(PAGES, SEATS));
    let running = Service::start(Config { socket: Some(socket.into()), ..Config::new(node) }).unwrap();
    // A parent that dies without a kill leaves it a minute.
    running.wait(Some(Duration::from_secs(60)));
}
