//! The prefix index does what an entry per page does, whatever is published, shared, released and taken, in any order.
//!
//! ```text
//!  random steps ──┬──► PrefixIndex    runs, heads
//!                 └──► PageByPage     an entry per page        after each step: the same pages in the same hands,
//!                                                              and the same pages to evict, in the same order
//! ```
//! Two things may differ, and only where a chain's middle was taken or is published after its end: a page may be sealed a
//! second time, and pages behind such a double may be missed. Both are held to exactly those cases here.

use std::collections::BTreeMap;

use super::content::{Kind, PageHash, TenantIndex};
use super::extent::{Extent, Extents};
use super::page_by_page::PageByPage;
use super::prefix::{PrefixIndex, Walk};
use super::runs::State;
use crate::env::Entropy;

struct Random(u64);

impl Entropy for Random {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 24
    }
}

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next_u64() % u64::from(bound.max(1))).unwrap()
    }
}

/// What callers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manners {
    /// Chains are published in order, and the allocator takes the ends of chains alone.
    Orderly,
    /// Anything goes.
    Any,
}

struct Lease {
    tenant: TenantIndex,
    chain: Vec<PageHash>,
    shared: Extents,
    own: Extents,
    tip: (u32, Option<u32>),
}

struct Both {
    random: Random,
    manners: Manners,
    index: PrefixIndex,
    plain: PageByPage,
    /// Pages in no lease and on no list: the free space.
    free: Vec<bool>,
    leases: Vec<Lease>,
    parents: BTreeMap<PageHash, PageHash>,
    doubles: u32,
    missed: u32,
    shared: u32,
}

impl Both {
    fn new(seed: u64, pages: u32, manners: Manners) -> Self {
        Self {
            random: Random(seed),
            manners,
            index: PrefixIndex::new(pages, &mut Random(seed + 1)),
            plain: PageByPage::default(),
            free: vec![true; pages as usize],
            leases: Vec::new(),
            parents: BTreeMap::new(),
            doubles: 0,
            missed: 0,
            shared: 0,
        }
    }

    /// One of a few conversations, which share a trunk up to where they part.
    fn chain(&mut self, tenant: TenantIndex) -> Vec<PageHash> {
        let (trunk, branch, length) = (self.random.below(3), self.random.below(3), self.random.below(24));
        let parting = [0, 5, 11][branch as usize];
        let mut hashes: Vec<PageHash> = Vec::new();
        for place in 0..length {
            let numbers = [tenant.into(), trunk, if place < parting { 0 } else { branch }, place];
            let mut hash = PageHash::default();
            for (bytes, number) in hash.chunks_exact_mut(8).zip(numbers) {
                bytes[..4].copy_from_slice(&number.to_le_bytes());
            }
            if let Some(parent) = hashes.last() {
                self.parents.insert(hash, *parent);
            }
            hashes.push(hash);
        }
        hashes
    }

    fn has_child(&self, page: u32) -> bool {
        let seal = self.plain.seals[&page];
        let child = |other: &super::page_by_page::Seal| {
            other.tenant == seal.tenant && self.parents.get(&other.hash) == Some(&seal.hash)
        };
        self.plain.seals.values().any(child)
    }

    /// Takes free pages in runs, as far as there are so many that may be taken.
    fn take(&mut self, pages: u32) -> Extents {
        let mut taken = Extents::new();
        let total = u32::try_from(self.free.len()).unwrap();
        let from = self.random.below(total);
        // From the end down, so that the end of a chain goes before what it hangs on.
        let mut chosen: Vec<u32> = Vec::new();
        for page in (from..total).rev().chain((0..from).rev()) {
            let sealed = self.plain.seals.contains_key(&page);
            let kept = self.manners == Manners::Orderly && sealed && self.has_child(page);
            if chosen.len() < pages as usize && self.free[page as usize] && !kept {
                chosen.push(page);
                self.free[page as usize] = false;
                if self.manners == Manners::Orderly {
                    self.index.forget(Extent::new(page, 1));
                    self.plain.forget(page);
                }
            }
        }
        chosen.sort_unstable();
        if self.random.below(4) == 0 {
            let middle = chosen.len() / 2;
            chosen.rotate_left(middle);
        }
        for page in chosen {
            taken.push(Extent::new(page, 1));
        }
        for run in taken.iter() {
            self.index.forget(run);
            (run.start..run.end()).for_each(|page| self.plain.forget(page));
        }
        taken
    }

