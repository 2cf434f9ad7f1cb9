//! The order of nodes that fit.
//!
//! ```text
//!   share of the prompt that is there already (in eighths)  ─►  what the policy prefers  ─►  chance
//! ```
//! Eighths, so that a system prompt that every node has does not outweigh balance.

use std::cmp::Reverse;

use super::node_id::NodeId;

/// What makes one fitting node better than another, where both have as much of the prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// None is better.
    Random,
    /// Fewest requests, those that were asked for and are not answered included.
    LeastRequests,
    /// Most free host pages.
    MostFree,
    /// Most left of the fullest pool after the request, as a share of the pool.
    #[default]
    MostLeft,
    /// Least left of it: keeps other nodes whole for long requests.
    BestFit,
}

impl Policy {
    /// Every policy, with its name.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Random, "random"),
        (Self::LeastRequests, "least_requests"),
        (Self::MostFree, "most_free"),
        (Self::MostLeft, "most_left"),
        (Self::BestFit, "best_fit"),
    ];

    /// The policy of a name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, known)| *known == name).map(|(policy, _)| policy)
    }
}

/// One node that would take the request, by its view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which node.
    pub node: NodeId,
    /// Pages of the request's prefix that went there before.
    pub shared_pages: u64,
    /// Pages of the whole request.
    pub pages: u64,
    /// Thousandths of its fullest pool that would be left.
    pub left_milli: u64,
    /// It has no room for as many like it as other routers may be asking for at this moment.
    pub tight: bool,
    /// How many requests like it would fit, from 1 on.
    pub places: u64,
    /// Free host pages now.
    pub free_pages: u64,
    /// Requests there now.
    pub requests: u64,
    /// A draw that settles what is equal.
    pub lot: u64,
}

impl Candidate {
    /// A key: the best candidate has the greatest.
    pub fn key(&self, policy: Policy) -> (u64, u64, u64) {
        let eighths = self.shared_pages.saturating_mul(8) / self.pages.max(1);
        let liked = match policy {
            Policy::Random => 0,
            Policy::LeastRequests => u64::MAX - self.requests,
            Policy::MostFree => self.free_pages,
            Policy::MostLeft => self.left_milli,
            Policy::BestFit => u64::MAX - self.left_milli,
        };
        (eighths, liked, self.lot)
    }
}

/// Sorts candidates, the best first.
pub(super) fn sort(candidates: &mut [Candidate], policy: Policy) {
    candidates.sort_unstable_by_key(|candidate| Reverse(candidate.key(policy)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(node: u64, shared_pages: u64, left_milli: u64) -> Candidate {
        let node = NodeId::new(node);
        Candidate {
            node,
            shared_pages,
            pages: 80,
            left_milli,
            tight: false,
            places: 1,
            free_pages: left_milli,
            requests: 0,
            lot: 0,
        }
    }

    fn order(policy: Policy, mut candidates: Vec<Candidate>) -> Vec<u64> {
        sort(&mut candidates, policy);
        candidates.iter().map(|candidate| candidate.node.get()).collect()
    }

    #[test]
    fn a_real_share_of_the_prefix_outweighs_room_and_a_sliver_does_not() {
        let nodes = vec![candidate(0, 9, 100), candidate(1, 10, 100), candidate(2, 0, 900)];
        assert_eq!(order(Policy::MostLeft, nodes), [1, 2, 0]);
    }

    #[test]
    fn best_fit_is_the_other_way_round() {
        let nodes = vec![candidate(0, 0, 100), candidate(1, 0, 900)];
        assert_eq!(order(Policy::MostLeft, nodes.clone()), [1, 0]);
        assert_eq!(order(Policy::BestFit, nodes), [0, 1]);
    }

    #[test]
    fn every_policy_has_a_name_of_its_own() {
        for (policy, name) in Policy::ALL {
            assert_eq!(Policy::of_name(name), Some(policy));
        }
        assert_eq!(Policy::of_name("best"), None);
    }
}
