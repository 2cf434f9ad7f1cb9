//! Random operations on a ledger whose changes are kept: what the records add up to is the ledger, at every step, and a
//! ledger restored from them goes on as the first one would.

#![allow(clippy::unwrap_used)] // what cannot be read or restored fails the test

mod node;

use hisparse_core::journal::{Entry, Frames, Image, frame};
use hisparse_core::ledger::{
    AdmitRequest, CommitBy, Epoch, Lease, LeaseId, LeaseState, Ledger, LedgerConfig, Length, NodeCapacity, NotRestored,
    SessionId, WindowCapacity,
};
use hisparse_core::pages::{Isolation, PageHash, ScrubJob};
use hisparse_core::units::Tokens;
use node::{Seed, at, ledger_of};

/// A journal of records in their frames.
fn written(entries: impl Iterator<Item = Entry>) -> Vec<u8> {
    let mut journal = Vec::new();
    for entry in entries {
        frame(&mut journal, |out| entry.encode(out));
    }
    journal
}

/// What a journal adds up to.
fn replayed(journal: &[u8]) -> Image {
    let mut frames = Frames::new(journal);
    let mut image = None;
    while let Some(record) = frames.next_record().unwrap() {
        let entry = Entry::decode(record).unwrap();
        let mut bytes = Vec::new();
        entry.encode(&mut bytes);
        assert_eq!(bytes, record, "{entry:?} has one spelling");
        match &mut image {
            None => image = Some(Image::begin(&entry).unwrap()),
            Some(image) => Image::apply(image, &entry).unwrap(),
        }
    }
    assert_eq!(frames.tail().torn_bytes, 0);
    image.unwrap()
}

fn same(left: &Image, right: &Image) -> Result<(), String> {
    for (left, right) in left.entries().zip(right.entries()) {
        if left != right {
            return Err(format!("{left:?}\n{right:?}"));
        }
    }
    if left.entries().count() == right.entries().count() { Ok(()) } else { Err("one has more to say".into()) }
}

/// As callers see it; a restart changes nothing but the epoch and the times.
fn told(ledger: &Ledger) -> Vec<Lease> {
    let mut leases = ledger.list(None, None, usize::MAX);
    for lease in &mut leases {
        lease.expires_at = None;
        lease.epoch = Epoch::FIRST;
    }
    leases
}

struct Life {
    ledger: Ledger,
    journal: Vec<u8>,
    random: Seed,
    now: u64,
    known: Vec<LeaseId>,
    scrubs: Vec<ScrubJob>,
}

impl Life {
    fn new(seed: u64) -> Self {
        let mut random = Seed::new(seed);
        let pages = 6 + random.below(40);
        let window = WindowCapacity { total: Tokens::new(64 * 40), per_request: Tokens::new(150) };
        let capacity = NodeCapacity {
            window: (random.below(2) == 0).then_some(window),
            ..NodeCapacity::of_host_pages(pages, 3 + random.below(8))
        };
        let isolation = if random.below(3) == 0 { Isolation::Shared } else { Isolation::Scrub };
        let mut ledger = ledger_of(LedgerConfig { isolation, ..LedgerConfig::new(capacity) });
        let journal = written(ledger.image().entries());
        ledger.keep_log();
        Self { ledger, journal, random, now: 0, known: Vec::new(), scrubs: Vec::new() }
    }

    fn some_lease(&mut self) -> LeaseId {
        let newest = self.known.len().saturating_sub(10);
        let at = newest + usize::try_from(self.random.below(10)).unwrap();
        self.known.get(at).copied().unwrap_or_else(|| "00000000010000000fff".parse().unwrap())
    }

    /// Hashes of the pages of one of a few prompts.
    fn hashes(prompt: u64, pages: u64) -> Vec<PageHash> {
        (0..pages).map(|page| [u8::try_from(prompt * 40 + page).unwrap(); 32]).collect()
    }

