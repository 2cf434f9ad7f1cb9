//! A watcher and its stream: it is sent differences, one at a time, and may be slow to read them.
//!
//! ```text
//!  change ─► differs from what was sent? ─► buffer of one ─► reader, which adds it to what it has
//! ```
//! What it must hold: numbers only grow, and a reader that has taken everything has what the node shows.

use hisparse_core::ledger::{Capacity, Epoch, PoolState};

use crate::audit::{Checked, ensure};

#[derive(Debug, Default)]
pub(crate) struct Watcher {
    /// What was put into the buffer last, read or not.
    sent: Option<Capacity>,
    buffer: Option<Delta>,
    has: Vec<PoolState>,
    at: Option<(Epoch, u64)>,
    pub(crate) messages: u64,
}

#[derive(Debug)]
struct Delta {
    at: (Epoch, u64),
    pools: Vec<PoolState>,
}

impl Watcher {
    /// The node's side: skips what carries the number it has sent, and while the buffer is full.
    pub(crate) fn changed(&mut self, now: &Capacity) {
        let known = self.sent.as_ref().filter(|sent| sent.epoch == now.epoch);
        if self.buffer.is_some() || known.is_some_and(|sent| sent.sequence == now.sequence) {
            return;
        }
        let differs = |pool: &&PoolState| known.is_none_or(|sent| !sent.pools.contains(pool));
        let pools = now.pools.iter().filter(differs).copied().collect();
        self.buffer = Some(Delta { at: (now.epoch, now.sequence), pools });
        self.sent = Some(now.clone());
    }

    /// The reader's side, then the node's again: it takes what there is, and what room in the buffer lets through.
    pub(crate) fn read(&mut self, now: &Capacity) -> Checked {
        for _ in 0..2 {
            if let Some(delta) = self.buffer.take() {
                ensure(self.at.is_none_or(|at| at < delta.at), "watches go forward", || {
                    format!("{:?} after {:?}", delta.at, self.at)
                })?;
                self.at = Some(delta.at);
                self.messages += 1;
                for pool in delta.pools {
                    self.has.retain(|old| old.name != pool.name);
                    self.has.push(pool);
                }
            }
            self.changed(now);
        }
        if let Some(delta) = &self.buffer {
            return ensure(false, "a watcher that reads catches up", || format!("{:?} is left", delta.at));
        }
        self.has.sort_by_key(|pool| pool.name);
        let current = self.at.is_none() || self.has == now.pools;
        ensure(current, "a watcher has what the node shows", || format!("{:?} and {:?}", self.has, now.pools))
    }
}
