//! The obvious allocator that the real one is compared with: one entry per page, every question answered by a scan.

use super::content::{CLEAN, Kind};
use super::extent::{Extent, Extents};
use super::free_space::FreeSpace;
use crate::env::Entropy;

/// Kind of each free page; `None` for a held one.
struct Reference(Vec<Option<Kind>>);

impl Reference {
    /// Maximal runs of one kind, in address order.
    fn runs(&self) -> Vec<(Extent, Kind)> {
        let mut runs: Vec<(Extent, Kind)> = Vec::new();
        for (page, kind) in (0..).zip(&self.0) {
            match (kind, runs.last_mut()) {
                (Some(kind), Some((run, last))) if run.end() == page && last == kind => run.pages += 1,
                (Some(kind), _) => runs.push((Extent::new(page, 1), *kind)),
                (None, _) => {}
            }
        }
        runs
    }

    fn usable(&self, kind: Kind) -> Vec<u32> {
        let runs = self.runs().into_iter().filter(|(_, found)| *found == kind || *found == CLEAN);
        runs.map(|(run, _)| run.pages).collect()
    }

    /// Fewest runs that hold `pages` pages for this kind.
    fn fewest(&self, pages: u32, kind: Kind) -> usize {
        let mut lengths = self.usable(kind);
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        let mut held = 0;
        let needed = lengths.iter().take_while(|length| {
            let short = held < pages;
            held += **length;
            short
        });
        needed.count()
    }

    fn set(&mut self, run: Extent, kind: Option<Kind>) {
        self.0[run.start as usize..run.end() as usize].fill(kind);
    }
}

struct Random(u64);

impl Entropy for Random {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 24
    }
}

impl Random {
    fn below(&mut self, bound: usize) -> u32 {
        u32::try_from(self.next_u64() % bound.max(1) as u64).unwrap()
    }
}

/// Plays random operations on both and compares after each. Returns the steps played.
fn compare(seed: u64, pages: u32, steps: u32) {
    let mut random = Random(seed);
    let mut space = FreeSpace::new(pages);
    let mut plain = Reference(vec![Some(CLEAN); pages as usize]);
    let mut held: Vec<(Extents, Kind)> = Vec::new();
    let longest_ask = (pages / 3).max(2) as usize;
    for step in 0..steps {
        let context = || format!("seed {seed}, {pages} pages, step {step}");
        let kind = Kind::try_from(random.below(3)).unwrap();
        match random.below(8) {
            0..=2 => {
                let (asked, room) = (random.below(longest_ask) + 1, random.below(4) * random.below(9));
                let (enough, fewest) = (plain.usable(kind).iter().sum::<u32>() >= asked, plain.fewest(asked, kind));
                let mut taken = Extents::new();
                assert_eq!(space.take(asked, kind, room, &mut taken), enough, "{}", context());
                if enough {
                    assert!(taken.pages() == asked && taken.len() <= fewest, "{taken:?} for {asked}: {}", context());
                    hand_over(&mut plain, &taken, kind, &context());
                    held.push((taken, kind));
                }
            }
            3..=5 if !held.is_empty() => {
                let at = random.below(held.len()) as usize;
                let (extents, kind) = held.swap_remove(at);
                for run in extents.iter() {
                    plain.set(run, Some(kind));
                    let joined = space.free(run, kind);
                    assert!(joined >= run.pages, "{}", context());
                }
            }
            6 if !held.is_empty() => {
                let at = random.below(held.len()) as usize;
                let (extents, kind) = &mut held[at];
                let end = extents.last().unwrap().end();
                let asked = random.below(6) + 1;
                let mut taken = Extents::new();
                let got = space.take_at(end, asked, *kind, &mut taken);
                let usable =
                    |page: &u32| plain.0.get(*page as usize).is_some_and(|k| *k == Some(*kind) || *k == Some(CLEAN));
                let expected = (end..end + asked).take_while(usable).count();
                assert_eq!(got as usize, expected, "{}", context());
                hand_over(&mut plain, &taken, *kind, &context());
                extents.append(&taken);
            }
            _ => {
                let page = random.below(pages as usize);
                if let Some(kind) = plain.0[page as usize] {
                    space.carve(Extent::new(page, 1));
                    plain.set(Extent::new(page, 1), None);
                    held.push((Extents::from_iter([Extent::new(page, 1)]), kind));
                }
            }
        }
        for kind in 0..3 {
            let counted = plain.0.iter().filter(|found| **found == Some(kind)).count() as u64;
            assert_eq!(space.pages_of(kind), counted, "{}", context());
        }
        if step % 16 == 0 {
            assert_eq!(space.all_runs(), plain.runs(), "{}", context());
            let longest = plain.runs().iter().map(|(run, _)| run.pages).max().unwrap_or(0);
            assert_eq!((space.longest(), space.runs()), (longest, plain.runs().len() as u64), "{}", context());
        }
    }
}

fn hand_over(plain: &mut Reference, taken: &Extents, kind: Kind, context: &str) {
    for page in taken.page_numbers() {
        let found = plain.0[page as usize];
        assert!(found == Some(kind) || found == Some(CLEAN), "page {page} is {found:?}: {context}");
        plain.set(Extent::new(page, 1), None);
    }
}

#[test]
fn the_allocator_does_what_a_scan_over_all_pages_does() {
    for seed in 0..60 {
        compare(seed, 1 + u32::try_from(seed % 13).unwrap() * 23, 8_000);
    }
}

#[test]
fn long_runs_are_found_as_well_as_short_ones() {
    for seed in 100..110 {
        compare(seed, 2_000, 2_000);
    }
}
