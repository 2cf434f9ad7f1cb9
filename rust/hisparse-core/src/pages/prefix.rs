//! The prefix index: sealed pages by content hash, shared by reference count, the unreferenced ones in LRU order.
//!
//! ```text
//!  (tenant, hash) ──► seal ──► page         holders > 0: held       one seal, one page, any number of leases
//!                      │                    holders = 0: evictable, and then
//!                      ├── warm: on the LRU list of its kind,  oldest ⇄ … ⇄ newest
//!                      └── cold: lies in the free space, and is a hit until its page is taken
//! ```
//! Pages leave the LRU list for the cold ones in order of age, and the allocator then takes those that make the
//! longest runs: eviction by age alone would give a request hundreds of scattered pages.
//!
//! Hashes are chained: the hash of page *i* covers pages 0 to *i*, so a match counts only from the first page on.
//! They are keyed per tenant, and a match never crosses tenants. The deepest page of a released chain is the oldest,
//! so that a chain shrinks from its end.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::free_space::Kind;
use super::seeded::Folding;
use crate::env::Entropy;
use crate::journal::KeptSeal;
use crate::limits::PAGE_HASH_BYTES;

/// Keyed content hash of one full page and all pages before it.
pub type PageHash = [u8; PAGE_HASH_BYTES];

/// Number of a tenant; the ledger keeps their names.
pub(crate) type TenantIndex = u16;

/// No seal, no neighbour.
const NONE: u32 = u32::MAX;

/// All that a look-up reads of a page, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Seal {
    hash: PageHash,
    page: u32,
    holders: u32,
    older: u32,
    newer: u32,
    /// Turn of release, to compare pages of different kinds by age.
    turn: u64,
    tenant: TenantIndex,
    kind: Kind,
    cold: bool,
}

/// Unreferenced pages of one kind, oldest first.
#[derive(Clone, Copy, Debug)]
struct Lru {
    oldest: u32,
    newest: u32,
    pages: u64,
}

#[derive(Debug)]
pub(super) struct PrefixIndex {
    seals: Vec<Seal>,
    vacant: Vec<u32>,
    table: HashTable<u32>,
    hasher: Folding,
    /// Seal + 1 of each page, zero where it has none.
    seal_of_page: Vec<u32>,
    lru: Vec<Lru>,
    turn: u64,
    held: u64,
    warm: u64,
    cold: u64,
}

impl PrefixIndex {
    pub(super) fn new(pages: u32, entropy: &mut dyn Entropy) -> Self {
        Self {
            // Room for a seal per page from the start: to grow a table of a million takes longer than any call may wait.
            // The kernel gives the memory when it is first used.
            seals: Vec::with_capacity(pages as usize),
            vacant: Vec::with_capacity(pages as usize),
            table: HashTable::with_capacity(pages as usize),
            hasher: Folding::new(entropy),
            seal_of_page: vec![0; pages as usize],
            lru: Vec::new(),
            turn: 0,
            held: 0,
            warm: 0,
            cold: 0,
        }
    }

    /// Sealed pages that some lease holds.
    pub(super) const fn held(&self) -> u64 {
        self.held
    }

    /// Sealed pages that nobody holds.
    pub(super) const fn evictable(&self) -> u64 {
        self.warm + self.cold
    }

    /// Those of them that lie in the free space.
    pub(super) const fn cold(&self) -> u64 {
        self.cold
    }

    /// Unreferenced pages of one kind that are not in the free space.
    pub(super) fn warm_of(&self, kind: Kind) -> u64 {
        self.lru.get(usize::from(kind)).map_or(0, |lru| lru.pages)
    }

    /// Whether this page is sealed.
    pub(super) fn is_sealed(&self, page: u32) -> bool {
        self.seal_of_page[page as usize] != 0
    }

    /// Whether some lease holds this page; `None` for one that is not sealed.
    pub(super) fn is_held(&self, page: u32) -> Option<bool> {
        let seal = self.seal_of_page[page as usize].checked_sub(1)?;
        Some(self.seals[seal as usize].holders > 0)
    }

