//! What the service remembers beside the ledger: which boot, which files, and who was attached.
//!
//! ```text
//!  Note ── appended to the journal ──► applied, one by one, after a restart ──► Remembered ── notes ──► compacted
//! ```

use std::collections::BTreeMap;
use std::fs;

use hisparse_core::layout::pool::PoolLayout;
use hisparse_mem::attach::frame::{Hello, Token};
use hisparse_mem::attach::server::Session;
use hisparse_mem::pool::KeptSegment;
use serde::{Deserialize, Serialize};

/// Sessions that ended and are remembered: all ranks of an engine, a few engines one after the other.
pub(crate) const MOST_DEAD: usize = 256;

/// One thing to remember.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "note", deny_unknown_fields)]
pub(crate) enum Note {
    /// The service began, in this epoch; the machine was booted as this.
    Began { epoch: u64, boot: String },
    /// What follows was decided from here on: milliseconds that the machine had been up.
    At { since_boot_ms: u64 },
    /// The pool is there.
    Pool(KeptPool),
    /// A process attached.
    Opened(KeptSession),
    /// It is gone. A writer's successor may come.
    Closed { session: u64 },
}

/// A pool's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptPool {
    pub(crate) layout: PoolLayout,
    pub(crate) segments: Vec<KeptSegment>,
}

/// A session, without what only its connection knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptSession {
    pub(crate) number: u64,
    pub(crate) hello: Hello,
    pub(crate) uid: u32,
    pub(crate) token: Token,
}

impl KeptSession {
    pub(crate) fn of(session: &Session) -> Self {
        let Session { number, hello, uid, token, .. } = session.clone();
        Self { number, hello: Hello { resume: None, ..hello }, uid, token }
    }
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Remembered {
    pub(crate) epoch: u64,
    pub(crate) boot: String,
    /// The last moment that is told, 0 for none: what follows it was decided less than a [`JOURNAL_TIME_STEP`] later.
    ///
    /// [`JOURNAL_TIME_STEP`]: hisparse_core::limits::JOURNAL_TIME_STEP
    pub(crate) since_boot_ms: u64,
    pub(crate) pool: Option<KeptPool>,
    /// By number; numbers are never used again.
    pub(crate) live: BTreeMap<u64, KeptSession>,
    pub(crate) dead: BTreeMap<u64, KeptSession>,
    pub(crate) last_session: u64,
}

impl Remembered {
    pub(crate) fn apply(&mut self, note: Note) {
        match note {
            Note::Began { epoch, boot } => (self.epoch, self.boot) = (epoch, boot),
            Note::At { since_boot_ms } => self.since_boot_ms = since_boot_ms,
            Note::Pool(pool) => self.pool = Some(pool),
            Note::Opened(session) => {
                self.last_session = self.last_session.max(session.number);
                self.dead.remove(&session.number);
                self.live.insert(session.number, session);
            }
            Note::Closed { session } => {
                if let Some(gone) = self.live.remove(&session) {
                    self.dead.insert(session, gone);
                }
                while self.dead.len() > MOST_DEAD {
                    self.dead.pop_first();
                }
            }
        }
    }

    /// The same in few notes.
    pub(crate) fn notes(&self) -> impl Iterator<Item = Note> + '_ {
        let began = Note::Began { epoch: self.epoch, boot: self.boot.clone() };
        let at = Note::At { since_boot_ms: self.since_boot_ms };
        let dead =
            self.dead.values().flat_map(|gone| [Note::Opened(gone.clone()), Note::Closed { session: gone.number }]);
        let live = self.live.values().cloned().map(Note::Opened);
        [began, at].into_iter().chain(self.pool.clone().map(Note::Pool)).chain(dead).chain(live)
    }
}

/// Names this boot of the machine: memory survives no other. Empty where the system does not say.
pub(crate) fn this_boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use hisparse_mem::attach::frame::Role;

    use super::*;

    fn session(number: u64) -> KeptSession {
        let hello = Hello { protocols: vec![1], role: Role::Writer, engine_id: "e".into(), rank: 0, resume: None };
        KeptSession { number, hello, uid: 1, token: Token([3; 16]) }
    }

    #[test]
    fn notes_add_up_and_read_back() {
        let mut told = Remembered::default();
        told.apply(Note::Began { epoch: 4, boot: "b".into() });
        for number in 1..=300 {
            told.apply(Note::Opened(session(number)));
        }
        for number in 1..=298 {
            told.apply(Note::Closed { session: number });
        }
        assert_eq!((told.live.len(), told.dead.len(), told.last_session), (2, MOST_DEAD, 300));
        let mut again = Remembered::default();
        for note in told.notes() {
            let text = serde_json::to_vec(&note).unwrap();
            again.apply(serde_json::from_slice(&text).unwrap());
        }
        assert_eq!(again, told);
        told.apply(Note::Opened(session(290)));
        assert!(told.live.contains_key(&290) && !told.dead.contains_key(&290), "a session that comes back lives");
    }
}