    fn step(&mut self) {
        let (now, epoch) = (at(self.now), self.ledger.epoch());
        match self.random.below(100) {
            0..35 => {
                let tenant = ["default", "a", "b"][usize::try_from(self.random.below(3)).unwrap()];
                let (prompt, pages) = (self.random.below(3), 1 + self.random.below(6));
                let name = ["", "r0", "r1", "r2"][usize::try_from(self.random.below(4)).unwrap()];
                let length = match self.random.below(3) {
                    0 => Length::Pages(pages),
                    _ => Length::Tokens { prompt: pages * 64, generated: 0, max_new: self.random.below(200) },
                };
                let prefix_hashes = Self::hashes(prompt, self.random.below(pages + 1));
                let priority = i32::try_from(self.random.below(9)).unwrap() - 4;
                let request = AdmitRequest {
                    tenant: tenant.into(),
                    length,
                    prefix_hashes,
                    priority,
                    ..AdmitRequest::new(name, 1, 0)
                };
                if let Ok(granted) = self.ledger.admit(&request, now) {
                    self.known.push(granted.lease.id.unwrap());
                }
            }
            35..50 => {
                let session = SessionId(1 + self.random.below(2));
                let by =
                    if self.random.below(3) == 0 { CommitBy::Router { ttl: None } } else { CommitBy::Session(session) };
                let id = self.some_lease();
                let _refused = self.ledger.commit(id, None, epoch, by, now);
            }
            50..62 => {
                let (id, prompt) = (self.some_lease(), self.random.below(3));
                let (first, pages) = (self.random.below(3), 1 + self.random.below(5));
                let hashes = &Self::hashes(prompt, first + pages)[usize::try_from(first).unwrap()..];
                let _refused = self.ledger.publish(id, epoch, u32::try_from(first).unwrap(), hashes, now);
            }
            62..68 => {
                let (id, tokens) = (self.some_lease(), 1 + self.random.below(700));
                let _refused = self.ledger.extend(id, None, epoch, tokens, now);
            }
            68..72 => {
                let ttl = std::time::Duration::from_secs(5 + self.random.below(60));
                let id = self.some_lease();
                let _refused = self.ledger.renew(id, None, epoch, Some(ttl), now);
            }
            72..84 => {
                let (id, session) = (self.some_lease(), SessionId(1 + self.random.below(2)));
                let _refused = self.ledger.release(id, None, Some(session), now);
            }
            84..86 => drop(self.ledger.session_lost(SessionId(1 + self.random.below(2)), now)),
            86 => {
                let (id, session) = (self.some_lease(), SessionId(3 + self.random.below(2)));
                match self.random.below(4) {
                    0 => self.ledger.filled(id, session, now),
                    1 => self.ledger.filler_lost(session, now),
                    _ => drop(self.ledger.fill(id, session, now)),
                }
            }
            87..89 => drop(self.ledger.reclaim(SessionId(1), SessionId(2), now)),
            89..94 => {
                self.ledger.scrub_ahead(3);
                self.scrubs.extend(self.ledger.next_scrub(3));
            }
            94..97 => self.scrubs.drain(..).for_each(|job| self.ledger.scrubbed(job)),
            _ => {
                self.now += self.random.below(30);
                self.ledger.advance(at(self.now));
            }
        }
        self.ledger.take_log(&mut self.journal);
    }

    fn restored(&mut self, image: &Image) -> Ledger {
        let epoch = Epoch::new(self.ledger.epoch().get() + 1).unwrap();
        let config = *self.ledger.config();
        let restored = Ledger::restore(config, image, epoch, at(self.now), &mut self.random);
        restored.unwrap_or_else(|error| panic!("{error}"))
    }

    /// What is replayed is what lives, and what is restored from it is that again.
    fn check(&mut self) -> Result<Ledger, String> {
        let live = self.ledger.image();
        let image = replayed(&self.journal);
        same(&image, &live)?;
        let compacted = replayed(&written(image.entries()));
        same(&compacted, &live)?;
        let restored = self.restored(&compacted);
        same(&restored.image(), &live)?;
        restored.audit().map_err(|violation| violation.to_string())?;
        if told(&restored) != told(&self.ledger) {
            return Err("leases differ".into());
        }
        if restored.list(None, None, 1).iter().any(|lease| lease.epoch == self.ledger.epoch()) {
            return Err("the epoch is the old one".into());
        }
        let (now, then) = (restored.pages().counts(), self.ledger.pages().counts());
        if now != then {
            return Err(format!("{then:?} came to {now:?}"));
        }
        Ok(restored)
    }
}