    fn admit(&mut self, context: &str) {
        let tenant = TenantIndex::try_from(self.random.below(2)).unwrap();
        let chain = self.chain(tenant);
        let mut walk = Walk::whole(tenant, &chain);
        let mut found = Extents::new();
        while let Some((pages, held)) = self.index.next(&mut walk, u32::MAX) {
            for page in pages.start..pages.end() {
                assert_eq!(held, self.plain.seals[&page].holders > 0, "page {page}: {context}");
            }
            found.push(pages);
        }
        for (page, hash) in found.page_numbers().zip(&chain) {
            let seal = self.plain.seals[&page];
            assert_eq!((seal.tenant, seal.hash), (tenant, *hash), "page {page}: {context}");
        }
        let hits = found.pages() as usize;
        let known = chain.iter().take_while(|hash| !self.plain.pages_of(tenant, hash).is_empty()).count();
        if hits != known {
            assert!(hits < known && hits > 0, "{hits} of {known}: {context}");
            let last = self.plain.pages_of(tenant, &chain[hits - 1]);
            assert!(self.manners == Manners::Any && last.len() > 1, "{hits} of {known}, {last:?}: {context}");
            self.missed += 1;
        }
        let mut shared = Extents::new();
        let mut walk = Walk::whole(tenant, &chain);
        let mut left = self.random.below(found.pages() + 1);
        while let Some((pages, _)) = self.index.next(&mut walk, left) {
            let cold = self.index.hold(pages);
            for page in pages.start..pages.end() {
                assert_eq!(self.plain.hold(page), cold, "page {page}: {context}");
                self.free[page as usize] = false;
            }
            shared.push(pages);
            left -= pages.pages;
        }
        assert_eq!(left, 0, "a chain that was found is found again: {context}");
        let wanted = self.random.below(1 + 24 - shared.pages().min(24));
        let own = self.take(wanted);
        self.shared += shared.pages();
        self.leases.push(Lease { tenant, chain, shared, own, tip: (0, None) });
    }

    fn publish(&mut self, context: &str) {
        let at = self.random.below(u32::try_from(self.leases.len()).unwrap()) as usize;
        let Some(lease) = self.leases.get(at) else { return };
        let shared = lease.shared.pages();
        let most = (shared + lease.own.pages()).min(u32::try_from(lease.chain.len()).unwrap());
        let first = match (self.manners, self.random.below(3)) {
            (Manners::Any, 0) => self.random.below(most + 1).max(shared),
            (_, 1) => shared,
            _ => lease.tip.0.max(shared),
        };
        let end = (first + self.random.below(most.saturating_sub(first) + 1)).min(most);
        if first >= end {
            return;
        }
        // As `Record::place_before`.
        let before = first.checked_sub(1).and_then(|place| {
            place.checked_sub(shared).map_or_else(|| lease.shared.page_at(place), |own| lease.own.page_at(own))
        });
        let after = if lease.tip.0 == first { lease.tip.1.or(before) } else { before };
        let (tenant, hashes) = (lease.tenant, &lease.chain[first as usize..end as usize]);
        let own: Extents = lease.own.part(first - shared, end - first).collect();
        let mut walk = Walk::new(tenant, first, after, hashes);
        let sealed = self.index.seal(own.iter(), tenant + 1, &mut walk);
        // A place before these that is here is where the index begins to look.
        let parent = self.parents.get(&hashes[0]).map(|parent| self.plain.pages_of(tenant, parent));
        let mut broken = first > 0 && after.is_none_or(|page| parent.is_none_or(|pages| pages != [page]));
        for (page, hash) in own.page_numbers().zip(hashes) {
            let was_sealed = self.plain.seals.contains_key(&page);
            let known = self.plain.pages_of(tenant, hash);
            let now_sealed = sealed.page_numbers().any(|sealed| sealed == page);
            let double = now_sealed && !known.is_empty();
            if double {
                self.doubles += 1;
                let explained = self.manners == Manners::Any && broken;
                assert!(explained, "page {page} is sealed beside {known:?}: {context}");
            } else {
                assert_eq!(now_sealed, !was_sealed && known.is_empty(), "page {page}, {known:?}: {context}");
            }
            broken |= known.len() != 1;
            if now_sealed {
                self.plain.seal(page, tenant, hash);
            }
        }
        self.leases[at].tip = walk.end();
    }

    fn release(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let at = self.random.below(u32::try_from(self.leases.len()).unwrap()) as usize;
        let lease = self.leases.swap_remove(at);
        for run in lease.own.iter().rev().chain(lease.shared.iter().rev()) {
            let mut rest = run;
            while let Some(sealed) = self.index.runs().last_within(rest) {
                self.index.let_go(sealed);
                rest.pages = sealed.start - rest.start;
            }
            for page in (run.start..run.end()).rev() {
                if self.plain.seals.contains_key(&page) {
                    self.plain.let_go(page);
                } else {
                    self.free[page as usize] = true;
                }
            }
        }
    }