    /// The page that holds this prefix, and whether somebody holds it now.
    pub(super) fn find(&self, tenant: TenantIndex, hash: &PageHash) -> Option<(u32, bool)> {
        let seal = &self.seals[self.seal_at(tenant, hash)? as usize];
        Some((seal.page, seal.holders > 0))
    }

    /// Seals a page that one lease holds. `false` when the hash is known already: the page stays private then.
    pub(super) fn seal(&mut self, page: u32, tenant: TenantIndex, kind: Kind, hash: &PageHash) -> bool {
        if self.is_sealed(page) {
            return false;
        }
        let Self { seals, table, hasher, .. } = self;
        let same = |at: &u32| seals[*at as usize].hash == *hash && seals[*at as usize].tenant == tenant;
        let key = |at: &u32| hasher.place(seals[*at as usize].tenant, &seals[*at as usize].hash);
        let Entry::Vacant(place) = table.entry(hasher.place(tenant, hash), same, key) else { return false };
        let seal = Seal { hash: *hash, page, holders: 1, older: NONE, newer: NONE, turn: 0, tenant, kind, cold: false };
        let at = if let Some(at) = self.vacant.pop() {
            place.insert(at);
            seals[at as usize] = seal;
            at
        } else {
            let at = u32::try_from(seals.len()).expect("there are fewer seals than pages, and those fit u32");
            place.insert(at);
            seals.push(seal);
            at
        };
        self.seal_of_page[page as usize] = at + 1;
        self.held += 1;
        true
    }

    /// Seals a page as a journal remembers it; those that nobody holds come in the order in which they were let go.
    /// `false` where another page is sealed under its hash.
    pub(super) fn restore(&mut self, page: u32, kind: Kind, kept: &KeptSeal) -> bool {
        if !self.seal(page, kept.tenant, kind, &kept.hash) {
            return false;
        }
        let at = self.seal_of_page[page as usize] - 1;
        self.seals[at as usize].holders = kept.holders.max(1);
        if kept.holders == 0 {
            self.let_go(page);
        }
        true
    }

    /// Makes room for so many seals at once.
    pub(super) fn expect(&mut self, seals: usize) {
        self.seals.reserve(seals);
        let Self { seals: listed, table, hasher, .. } = self;
        table.reserve(seals, |at| hasher.place(listed[*at as usize].tenant, &listed[*at as usize].hash));
    }