#[test]
fn a_replayed_journal_is_the_live_ledger_and_restores_it() {
    let seeds = std::env::var("HISPARSE_RESTORE_SEEDS").map_or(120, |text| text.parse().unwrap());
    let mut seen = [0_usize; 3];
    for seed in 0..seeds {
        let mut life = Life::new(seed);
        for step in 0..300 {
            life.step();
            if step % 23 == 0 {
                let restored = life.check().unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
                let counts = restored.pages().counts();
                seen[0] += usize::from(counts.evictable > 0);
                seen[1] += usize::from(counts.scrubbing > 0);
                seen[2] += usize::from(restored.lease_counts().quarantined > 0);
                // The restored one lives on, in place of the first.
                if life.random.below(4) == 0 {
                    life.scrubs.clear();
                    life.ledger = restored;
                    life.ledger.keep_log();
                    life.journal = written(life.ledger.image().entries());
                }
            }
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "too few runs had cached, zeroed or quarantined pages: {seen:?}");
}

#[test]
fn leases_of_sessions_wait_for_their_engines_after_a_restart_and_keep_their_names() {
    let mut life = Life::new(3);
    let mut ledger = ledger_of(LedgerConfig::new(NodeCapacity::of_host_pages(20, 8)));
    let request = AdmitRequest::new("r", 100, 28);
    let id = ledger.admit(&request, at(0)).unwrap().lease.id.unwrap();
    ledger.commit(id, None, ledger.epoch(), CommitBy::Session(SessionId(7)), at(0)).unwrap();
    let router = ledger.admit(&AdmitRequest::new("q", 100, 28), at(0)).unwrap().lease.id.unwrap();
    life.ledger = ledger;
    let mut restored = life.restored(&life.ledger.image());
    assert_eq!(restored.await_sessions(at(0)), 1);
    assert_eq!(restored.get(id, None).unwrap().state, LeaseState::Quarantined);
    assert_eq!(restored.get(router, None).unwrap().state, LeaseState::Reserved);
    let back = restored.reclaim(SessionId(7), SessionId(7), at(1));
    assert_eq!(back.iter().map(|lease| lease.id).collect::<Vec<_>>(), [Some(id)]);
    let again = restored.admit(&request, at(1)).unwrap();
    assert!(again.repeated && again.lease.id == Some(id), "the request is known again: {again:?}");
    let stale = restored.renew(router, None, Epoch::FIRST, None, at(1)).unwrap_err();
    assert_eq!(stale.reason(), Some("STALE_EPOCH"));
}

#[test]
fn a_journal_of_another_node_or_with_a_hole_in_it_is_refused() {
    let mut life = Life::new(5);
    (0..200).for_each(|_| life.step());
    let image = replayed(&life.journal);
    let other = LedgerConfig::new(NodeCapacity::of_host_pages(500, 8));
    let refused = Ledger::restore(other, &image, Epoch::new(9).unwrap(), at(0), &mut life.random).unwrap_err();
    assert_eq!(refused, NotRestored::OtherNode);
    let entries: Vec<Entry> = {
        let (mut frames, mut entries) = (Frames::new(&life.journal), Vec::new());
        while let Some(record) = frames.next_record().unwrap() {
            entries.push(Entry::decode(record).unwrap());
        }
        entries
    };
    let grant = entries.iter().position(|entry| matches!(entry, Entry::Granted(_))).unwrap();
    let mut image = Image::begin(&entries[0]).unwrap();
    let holed = entries.iter().enumerate().skip(1).filter(|(place, _)| *place != grant);
    let found = holed.map(|(_, entry)| image.apply(entry)).find(Result::is_err);
    assert!(found.unwrap().unwrap_err().to_string().contains("was never granted"), "a missing grant is found out");
}

/// Bytes at random never panic, and a ledger is restored from none that do not add up.
#[test]
fn mutated_records_are_refused_or_restore_to_a_ledger_that_adds_up() {
    let mut restored = 0_u32;
    for seed in 0..60 {
        let mut life = Life::new(seed);
        (0..120).for_each(|_| life.step());
        let base = written(life.ledger.image().entries());
        let mut records: Vec<Vec<u8>> = Vec::new();
        let mut frames = Frames::new(&base);
        while let Some(record) = frames.next_record().unwrap() {
            records.push(record.to_vec());
        }
        for _ in 0..40 {
            let mut records = records.clone();
            for _ in 0..=life.random.below(2) {
                let len = records.len() as u64;
                let at = usize::try_from(1 + life.random.below(len - 1)).unwrap();
                let byte = usize::try_from(life.random.below(records[at].len() as u64)).unwrap();
                records[at][byte] ^= 1 << life.random.below(8);
            }
            let mut image = Image::begin(&Entry::decode(&records[0]).unwrap()).unwrap();
            let whole =
                records[1..].iter().all(|record| Entry::decode(record).is_ok_and(|entry| image.apply(&entry).is_ok()));
            let config = *life.ledger.config();
            let epoch = Epoch::new(1 << 30).unwrap();
            if whole && let Ok(ledger) = Ledger::restore(config, &image, epoch, at(0), &mut Seed::new(1)) {
                ledger.audit().unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
                restored += 1;
            }
        }
    }
    assert!(restored > 0, "some changes, as of a name, do no harm");
}
