//! Bytes as a journal: read, added up and restored; and real records with a few bits turned.
//!
//! ```text
//!  byte 0:  0 ─► the rest is a file                        (its checksums stop nearly everything)
//!           1 ─► the rest is records, each a length and its bytes, in frames that are right
//!           2 ─► the rest turns bits in the records of a real journal, in frames that are right
//! ```
//! Found at fault: a panic, a record with two spellings, a ledger that was restored and does not add up.

#![no_main]

use std::sync::LazyLock;

use hisparse_core::env::{Entropy, Moment};
use hisparse_core::journal::{Entry, Frames, Image, frame};
use hisparse_core::ledger::{AdmitRequest, CommitBy, Epoch, Ledger, LedgerConfig, NodeCapacity, SessionId};
use libfuzzer_sys::fuzz_target;

struct Counting(u64);

impl Entropy for Counting {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.0
    }
}

fn config() -> LedgerConfig {
    LedgerConfig::new(NodeCapacity::of_host_pages(40, 8))
}

/// Records of a ledger that has granted, published, shared, released and begun to scrub.
static REAL: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let mut ledger = Ledger::new(config(), Epoch::FIRST, &mut Counting(1)).expect("a possible node");
    let mut journal = Vec::new();
    for entry in ledger.image().entries() {
        frame(&mut journal, |out| entry.encode(out));
    }
    ledger.keep_log();
    let by = CommitBy::Session(SessionId(1));
    for step in 0..30_u8 {
        let tenant = ["a", "b"][usize::from(step % 2)];
        let prefix_hashes = (0..step % 3).map(|page| [page; 32]).collect();
        let request = AdmitRequest { tenant: tenant.into(), prefix_hashes, ..AdmitRequest::new("", 64 * 5, 30) };
        if let Ok(granted) = ledger.admit(&request, Moment::ORIGIN) {
            let id = granted.lease.id.expect("a grant has an id");
            let _refused = ledger.commit(id, None, Epoch::FIRST, by, Moment::ORIGIN);
            let hashes: Vec<_> = (0..4).map(|page| [page; 32]).collect();
            let _refused = ledger.publish(id, Epoch::FIRST, 0, &hashes, Moment::ORIGIN);
        }
        if step % 2 == 1 {
            let oldest = ledger.list(None, None, 1).first().and_then(|lease| lease.id);
            let _refused = oldest.map(|id| ledger.release(id, None, Some(SessionId(1)), Moment::ORIGIN));
        }
        if let Some(job) = ledger.next_scrub(2) {
            ledger.scrubbed(job);
        }
    }
    ledger.take_log(&mut journal);
    let (mut frames, mut records) = (Frames::new(&journal), Vec::new());
    while let Ok(Some(record)) = frames.next_record() {
        records.push(record.to_vec());
    }
    records
});

fn replay(journal: &[u8]) {
    let mut frames = Frames::new(journal);
    let mut image: Option<Image> = None;
    while let Ok(Some(record)) = frames.next_record() {
        let Ok(entry) = Entry::decode(record) else { return };
        let mut again = Vec::new();
        entry.encode(&mut again);
        assert_eq!(Entry::decode(&again).as_ref(), Ok(&entry), "it reads back");
        match &mut image {
            // A small pool: a large one is slow to make, and no other code.
            None => match Image::begin(&entry) {
                Ok(begun) if *begun.capacity() == config().capacity => image = Some(begun),
                _ => return,
            },
            Some(image) => {
                if image.apply(&entry).is_err() {
                    return;
                }
            }
        }
    }
    let tail = frames.tail();
    assert_eq!(tail.whole_bytes + tail.torn_bytes, journal.len() as u64);
    let (Some(image), Some(epoch)) = (image, Epoch::new(Epoch::MAX)) else { return };
    if let Ok(ledger) = Ledger::restore(config(), &image, epoch, Moment::ORIGIN, &mut Counting(2)) {
        ledger.audit().expect("what is restored adds up");
        let mut ledger = ledger;
        ledger.await_sessions(Moment::ORIGIN);
        let _refused = ledger.admit(&AdmitRequest::new("r", 64, 64), Moment::ORIGIN);
        ledger.audit().expect("and goes on adding up");
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((mode, rest)) = bytes.split_first() else { return };
    let mut journal = Vec::new();
    match mode % 3 {
        0 => return replay(rest),
        1 => {
            frame(&mut journal, |out| out.extend_from_slice(&REAL[0]));
            let mut rest = rest;
            while let Some((length, behind)) = rest.split_first() {
                let (record, behind) = behind.split_at(behind.len().min(usize::from(*length)));
                frame(&mut journal, |out| out.extend_from_slice(record));
                rest = behind;
            }
        }
        _ => {
            let mut records = REAL.clone();
            for turn in rest.chunks_exact(4) {
                let record = usize::from(turn[0]) % records.len();
                let place = usize::from(turn[1]) % records[record].len();
                records[record][place] ^= turn[2];
                if turn[3] == 0 {
                    records.remove(record);
                }
                if records.is_empty() {
                    return;
                }
            }
            for record in &records {
                frame(&mut journal, |out| out.extend_from_slice(record));
            }
        }
    }
    replay(&journal);
});
