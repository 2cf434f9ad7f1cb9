//! Random traffic with shared prefixes, several tenants and scrubbing: every invariant after every step.

mod node;

use hisparse_core::ledger::{AdmitRequest, CommitBy, LeaseId, Ledger, LedgerConfig, NodeCapacity, SessionId};
use hisparse_core::pages::Isolation;
use hisparse_core::units::Tokens;
use node::{Seed, at, first_epoch, ledger_of};

const ENGINE: SessionId = SessionId(1);

/// The chain of one of a few conversations, as long as asked for.
fn chain(conversation: u64, pages: u64) -> Vec<[u8; 32]> {
    let byte = |number: u64| u8::try_from(number).expect("few conversations, short chains");
    (0..pages).map(|page| [byte(conversation), byte(page)].repeat(16).try_into().expect("32 bytes")).collect()
}

/// Leases granted, and pages they shared.
fn churn(seed: u64, isolation: Isolation, steps: u64) -> (u64, u64) {
    let mut random = Seed::new(seed);
    let pages = 20 + random.below(120);
    let tokens = Tokens::new(64 * pages * 4);
    let capacity = NodeCapacity { indexer_tokens: tokens, ..NodeCapacity::of_host_pages(pages, 12) };
    let mut node = ledger_of(LedgerConfig { isolation, ..LedgerConfig::new(capacity) });
    let mut live: Vec<(LeaseId, u64, u64)> = Vec::new();
    let mut jobs = Vec::new();
    let (mut granted, mut shared, mut now) = (0_u64, 0_u64, 0);
    for step in 0..steps {
        let context = || format!("seed {seed}, {isolation:?}, step {step}");
        match random.below(10) {
            0..4 => {
                let (conversation, full) = (random.below(6), random.below(20));
                let tenant = if random.below(3) == 0 { "b" } else { "a" };
                let request = AdmitRequest {
                    tenant: tenant.into(),
                    prefix_hashes: chain(conversation, full),
                    ..AdmitRequest::new("", full * 64 + 1 + random.below(63), random.below(100))
                };
                node.advance(at(now));
                let before = node.pages().counts();
                if let Ok(answer) = node.admit(&request, at(now)) {
                    let lease = answer.lease;
                    assert_eq!(lease.pages, lease.extents.pages(), "{}", context());
                    granted += 1;
                    shared += u64::from(lease.shared_pages);
                    live.push((lease.id.expect("granted"), conversation, full));
                } else {
                    let after = node.pages().counts();
                    assert_eq!(before.private + before.held, after.private + after.held, "{}", context());
                }
            }
            4..6 => {
                if let Some((id, conversation, full)) = pick(&live, &mut random) {
                    let _ = node.commit(id, None, first_epoch(), CommitBy::Session(ENGINE), at(now));
                    let _ = node.publish(id, first_epoch(), 0, &chain(conversation, full), at(now));
                }
            }
            6..8 => {
                if let Some((id, ..)) = pick(&live, &mut random) {
                    live.retain(|(other, ..)| *other != id);
                    node.release(id, None, Some(ENGINE), at(now)).expect("an administrator may release");
                }
            }
            8 => {
                if let Some((id, ..)) = pick(&live, &mut random) {
                    let tokens = node.get(id, None).map_or(1, |lease| lease.tokens.get()) + random.below(300);
                    let _ = node.extend(id, None, first_epoch(), tokens, at(now));
                }
            }
            _ => {
                now += random.below(10);
                if random.below(2) == 0 {
                    if random.below(2) == 0 {
                        node.scrub_ahead(1 + u32::try_from(random.below(8)).expect("below 8"));
                    }
                    jobs.extend(node.next_scrub(1 + u32::try_from(random.below(8)).expect("below 8")));
                } else if let Some(job) = jobs.pop() {
                    node.scrubbed(job);
                }
            }
        }
        check(&node, &context());
    }
    (granted, shared)
}

fn pick<T: Copy>(from: &[T], random: &mut Seed) -> Option<T> {
    from.get(usize::try_from(random.below(from.len() as u64)).ok()?).copied()
}

fn check(node: &Ledger, context: &str) {
    if let Err(violation) = node.audit() {
        panic!("{violation}: {context}");
    }
    assert!(node.fault().is_none(), "{context}");
}

#[test]
fn shared_pages_keep_every_invariant_under_churn() {
    for isolation in [Isolation::Scrub, Isolation::Shared] {
        let (mut granted, mut shared) = (0, 0);
        for seed in 0..12 {
            let (more_granted, more_shared) = churn(seed, isolation, 5_000);
            granted += more_granted;
            shared += more_shared;
        }
        assert!(granted > 5_000 && shared > 5_000, "{granted} grants and {shared} shared pages test too little");
    }
}