    /// Every sealed page as a journal remembers it.
    pub(super) fn kept(&self) -> impl Iterator<Item = (u32, KeptSeal)> + '_ {
        self.table.iter().map(|at| {
            let Seal { hash, page, holders, turn, tenant, .. } = self.seals[*at as usize];
            (page, KeptSeal { tenant, hash, holders, turn: if holders > 0 { 0 } else { turn } })
        })
    }

    /// One more lease holds the page of this prefix; which one that is, and whether it was cold: it must leave the free
    /// space then.
    pub(super) fn hold(&mut self, tenant: TenantIndex, hash: &PageHash) -> Option<(u32, bool)> {
        let at = self.seal_at(tenant, hash)?;
        let seal = &mut self.seals[at as usize];
        let page = seal.page;
        seal.holders += 1;
        if seal.holders > 1 {
            return Some((page, false));
        }
        self.held += 1;
        let cold = std::mem::take(&mut seal.cold);
        if cold {
            self.cold -= 1;
        } else {
            self.unlink(at);
        }
        Some((page, cold))
    }

    /// One lease less holds a sealed page; the last one makes it the newest evictable page of its kind.
    pub(super) fn let_go(&mut self, page: u32) {
        let at = self.seal_of_page[page as usize] - 1;
        let seal = &mut self.seals[at as usize];
        seal.holders -= 1;
        if seal.holders == 0 {
            self.turn += 1;
            self.seals[at as usize].turn = self.turn;
            self.link_newest(at);
            self.held -= 1;
        }
    }

    /// Makes the oldest warm page of a kind cold and names it: it must enter the free space.
    pub(super) fn chill_oldest(&mut self, kind: Kind) -> Option<u32> {
        let oldest = self.lru.get(usize::from(kind)).filter(|lru| lru.pages > 0)?.oldest;
        self.unlink(oldest);
        let seal = &mut self.seals[oldest as usize];
        seal.cold = true;
        self.cold += 1;
        Some(seal.page)
    }

    /// Forgets the seal of a cold page that has left the free space; nothing for a page without one.
    pub(super) fn forget(&mut self, page: u32) {
        let Some(at) = self.seal_of_page[page as usize].checked_sub(1) else { return };
        let Seal { tenant, hash, .. } = self.seals[at as usize];
        let key = self.hasher.place(tenant, &hash);
        if let Ok(entry) = self.table.find_entry(key, |found| *found == at) {
            entry.remove();
        }
        self.seal_of_page[page as usize] = 0;
        self.vacant.push(at);
        self.cold -= 1;
    }

    /// The kind other than `but` whose oldest warm page is the oldest of all.
    pub(super) fn oldest_foreign(&self, but: Kind) -> Option<Kind> {
        let kinds = 0..u16::try_from(self.lru.len()).unwrap_or(Kind::MAX);
        kinds
            .filter(|kind| *kind != but && self.warm_of(*kind) > 0)
            .min_by_key(|kind| self.seals[self.lru[usize::from(*kind)].oldest as usize].turn)
    }

    /// Every sealed page with its number of holders, for checks.
    pub(super) fn sealed_pages(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.table.iter().map(|at| (self.seals[*at as usize].page, self.seals[*at as usize].holders))
    }

    /// Whether this page is sealed and lies in the free space, for checks.
    pub(super) fn is_cold(&self, page: u32) -> bool {
        self.seal_of_page[page as usize].checked_sub(1).is_some_and(|at| self.seals[at as usize].cold)
    }

    /// Pages on the LRU lists, walked link by link, for checks.
    pub(super) fn walk_lru(&self) -> impl Iterator<Item = u32> + '_ {
        self.lru.iter().flat_map(|lru| {
            let first = (lru.oldest != NONE).then_some(lru.oldest);
            std::iter::successors(first, |at| Some(self.seals[*at as usize].newer).filter(|newer| *newer != NONE))
                .map(|at| self.seals[at as usize].page)
        })
    }

    fn seal_at(&self, tenant: TenantIndex, hash: &PageHash) -> Option<u32> {
        let key = self.hasher.place(tenant, hash);
        let same = |at: &u32| self.seals[*at as usize].hash == *hash && self.seals[*at as usize].tenant == tenant;
        self.table.find(key, same).copied()
    }

    fn link_newest(&mut self, at: u32) {
        let kind = usize::from(self.seals[at as usize].kind);
        while self.lru.len() <= kind {
            self.lru.push(Lru { oldest: NONE, newest: NONE, pages: 0 });
        }
        let lru = &mut self.lru[kind];
        let older = std::mem::replace(&mut lru.newest, at);
        lru.pages += 1;
        if older == NONE {
            lru.oldest = at;
        } else {
            self.seals[older as usize].newer = at;
        }
        self.seals[at as usize].older = older;
        self.seals[at as usize].newer = NONE;
        self.warm += 1;
    }

    fn unlink(&mut self, at: u32) {
        let Seal { older, newer, kind, .. } = self.seals[at as usize];
        let lru = &mut self.lru[usize::from(kind)];
        lru.pages -= 1;
        if older == NONE {
            lru.oldest = newer;
        } else {
            self.seals[older as usize].newer = newer;
        }
        if newer == NONE {
            lru.newest = older;
        } else {
            self.seals[newer as usize].older = older;
        }
        self.warm -= 1;
    }
}
