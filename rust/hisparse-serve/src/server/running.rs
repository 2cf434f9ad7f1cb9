//! The handle of a server that runs: ask where it is and how it does, stop it, wait for it.
//!
//! A handle is its owner's: threads do not survive a fork, so in a forked child it is an empty shell, and dropping it
//! there leaves the parent's sockets and threads alone.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hisparse_core::error::{Problem, Problems};
use hisparse_mem::pool::Progress;
use hisparse_mem::report::PoolReport;

use crate::memory::Hosting;
use crate::node::{Node, Standing};
use crate::notices::Notices;
use crate::shutdown::{Ended, StopSwitch};

/// A server that answers. In a forked child none does: there it counts as stopped, and asking or waiting does nothing.
#[derive(Debug)]
pub struct Running {
    /// The process that its threads run in.
    pub(super) owner: u32,
    pub(super) addresses: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) notices: Arc<Notices>,
    pub(super) node: Arc<Node>,
    pub(super) switch: Arc<StopSwitch>,
    pub(super) ended: Arc<Ended>,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Where it listens: `unix:/run/h.sock`, `127.0.0.1:7411`, `http://127.0.0.1:7412`, with the ports it got.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// What was amiss at the start and is mended; for the operator to read.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What peers did that they should not, each once, and what went wrong with the service itself: for the operator to
    /// read.
    pub fn notices(&self) -> Vec<String> {
        if self.is_ours() { self.notices.lines() } else { Vec::new() }
    }

    /// Whether it grants.
    pub fn ready(&self) -> bool {
        self.is_ours() && self.node.not_ready().is_none()
    }

    /// Waits until the pool's pages are made, at most so long: `None` while they still are being made, and why there
    /// is no pool where they could not be had. Where the node owns no bytes there is nothing to wait for.
    pub fn made(&self, longest: Duration) -> Option<Result<(), Problems>> {
        if !self.is_ours() {
            let remedy = "start a server after the fork";
            let problem = Problem::new("server", self.owner, "runs in the process that started it", remedy);
            return Some(Err(Problems::one(problem)));
        }
        self.node.hosting().map_or(Some(Ok(())), |hosting| hosting.outcome(longest))
    }

    /// How far making them is; `None` where the node owns no bytes.
    pub fn progress(&self) -> Option<Progress> {
        self.node.hosting().filter(|_| self.is_ours()).map(Hosting::progress)
    }

    /// What the pool became; `None` where the node owns no bytes, and until they are made.
    pub fn pool(&self) -> Option<&PoolReport> {
        self.node.hosting().filter(|_| self.is_ours()).and_then(Hosting::made)
    }

    /// Whether it was told to stop.
    pub fn stopping(&self) -> bool {
        !self.is_ours() || *self.node.standing().borrow() == Standing::Stopping
    }

    /// Asks it to stop; calls may finish for `grace`. Asked again, it stops at once. Returns immediately.
    pub fn stop(&self, grace: Duration) {
        if self.is_ours() {
            self.switch.ask(grace);
        }
    }

    /// Waits for its end, at most so long (`None`: for ever); whether it has ended.
    pub fn wait(&self, longest: Option<Duration>) -> bool {
        !self.is_ours() || self.ended.wait(longest)
    }

    /// Waits for its end.
    pub fn join(mut self) {
        self.finish();
    }

    /// Whether this is the process that it runs in. Its locks are not to be touched in another one: a thread that no
    /// longer exists may hold them.
    fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    fn finish(&mut self) {
        if !self.is_ours() {
            // Never the last reference: what these drop is the parent's to drop.
            std::mem::forget((Arc::clone(&self.node), Arc::clone(&self.switch), Arc::clone(&self.ended)));
            std::mem::forget(Arc::clone(&self.notices));
            std::mem::forget(self.thread.take());
            return;
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed by its own thread, and the sockets are gone with it.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    /// Stops at once and waits for it: no thread outlives the handle.
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop(Duration::ZERO);
            self.finish();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use hisparse_core::ledger::NodeCapacity;

    use super::super::{Config, Server};
    use super::*;
    use crate::node::NodeConfig;

    #[test]
    fn a_handle_in_another_process_neither_stops_the_server_nor_waits_for_it() {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("h.sock");
        let node = NodeConfig::of_capacity("test", NodeCapacity::of_host_pages(10, 4));
        let mut running = Server::start(Config { socket: Some(socket.clone()), ..Config::new(node) }).unwrap();
        assert!(running.ready() && !running.stopping());
        let (owner, ended) = (running.owner, Arc::clone(&running.ended));
        running.owner = owner.wrapping_add(1); // as a forked child sees it
        assert!(!running.ready() && running.stopping() && running.wait(None));
        assert!(running.made(Duration::ZERO).unwrap().unwrap_err().to_string().contains("after the fork"));
        running.stop(Duration::ZERO);
        drop(running);
        assert!(!ended.wait(Some(Duration::from_millis(200))), "it ended");
        UnixStream::connect(&socket).unwrap();
    }
}
