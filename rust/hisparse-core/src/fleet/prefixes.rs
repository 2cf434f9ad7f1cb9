//! Where prefixes went. Pages' hashes are chained, so one hash stands for everything before it:
//!
//! ```text
//!   pages   0 … 15 16 … 31 32 … 47 48 …        remembered: the hashes of pages 15, 31, 47
//!   looked up from the longest down: the first that is known says how much a node has
//! ```
//! A guess: nodes evict. The node's answer says what it really shared.

use std::collections::{BTreeMap, VecDeque};

use super::node_id::NodeId;
use crate::limits::{FLEET_PREFIX_STRIDE_PAGES, MAX_FLEET_PREFIXES};
use crate::pages::PageHash;

/// Nodes remembered for one prefix: the latest.
const NODES_OF_A_PREFIX: usize = 4;

type Place = (NodeId, u64);

/// The memory, bounded; the oldest is forgotten.
#[derive(Debug, Default)]
pub struct Prefixes {
    known: BTreeMap<PageHash, Vec<Place>>,
    oldest: VecDeque<PageHash>,
}

impl Prefixes {
    /// Notes that a request with this prefix went to a node of an epoch.
    pub fn went(&mut self, prefix: &[PageHash], node: NodeId, epoch: u64) {
        for hash in marks(prefix) {
            let places = self.known.entry(*hash).or_insert_with(|| {
                self.oldest.push_back(*hash);
                Vec::with_capacity(1)
            });
            places.retain(|(known, _)| *known != node);
            if places.len() == NODES_OF_A_PREFIX {
                places.remove(0);
            }
            places.push((node, epoch));
        }
        while self.oldest.len() > MAX_FLEET_PREFIXES {
            if let Some(hash) = self.oldest.pop_front() {
                self.known.remove(&hash);
            }
        }
    }

    /// Nodes that should have pages of this prefix, with the epoch that they had then and how many pages.
    pub fn find(&self, prefix: &[PageHash]) -> Vec<(NodeId, u64, u64)> {
        let mut found: Vec<(NodeId, u64, u64)> = Vec::new();
        let longest = prefix.len() / FLEET_PREFIX_STRIDE_PAGES;
        for stride in (1..=longest).rev() {
            let pages = stride * FLEET_PREFIX_STRIDE_PAGES;
            for (node, epoch) in self.known.get(&prefix[pages - 1]).into_iter().flatten() {
                if found.iter().all(|(known, ..)| known != node) {
                    found.push((*node, *epoch, pages as u64));
                }
            }
            if found.len() >= NODES_OF_A_PREFIX {
                break;
            }
        }
        found
    }
}

fn marks(prefix: &[PageHash]) -> impl Iterator<Item = &PageHash> {
    prefix.chunks_exact(FLEET_PREFIX_STRIDE_PAGES).filter_map(<[PageHash]>::last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(first: u8, pages: usize) -> Vec<PageHash> {
        (0..pages)
            .map(|page| {
                let mut hash = [first; 32];
                hash[..8].copy_from_slice(&(page as u64).to_le_bytes());
                hash
            })
            .collect()
    }

    #[test]
    fn the_longest_known_part_is_found_for_each_node() {
        let mut memory = Prefixes::default();
        let (a, b) = (NodeId::new(1), NodeId::new(2));
        memory.went(&prefix(1, 40), a, 7);
        memory.went(&prefix(1, 16), b, 8);
        assert_eq!(memory.find(&prefix(1, 100)), [(a, 7, 32), (b, 8, 16)]);
        assert_eq!(memory.find(&prefix(2, 100)), []);
        assert_eq!(memory.find(&prefix(1, 15)), []);
    }

    #[test]
    fn the_oldest_prefixes_are_forgotten() {
        let mut memory = Prefixes::default();
        let pages = MAX_FLEET_PREFIXES * FLEET_PREFIX_STRIDE_PAGES;
        memory.went(&prefix(1, 32), NodeId::new(1), 1);
        memory.went(&prefix(2, pages), NodeId::new(2), 1);
        assert_eq!(memory.find(&prefix(1, 32)), []);
        assert_eq!(memory.known.len(), MAX_FLEET_PREFIXES);
    }
}
