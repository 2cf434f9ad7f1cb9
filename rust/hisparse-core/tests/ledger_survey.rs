//! A survey of a node that stands still adds up to its pools and names every lease.

mod node;
#[path = "node/walk.rs"]
mod walk;

use hisparse_core::ledger::{Glance, PageMap, Survey};
use node::at;
use walk::Walk;

fn surveyed(walk: &Walk) -> (Survey, Vec<Glance>) {
    let (mut survey, mut leases) = (Survey::default(), Vec::new());
    while let Some(slice) = walk.ledger.survey(&mut survey, at(walk.now)) {
        leases.extend(slice);
    }
    leases.sort_unstable_by_key(|lease| lease.id);
    (survey, leases)
}

#[test]
fn the_map_adds_up_to_the_pool_state_by_state_and_every_lease_is_met_once() {
    let mut met = [0_u64; 6];
    for seed in 0..300 {
        let mut walk = Walk::new(seed);
        for step in 0..80 {
            walk.step();
            let told = format!("seed {}, step {step}", walk.seed);
            let (survey, leases) = surveyed(&walk);
            let pool = walk.ledger.capacity(None, &[]).unwrap().pools[0];
            let counted = [pool.free, pool.reserved, pool.committed, pool.evictable, pool.scrubbing, pool.quarantined];
            for most in [1, 7, 1_024] {
                let map = survey.map(most, &leases);
                let sums =
                    map.counts.each_ref().map(|counts| counts.iter().map(|count| u64::from(*count)).sum::<u64>());
                assert_eq!(sums, counted, "{:?} in {most} buckets, {told}", PageMap::STATES);
                assert!(map.leases.len() <= most as usize && map.leases.len() == map.counts[0].len(), "{told}");
            }
            for (sum, count) in met.iter_mut().zip(counted) {
                *sum += count;
            }
            let listed = walk.ledger.list(None, None, usize::MAX);
            assert_eq!(leases.len(), listed.len(), "{told}");
            for (glance, lease) in leases.iter().zip(listed) {
                assert_eq!(
                    (Some(glance.id), glance.state, glance.tokens, &glance.extents),
                    (lease.id, lease.state, lease.tokens, &lease.extents),
                    "{told}"
                );
                assert_eq!(glance.expires_in, lease.expires_at.map(|end| end.saturating_since(at(walk.now))), "{told}");
            }
        }
    }
    assert!(met.iter().all(|count| *count > 0), "a state was never met: {met:?}");
}

#[test]
fn a_bucket_shows_the_lease_with_the_longest_run_in_it_and_a_lease_its_age() {
    use hisparse_core::ledger::{AdmitRequest, Length};
    let mut ledger = node::ledger(100, 4);
    let mut grant = |name: &str, pages: u64, second: u64| {
        let length = Length::Tokens { prompt: pages * 64, generated: 0, max_new: 0 };
        let request = AdmitRequest { length, ..AdmitRequest::new(name, 1, 0) };
        ledger.admit(&request, at(second)).unwrap().lease.id
    };
    let (first, second) = (grant("a", 12, 0), grant("b", 30, 3));
    let (mut survey, mut leases) = (Survey::default(), Vec::new());
    while let Some(slice) = ledger.survey(&mut survey, at(10)) {
        leases.extend(slice);
    }
    assert_eq!(leases.iter().map(|lease| lease.age.as_secs()).collect::<Vec<_>>(), [10, 7]);
    let map = survey.map(10, &leases);
    assert_eq!(map.pages_per_bucket, 10);
    assert_eq!(map.leases, [first, second, second, second, second, None, None, None, None, None]);
    assert_eq!(map.counts[1], [10, 10, 10, 10, 2, 0, 0, 0, 0, 0], "reserved");
}
