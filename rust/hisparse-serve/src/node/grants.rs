//! What the node says of whether it grants, for health, probes and people.

use std::borrow::Cow;

use hisparse_core::size::show_size;
use hisparse_core::units::Bytes;
use tokio::sync::watch;

use super::standing::Standing;
use super::{Node, State};
use crate::journal::Journal;
use crate::memory::Hosting;
use crate::pool_bytes::PoolBytes;

impl Node {
    /// Told when the node begins or ceases to grant.
    pub(crate) fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    /// How it stands now.
    pub(crate) fn stands(&self) -> Standing {
        if self.state.is_poisoned() { Standing::Broken } else { *self.standing.borrow() }
    }

    /// Why only a new start helps; `None` while that is not so.
    pub(crate) fn not_alive(&self) -> Option<Cow<'static, str>> {
        self.not_ready().filter(|_| self.stands() == Standing::Broken)
    }

    /// Why the node grants nothing; `None` while it does.
    pub(crate) fn not_ready(&self) -> Option<Cow<'static, str>> {
        match self.stands() {
            Standing::Broken => Some("a decision failed half-way: restart the service".into()),
            Standing::Granting => None,
            Standing::Draining => Some("draining".into()),
            Standing::Stopping => Some("stopping".into()),
            Standing::Learning => {
                Some("recovering: what an earlier start granted is unknown, and has yet to end".into())
            }
            Standing::Faulted => Some("the ledger found a fault in itself: dump it, then restart the service".into()),
            Standing::Making => Some(format!("making the host pool: {}", self.progress()).into()),
            Standing::Elsewhere => {
                Some("waiting for the engine that has the pool to hand it back; stop that engine to begin anew".into())
            }
            Standing::Failed => Some("the host pool could not be made: see the service's log".into()),
        }
    }

    /// What an operator should know of it: of the pool's pages, and of a journal that is not written any more.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes = self.hosting().and_then(Hosting::made).map(|made| made.notes.clone()).unwrap_or_default();
        notes.extend(self.journal.as_ref().and_then(Journal::lost));
        notes
    }

    /// How far the pool's bytes are, in words.
    fn progress(&self) -> String {
        let shown = |bytes| show_size(Bytes::new(bytes));
        let progress = self.hosting.as_ref().map(Hosting::progress);
        progress.map_or_else(String::new, |now| format!("{} of {}", shown(now.made_bytes), shown(now.total_bytes)))
    }
}

impl State {
    /// Why this state grants nothing; the gravest reason.
    pub(super) fn standing(&self) -> Standing {
        if self.stopping {
            Standing::Stopping
        } else if self.ledger.fault().is_some() {
            Standing::Faulted
        } else if self.pool == PoolBytes::Making {
            Standing::Making
        } else if self.pool == PoolBytes::Elsewhere {
            Standing::Elsewhere
        } else if self.pool == PoolBytes::Failed {
            Standing::Failed
        } else if self.learning_until.is_some() {
            Standing::Learning
        } else if self.ledger.is_draining() {
            Standing::Draining
        } else {
            Standing::Granting
        }
    }
}
