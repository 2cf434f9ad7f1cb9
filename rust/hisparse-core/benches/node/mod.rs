//! A node as long use leaves it: filled to 90 % with leases of 1 to 400 pages, two thirds of whose pages are published, and
//! then churned, so that its free space is broken up and full of cached prefixes.

use hisparse_core::env::{Entropy, Moment};
use hisparse_core::ledger::{
    AdmitRequest, CommitBy, Epoch, LeaseId, Ledger, LedgerConfig, Length, NodeCapacity, SessionId,
};
use hisparse_core::pages::PageHash;

/// Xorshift.
pub(crate) struct Random(pub(crate) u64);

impl Entropy for Random {
    fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A ledger with its leases.
pub(crate) struct Node {
    pub(crate) ledger: Ledger,
    pub(crate) leases: Vec<LeaseId>,
    random: Random,
}

impl Node {
    /// A pool of so many pages, filled and churned.
    pub(crate) fn churned(pages: u64) -> Self {
        let capacity = NodeCapacity { request_slots: 1 << 20, ..NodeCapacity::of_host_pages(pages, 1 << 20) };
        let ledger = Ledger::new(LedgerConfig::new(capacity), Epoch::FIRST, &mut Random(1)).expect("a possible node");
        let mut node = Self { ledger, random: Random(7), leases: Vec::new() };
        let mut held = 0;
        while held < pages * 9 / 10 && node.admit() {
            let counts = node.ledger.pages().counts();
            held = counts.private + counts.held;
        }
        (0..20_000).for_each(|_| node.replace_one());
        node
    }

    /// Ends leases until another one fits.
    pub(crate) fn replace_one(&mut self) {
        self.release();
        while !self.admit() {
            self.release();
        }
    }

    fn admit(&mut self) -> bool {
        let pages = 1 + self.random.next_u64() % 400;
        let request = AdmitRequest { length: Length::Pages(pages), ..AdmitRequest::new("", 1, 0) };
        let Ok(granted) = self.ledger.admit(&request, Moment::ORIGIN) else { return false };
        let (id, epoch) = (granted.lease.id.expect("a grant has an id"), self.ledger.epoch());
        let by = CommitBy::Session(SessionId(1));
        self.ledger.commit(id, None, epoch, by, Moment::ORIGIN).expect("it was just granted");
        let hash = |_| -> PageHash {
            let mut hash = [0; 32];
            hash.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&self.random.next_u64().to_le_bytes()));
            hash
        };
        let hashes: Vec<PageHash> = (0..pages * 2 / 3).map(hash).collect();
        self.ledger.publish(id, epoch, 0, &hashes, Moment::ORIGIN).expect("they are its full pages");
        self.leases.push(id);
        true
    }

    fn release(&mut self) {
        let at = usize::try_from(self.random.next_u64()).unwrap_or(0) % self.leases.len();
        let id = self.leases.swap_remove(at);
        self.ledger.release(id, None, Some(SessionId(1)), Moment::ORIGIN).expect("it is its holder's");
    }
}

/// CPU and cores, for the result.
pub(crate) fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|(_, name)| name);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!("{}, {cores} cores", model.unwrap_or("unknown CPU"))
}
