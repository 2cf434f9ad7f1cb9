//! Written, read back, torn, damaged, compacted, and not writable.

use hisparse_core::env::Moment;
use hisparse_core::ledger::{AdmitRequest, CommitBy, Epoch, Ledger, LedgerConfig, NodeCapacity, SessionId};

use super::content::left_behind;
use super::*;
use crate::env::MachineEntropy;

fn ledger() -> Ledger {
    let config = LedgerConfig::new(NodeCapacity::of_host_pages(100, 50));
    let mut ledger = Ledger::new(config, Epoch::FIRST, &mut MachineEntropy).unwrap();
    ledger.keep_log();
    ledger
}

fn begun(home: &Path, ledger: &Ledger) -> (PathBuf, Journal) {
    let path = home.join("h.sock.journal");
    let remembered = Remembered { epoch: 1, ..Remembered::default() };
    let journal = Journal::begin(&path, &ledger.image(), &remembered).unwrap();
    (path, journal)
}

/// Grants and commits a lease, and gives what writing that down has to tell.
fn lease_and_hear(ledger: &mut Ledger, journal: &Journal) -> Option<String> {
    let id = ledger.admit(&AdmitRequest::new("", 64, 0), Moment::ORIGIN).unwrap().lease.id.unwrap();
    ledger.commit(id, None, Epoch::FIRST, CommitBy::Session(SessionId(1)), Moment::ORIGIN).unwrap();
    let mut records = Vec::new();
    ledger.take_log(&mut records);
    journal.append(&mut records, 0);
    journal.flush()
}

fn lease(ledger: &mut Ledger, journal: &Journal) {
    assert_eq!(lease_and_hear(ledger, journal), None);
}

#[test]
fn what_was_flushed_is_read_and_a_torn_end_is_not() {
    let home = tempfile::tempdir().unwrap();
    let mut ledger = ledger();
    let (path, journal) = begun(home.path(), &ledger);
    (0..3).for_each(|_| lease(&mut ledger, &journal));
    let whole = fs::read(&path).unwrap();
    assert_eq!(read(&path).unwrap().unwrap().image.leases(), 3);
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let found = read(&path).unwrap().unwrap();
    assert_eq!((found.image.leases(), found.remembered.epoch), (3, 1), "its commit is torn, its grant is not");
    assert!(read(&home.path().join("none")).unwrap().is_none());
}

#[test]
fn a_damaged_middle_is_refused_with_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let mut ledger = ledger();
    let (path, journal) = begun(home.path(), &ledger);
    (0..3).for_each(|_| lease(&mut ledger, &journal));
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&path, bytes).unwrap();
    let refused = read(&path).unwrap_err().to_string();
    assert!(refused.contains("cannot be believed from byte") && refused.contains("move the file away"), "{refused}");
}

#[test]
fn a_journal_of_another_boot_is_void_however_much_of_it_reached_the_disk() {
    let home = tempfile::tempdir().unwrap();
    let mut ledger = ledger();
    let path = home.path().join("h.sock.journal");
    let remembered = Remembered { epoch: 7, boot: "the one before".into(), ..Remembered::default() };
    let journal = Journal::begin(&path, &ledger.image(), &remembered).unwrap();
    let begun = fs::read(&path).unwrap().len();
    (0..3).for_each(|_| lease(&mut ledger, &journal));
    let whole = fs::read(&path).unwrap();
    for at in begun..whole.len() {
        let mut bytes = whole.clone();
        bytes[at..].fill(0);
        let found = left_behind(&bytes, "this one").unwrap_or_else(|rule| panic!("zeros from byte {at} on: {rule}"));
        let remembered = found.unwrap().remembered;
        assert_eq!((remembered.epoch, remembered.boot.as_str()), (7, "the one before"), "zeros from byte {at} on");
    }
    let mut bytes = whole.clone();
    bytes[begun + 9] ^= 4;
    assert!(left_behind(&bytes, "this one").unwrap().is_some());
    assert!(left_behind(&bytes, "the one before").is_err(), "of this boot, damage may hide a lease");
    assert!(left_behind(&vec![0; whole.len()], "this one").unwrap().is_none(), "nothing of it reached the disk");
}

#[test]
fn a_compacted_journal_says_the_same_and_what_comes_after() {
    let home = tempfile::tempdir().unwrap();
    let mut ledger = ledger();
    let (path, journal) = begun(home.path(), &ledger);
    for _ in 0..40 {
        lease(&mut ledger, &journal);
        let id = ledger.list(None, None, 1)[0].id.unwrap();
        ledger.release(id, None, Some(SessionId(1)), Moment::ORIGIN).unwrap();
    }
    lease(&mut ledger, &journal);
    let before = fs::metadata(&path).unwrap().len();
    journal.compact();
    assert!(fs::metadata(&path).unwrap().len() < before / 4, "from {before}");
    lease(&mut ledger, &journal);
    let found = read(&path).unwrap().unwrap();
    assert_eq!((found.image.leases(), found.remembered.epoch), (2, 1));
    assert!(!beside(&path, ".new").exists());
}

#[test]
fn a_journal_that_cannot_be_written_is_removed_rather_than_left_behind_the_times() {
    let home = tempfile::tempdir().unwrap();
    let mut ledger = ledger();
    let (path, journal) = begun(home.path(), &ledger);
    *lock(&journal.file) = Some(File::open(&path).unwrap()); // open for reading alone: every write fails
    let said = lease_and_hear(&mut ledger, &journal);
    assert!(lock(&journal.file).is_none() && !path.exists());
    let lost = journal.lost().unwrap();
    assert_eq!(said.as_ref(), Some(&lost), "said when it happens, and below no more");
    assert!(lost.contains("cannot be written") && lost.contains("a restart will know no lease"), "{lost}");
    assert_eq!(journal.failures(), 1);
    lease(&mut ledger, &journal);
    assert_eq!(journal.failures(), 1, "what is not written cannot fail again");
    journal.restart(&ledger.image(), &Remembered::default());
    assert!(path.exists() && journal.lost().is_none(), "it begins anew with the pool");
}
