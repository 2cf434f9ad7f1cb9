//! Sealed pages in a row, by their hashes.

use super::seals::KeptSeal;
use crate::pages::PageHash;

/// Sealed pages with consecutive numbers that are neighbours in one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashedRun {
    /// Number of the first.
    pub first_page: u32,
    /// Its place in the chain.
    pub place: u32,
    /// Whether the page before it is the one before it in the chain.
    pub follows: bool,
    /// Of each page.
    pub hashes: Vec<PageHash>,
}

/// A [`HashedRun`] that lies elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HashedPart<'h> {
    pub(crate) first_page: u32,
    pub(crate) place: u32,
    pub(crate) follows: bool,
    pub(crate) hashes: &'h [PageHash],
}

impl HashedRun {
    pub(super) fn part(&self) -> HashedPart<'_> {
        let Self { first_page, place, follows, ref hashes } = *self;
        HashedPart { first_page, place, follows, hashes }
    }

    /// What is known of each page; nobody holds it so far.
    pub(super) fn pages(&self, tenant: u16) -> impl Iterator<Item = (u32, KeptSeal)> + '_ {
        (0..).zip(&self.hashes).map(move |(at, hash)| {
            let follows = at > 0 || self.follows;
            let seal = KeptSeal { tenant, hash: *hash, place: self.place + at, follows, holders: 0, turn: 0 };
            (self.first_page + at, seal)
        })
    }
}
