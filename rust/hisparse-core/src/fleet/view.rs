//! A node as a router last saw it. A hint for the order in which nodes are asked, and never a decision.

use crate::ledger::{Amounts, Capacity, Pool};

/// Most places of one node that count: the weights of all nodes then add up without overflow.
const MAX_PLACES: u64 = 1 << 20;

/// What one message of a watch, or one answer, said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Generation of the node's pool.
    pub epoch: u64,
    /// Number of changes within it; of two views of one epoch the larger is the newer.
    pub sequence: u64,
    /// What could be granted of each pool: free, evictable and scrubbing together.
    pub room: Amounts,
    /// All there is of each pool; zero for one that the node does not have.
    pub total: Amounts,
    /// Longest single request that would be granted now, in tokens.
    pub largest_grant_tokens: u64,
    /// Longest request that could ever be granted, in tokens.
    pub max_request_tokens: u64,
    /// Whether nothing new is granted.
    pub draining: bool,
}

impl View {
    /// Whether this one says more than `other`. The node's clock has no part in it.
    pub const fn is_newer_than(&self, other: &Self) -> bool {
        self.epoch > other.epoch || (self.epoch == other.epoch && self.sequence >= other.sequence)
    }

    /// Adds one pool, or one NUMA node's part of it. What is held is `total` less `room`.
    pub fn add(&mut self, pool: Pool, room: u64, total: u64) {
        self.room[pool] = self.room[pool].saturating_add(room.min(total));
        self.total[pool] = self.total[pool].saturating_add(total);
    }

    /// How many requests that take `amounts` each would fit; at least 1, and at most [`MAX_PLACES`].
    pub(super) fn places(&self, amounts: &Amounts, held_back: &Amounts) -> u64 {
        let mut fewest = MAX_PLACES;
        for pool in Pool::ALL {
            if self.total[pool] > 0 {
                let room = self.room[pool].saturating_sub(held_back[pool]);
                fewest = fewest.min(room.checked_div(amounts[pool]).unwrap_or(MAX_PLACES));
            }
        }
        fewest.max(1)
    }

    /// Thousandths of the fullest pool that would be left after `amounts` more; `None` where they do not fit.
    pub(super) fn left_after(&self, amounts: &Amounts, held_back: &Amounts) -> Option<u64> {
        let mut least = 1_000;
        for pool in Pool::ALL {
            if self.total[pool] == 0 || amounts[pool] == 0 {
                continue;
            }
            let left = self.room[pool].checked_sub(held_back[pool])?.checked_sub(amounts[pool])?;
            // Beyond 2^64 thousandths no pool is near its end.
            least = least.min(left.checked_mul(1_000).map_or(1_000, |milli| milli / self.total[pool]));
        }
        Some(least)
    }
}

impl From<&Capacity> for View {
    fn from(node: &Capacity) -> Self {
        let mut view = Self {
            epoch: node.epoch.get(),
            sequence: node.sequence,
            largest_grant_tokens: node.largest_grant_tokens,
            max_request_tokens: node.max_request_tokens,
            draining: node.draining,
            ..Self::default()
        };
        for pool in &node.pools {
            view.add(pool.name, pool.free.saturating_add(pool.evictable).saturating_add(pool.scrubbing), pool.total);
        }
        view
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_epoch_is_newer_whatever_its_sequence() {
        let old = View { epoch: 1, sequence: 900, ..View::default() };
        let new = View { epoch: 2, sequence: 0, ..View::default() };
        assert!(new.is_newer_than(&old) && !old.is_newer_than(&new));
        assert!(!View { sequence: 899, ..old }.is_newer_than(&old));
    }

    #[test]
    fn parts_of_a_pool_add_up_and_the_fullest_pool_counts() {
        let mut view = View::default();
        view.add(Pool::HostPages, 40, 50);
        view.add(Pool::HostPages, 40, 50);
        view.add(Pool::Seats, 2, 10);
        let mut amounts = Amounts::ZERO;
        amounts[Pool::HostPages] = 30;
        amounts[Pool::Seats] = 1;
        amounts[Pool::WindowTokens] = 5; // a pool the node does not have binds nothing
        assert_eq!(view.left_after(&amounts, &Amounts::ZERO), Some(100));
        assert_eq!(view.places(&amounts, &Amounts::ZERO), 2);
        assert_eq!(view.places(&Amounts::ZERO, &Amounts::ZERO), MAX_PLACES);
        let mut held_back = Amounts::ZERO;
        held_back[Pool::Seats] = 2;
        assert_eq!(view.left_after(&amounts, &held_back), None);
    }
}
