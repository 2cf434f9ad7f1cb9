//! What `fits` says is what is granted: on random nodes in random states, as many requests of a length as it counts are
//! granted one after another, and the next one is refused by the pool and for the reason that it names.

mod node;
#[path = "node/walk.rs"]
mod walk;

use std::collections::BTreeSet;
use std::time::Duration;

use hisparse_core::ledger::{AdmitRequest, Fit, LeaseId, Length, Offer, Refusal};
use node::at;
use walk::Walk;

/// Asks a node what fits, and then for as much.
#[derive(Default)]
struct Asking {
    strangers: u32,
    /// Reasons met, and whether anything fitted.
    met: BTreeSet<(&'static str, bool)>,
    /// Answers given while somebody waited: to who could have nothing beside, and to who could.
    behind: [u32; 2],
}

/// One request that does not wait; where `patient`, after what it needs has been zeroed.
fn ask(walk: &mut Walk, tenant: &str, tokens: u64, patient: bool) -> Result<LeaseId, Refusal> {
    for _ in 0..if patient { 4 } else { 0 } {
        if let Ok(id) = ask(walk, tenant, tokens, false) {
            return Ok(id);
        }
        walk.scrub();
        for served in walk.queue.serve(&mut walk.ledger, at(walk.now)) {
            walk.leases.extend(served.outcome.ok().and_then(|granted| granted.lease.id));
        }
    }
    let length = Length::Tokens { prompt: tokens, generated: 0, max_new: 0 };
    let request = AdmitRequest { tenant: tenant.into(), length, ..AdmitRequest::new("", 1, 0) };
    match walk.queue.offer(&mut walk.ledger, request, Duration::ZERO, at(walk.now))? {
        Offer::Granted(granted) => Ok(granted.lease.id.expect("a grant has an id")),
        Offer::Waiting(_) => panic!("it had no time to wait"),
    }
}

impl Asking {
    /// Asks as often as `fits` says, and once more.
    fn compare(&mut self, walk: &mut Walk, tenant: Option<&str>) {
        let tokens = 1 + walk.random.below(900);
        let seen = walk.queue.capacity(&walk.ledger, tenant, &[tokens]).expect("the length is possible");
        let said: Fit = seen.fits[0];
        if tenant.is_none() && walk.queue.len() > 1 {
            return; // of several whose pages are being zeroed only the first is foreseen: see `Ledger::capacity`
        }
        self.strangers += 1;
        let name = tenant.map_or_else(|| format!("new-{}", self.strangers), str::to_owned);
        let told = format!("seed {}, {name} ({tenant:?}) at {}: {said:?} of {seen:?}", walk.seed, walk.now);
        assert_eq!(
            said.count > 0,
            tokens.div_ceil(64) * 64 <= seen.largest_grant_tokens.div_ceil(64) * 64
                && tokens <= seen.max_request_tokens
                && seen.largest_grant_tokens > 0,
            "largest grant, {told}"
        );
        let mut granted = Vec::new();
        for place in 0..said.count {
            match ask(walk, &name, tokens, tenant.is_none()) {
                Ok(id) => granted.push(id),
                Err(refusal) => panic!("grant {place}: {refusal:?}, {told}"),
            }
        }
        let refusal = ask(walk, &name, tokens, tenant.is_none()).expect_err(&told);
        assert_eq!(refusal.reason(), Some(said.reason), "{told}");
        // Behind somebody who waits nothing is zeroed for a newcomer, so it is told of pages that will be there in the end.
        let behind = tenant.is_none() && walk.queue.head().is_some();
        assert!(behind || refusal.binding().is_none_or(|pool| pool == said.binding), "{refusal:?}, {told}");
        self.met.insert((said.reason, said.count > 0));
        self.behind[usize::from(said.count > 0)] += u32::from(walk.queue.head().is_some());
        for id in granted {
            walk.ledger.release(id, None, None, at(walk.now)).expect("it lives");
        }
    }
}

#[test]
fn as_many_requests_are_granted_as_fits_counts_and_the_next_is_refused_as_it_says() {
    let mut asking = Asking::default();
    for seed in 0..1_500 {
        let mut walk = Walk::new(seed);
        for _ in 0..60 {
            walk.step();
        }
        for round in 0..12 {
            walk.step();
            let stranger = format!("stranger-{round}");
            for tenant in [None, Some(""), Some("floor"), Some("ceiling"), Some("plain"), Some(stranger.as_str())] {
                asking.compare(&mut walk, tenant);
            }
        }
        walk.ledger.audit().unwrap_or_else(|violation| panic!("seed {seed}: {violation:?}"));
    }
    let Asking { met, behind, .. } = asking;
    for reason in ["POOL_BUSY", "QUOTA"] {
        assert!(met.contains(&(reason, true)) && met.contains(&(reason, false)), "{reason} never met: {met:?}");
    }
    assert!(met.contains(&("NEVER_FITS", false)) && met.contains(&("DRAINING", false)), "{met:?}");
    assert!(behind.iter().all(|count| *count > 100), "behind somebody who waits: {behind:?}");
}
