//! What must hold after every transition, each rule under its own name.
//!
//! ```text
//!  conservation      free + reserved + committed + evictable + scrubbing + quarantined = total, per pool
//!  owners            a page belongs to one lease, or is shared, or free, or being zeroed: never two of these
//!  holders           a shared page has as many holders as leases that hold it; none means it is warm or cold
//!  chains            a run of sealed pages is found by its first page's hash, or follows the page before it
//!  coalesced         no two free runs of one kind touch
//!  books             what the books carry is what the leases have
//!  floors            what is set aside is the unused part of all floors
//! ```
//! Conservation costs a few additions and runs in production after every transition (the ledger's books know it); a
//! violation stops the node from granting, never from taking back. [`Ledger::audit`] runs them all and is what the tests
//! call.

use std::collections::BTreeMap;

use crate::ledger::{Ledger, Pool};
use crate::violation::holds;

pub use crate::violation::Violation;

impl Ledger {
    /// Checks every invariant there is, in time linear in the pool. For tests and for a doubtful operator.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn audit(&self) -> Result<(), Violation> {
        every_rule(self)
    }
}

fn every_rule(ledger: &Ledger) -> Result<(), Violation> {
    ledger.conserved()?;
    let sealed: BTreeMap<u32, u32> = ledger.pages().sealed_pages().collect();
    owners(ledger, &sealed)?;
    holders(ledger, &sealed)?;
    let chains = ledger.pages().broken_index_rule();
    holds("chains", chains.is_none(), || chains.unwrap_or_default())?;
    coalesced(ledger)?;
    books(ledger)?;
    floors(ledger)
}

/// One owner per page (memory.md, page lifecycle).
fn owners(ledger: &Ledger, sealed: &BTreeMap<u32, u32>) -> Result<(), Violation> {
    let mut owners: Vec<Option<&str>> = vec![None; ledger.pages().total() as usize];
    let mut claim = |page: u32, by: &'static str| {
        let before = owners[page as usize].replace(by);
        holds("owners", before.is_none(), || format!("page {page} is {} and {by}", before.unwrap_or_default()))
    };
    for (run, _) in ledger.pages().free_extents() {
        for page in run.start..run.end() {
            claim(page, "free")?;
        }
    }
    for page in sealed.keys().filter(|page| !ledger.pages().is_cold(**page)) {
        claim(*page, "sealed")?;
    }
    for record in ledger.records() {
        for page in record.own_pages().filter(|page| !sealed.contains_key(page)) {
            claim(page, "a lease's own")?;
        }
    }
    let owned = owners.iter().flatten().count() as u64;
    let scrubbing = ledger.pages().counts().scrubbing;
    holds("owners", owned + scrubbing == u64::from(ledger.pages().total()), || {
        format!("{owned} owned and {scrubbing} being zeroed of {}", ledger.pages().total())
    })
}

/// Reference counts are counts of references (memory.md, prefix index).
fn holders(ledger: &Ledger, sealed: &BTreeMap<u32, u32>) -> Result<(), Violation> {
    let mut counted: BTreeMap<u32, u32> = sealed.keys().map(|page| (*page, 0)).collect();
    for record in ledger.records() {
        for page in record.shared_pages().chain(record.own_pages().filter(|page| sealed.contains_key(page))) {
            match counted.get_mut(&page) {
                Some(count) => *count += 1,
                None => return holds("holders", false, || format!("shared page {page} is not sealed")),
            }
        }
    }
    holds("holders", counted == *sealed, || format!("carried {sealed:?}, counted {counted:?}"))?;
    let unheld: Vec<u32> = sealed.iter().filter(|(_, holders)| **holders == 0).map(|(page, _)| *page).collect();
    let cold = sealed.keys().copied().filter(|page| ledger.pages().is_cold(*page));
    let mut listed: Vec<u32> = ledger.pages().warm_pages().chain(cold).collect();
    listed.sort_unstable();
    let evictable = ledger.pages().counts().evictable;
    holds("holders", listed == unheld && evictable == unheld.len() as u64, || {
        format!("unheld {unheld:?}, warm or cold {listed:?}, counted {evictable}")
    })
}

/// Free neighbours of one kind are one run (memory.md, contiguity).
fn coalesced(ledger: &Ledger) -> Result<(), Violation> {
    let runs = ledger.pages().free_extents();
    for pair in runs.windows(2) {
        let [(left, left_kind), (right, right_kind)] = pair else { continue };
        holds("coalesced", left.end() < right.start || left.end() == right.start && left_kind != right_kind, || {
            format!("{left:?} of kind {left_kind} and {right:?} of kind {right_kind}")
        })?;
    }
    let in_runs: u64 = runs.iter().map(|(run, _)| u64::from(run.pages)).sum();
    let cold = runs.iter().flat_map(|(run, _)| run.start..run.end()).filter(|page| ledger.pages().is_cold(*page));
    let free = in_runs - cold.count() as u64;
    let counts = ledger.pages().counts();
    holds("coalesced", free == counts.free, || format!("runs hold {free} free pages, counted {}", counts.free))
}

/// The books carry what the leases have (control-plane rule 1).
fn books(ledger: &Ledger) -> Result<(), Violation> {
    for pool in Pool::ALL {
        let carried = ledger.in_leases(pool);
        let counted: u64 = ledger.records().map(|record| record.own_amount(pool)).sum();
        holds("books", carried == counted, || format!("{pool}: carried {carried}, counted {counted}"))?;
    }
    for record in ledger.records() {
        holds("books", record.pages_match_amounts(ledger.pages()), || format!("lease {record:?}"))?;
    }
    Ok(())
}

/// What is set aside for tenants is the unused part of their floors (control-plane rule 1, tenant quota).
fn floors(ledger: &Ledger) -> Result<(), Violation> {
    let (carried, counted) = ledger.set_aside();
    holds("floors", carried == counted, || format!("carried {carried:?}, counted {counted:?}"))
}
