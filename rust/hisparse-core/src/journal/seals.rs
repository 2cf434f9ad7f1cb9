//! Sealed pages by number: a list without holes, and where each page stands in it.

use std::cmp::Reverse;

use crate::pages::{Extent, PageHash};

/// A sealed page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptSeal {
    pub(crate) tenant: u16,
    pub(crate) hash: PageHash,
    /// Place in its chain.
    pub(crate) place: u32,
    /// Whether the page before it is the one before it in its chain.
    pub(crate) follows: bool,
    pub(crate) holders: u32,
    /// When its last holder let it go, in order; 0 while one holds it.
    pub(crate) turn: u64,
}

/// At most one seal per page.
#[derive(Clone, Debug)]
pub(crate) struct Seals {
    list: Vec<(u32, KeptSeal)>,
    /// Place in the list + 1 of each page, zero where it is not sealed.
    place: Vec<u32>,
}

impl Seals {
    pub(crate) fn new(pages: usize) -> Self {
        Self { list: Vec::new(), place: vec![0; pages] }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &KeptSeal)> {
        self.list.iter().map(|(page, seal)| (*page, seal))
    }

    pub(crate) fn contains(&self, page: u32) -> bool {
        self.at(page).is_some()
    }

    pub(crate) fn get(&self, page: u32) -> Option<&KeptSeal> {
        Some(&self.list[self.at(page)?].1)
    }

    /// Whether this page and the one before it are neighbours in one chain.
    pub(crate) fn follows(&self, page: u32) -> bool {
        let Some(seal) = self.get(page).filter(|seal| seal.follows) else { return false };
        let before = page.checked_sub(1).and_then(|page| self.get(page));
        before.is_some_and(|before| before.tenant == seal.tenant && before.place.checked_add(1) == Some(seal.place))
    }

    /// Neighbours of a chain that are in the same hands, each with what is said of its first page: those that somebody holds,
    /// then the others in the order in which they were let go.
    pub(crate) fn runs_by_age(&self) -> Vec<(Extent, &KeptSeal)> {
        let mut seals: Vec<(u32, &KeptSeal)> = self.iter().collect();
        seals.sort_unstable_by_key(|(page, seal)| (seal.turn, Reverse(*page)));
        let mut runs: Vec<(Extent, &KeptSeal)> = Vec::new();
        for (page, seal) in seals {
            match runs.last_mut() {
                Some((run, behind))
                    if page + 1 == run.start && self.follows(run.start) && behind.holders == seal.holders =>
                {
                    (*run, *behind) = (Extent::new(page, run.pages + 1), seal);
                }
                _ => runs.push((Extent::new(page, 1), seal)),
            }
        }
        runs
    }

    pub(super) fn get_mut(&mut self, page: u32) -> Option<&mut KeptSeal> {
        let at = self.at(page)?;
        Some(&mut self.list[at].1)
    }

    /// `false`, and nothing changes, where the page is sealed, or there is no such page.
    pub(crate) fn insert(&mut self, page: u32, seal: KeptSeal) -> bool {
        let Some(place) = self.place.get_mut(page as usize).filter(|place| **place == 0) else { return false };
        self.list.push((page, seal));
        *place = u32::try_from(self.list.len()).expect("there are no more seals than pages, and those fit u32");
        true
    }

    pub(super) fn remove(&mut self, page: u32) {
        let Some(at) = self.at(page) else { return };
        self.list.swap_remove(at);
        self.place[page as usize] = 0;
        if let Some((moved, _)) = self.list.get(at) {
            self.place[*moved as usize] = u32::try_from(at + 1).expect("it was this large before");
        }
    }

    fn at(&self, page: u32) -> Option<usize> {
        self.place.get(page as usize)?.checked_sub(1).map(|at| at as usize)
    }
}