    fn chill(&mut self, context: &str) {
        let tenant = TenantIndex::try_from(self.random.below(2)).unwrap();
        let most = 1 + self.random.below(9);
        let chilled = self.index.chill_oldest(tenant + 1, most);
        assert_eq!(chilled.is_some(), !self.plain.warm(tenant).is_empty(), "{context}");
        for page in chilled.iter().flat_map(|pages| (pages.start..pages.end()).rev()) {
            assert_eq!(self.plain.chill_oldest(tenant), Some(page), "{context}");
            self.free[page as usize] = true;
        }
    }

    fn compare(&self, context: &str) {
        let found: BTreeMap<u32, _> = self.index.kept().collect();
        assert_eq!(found.len(), self.plain.seals.len(), "{context}");
        let (mut held, mut cold) = (0, 0);
        for (page, plain) in &self.plain.seals {
            let seal = found[page];
            let told = (seal.tenant, seal.hash, seal.holders, seal.turn, self.index.is_cold(*page));
            let expected = (plain.tenant, plain.hash, plain.holders, plain.turn, plain.cold);
            assert_eq!(told, expected, "page {page}: {context}");
            (held, cold) = (held + u64::from(plain.holders > 0), cold + u64::from(plain.cold));
            if seal.follows {
                let before = self.plain.seals[&(page - 1)];
                assert_eq!(self.parents.get(&seal.hash), Some(&before.hash), "page {page}: {context}");
            }
        }
        let runs = self.index.runs();
        let counted = (runs.held(), runs.cold(), runs.warm());
        assert_eq!(counted, (held, cold, self.plain.seals.len() as u64 - held - cold), "{context}");
        let listed: Vec<u32> = runs.walk_lru().collect();
        let plain: Vec<u32> = [0, 1].into_iter().flat_map(|tenant| self.plain.warm(tenant)).collect();
        assert_eq!(listed, plain, "{context}");
        let oldest = |kind: &Kind| self.plain.warm(kind - 1).first().map(|page| self.plain.seals[page].turn);
        let foreign = [1, 2].into_iter().filter(|kind| oldest(kind).is_some()).min_by_key(oldest);
        assert_eq!(runs.oldest_foreign(0), foreign, "{context}");
        assert_eq!(self.index.broken_rule(), None, "{context}");
        let runs: Vec<_> = runs.iter().collect();
        for pair in runs.windows(2) {
            let [(left, one), (right, other)] = pair else { continue };
            let alike = one.state == other.state && matches!(one.state, State::Held(_));
            let split = left.end() == right.start && other.follows && alike;
            assert!(!split, "{left:?} and {right:?} are one run: {context}");
        }
    }
}

/// Plays random steps on both. Returns how many pages were shared, sealed twice, and missed.
fn play(seed: u64, pages: u32, manners: Manners, steps: u32) -> (u32, u32, u32) {
    let mut both = Both::new(seed, pages, manners);
    for step in 0..steps {
        let context = format!("seed {seed}, {pages} pages, {manners:?}, step {step}");
        match both.random.below(10) {
            0..4 => both.admit(&context),
            4..7 => both.publish(&context),
            7..9 => both.release(),
            _ => both.chill(&context),
        }
        while both.leases.len() > 12 {
            both.release();
        }
        both.compare(&context);
    }
    (both.shared, both.doubles, both.missed)
}

#[test]
fn runs_do_what_an_entry_per_page_does() {
    let mut shared = 0;
    for seed in 0..16 {
        let pages = 20 + u32::try_from(seed % 8).unwrap() * 30;
        let (some, doubles, missed) = play(seed, pages, Manners::Orderly, 1_000);
        assert_eq!((doubles, missed), (0, 0), "seed {seed}");
        shared += some;
    }
    assert!(shared > 5_000, "{shared} shared pages test too little");
}

#[test]
fn a_chain_with_a_hole_is_at_worst_sealed_twice() {
    let (mut shared, mut doubles) = (0, 0);
    for seed in 100..116 {
        let pages = 20 + u32::try_from(seed % 8).unwrap() * 30;
        let (some, double, _) = play(seed, pages, Manners::Any, 1_000);
        (shared, doubles) = (shared + some, doubles + double);
    }
    assert!(shared > 5_000 && doubles > 50, "{shared} shared pages and {doubles} doubles test too little");
}
