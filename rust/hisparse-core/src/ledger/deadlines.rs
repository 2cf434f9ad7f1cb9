//! Which lease ends first: a binary heap that knows where each entry is, so that one can be moved or taken out.
//!
//! ```text
//!  heap   [ (t=3, slot 7) , (t=9, slot 2) , (t=5, slot 4) ]
//!  place  slot 2 → 1   slot 4 → 2   slot 7 → 0
//! ```

use crate::env::Moment;

#[derive(Debug, Default)]
pub(super) struct Deadlines {
    heap: Vec<(Moment, u32)>,
    /// Place in the heap + 1 of each slot, zero where it has none.
    place: Vec<u32>,
}

impl Deadlines {
    /// The slot that ends first, and when; of several the lowest.
    pub(super) fn first(&self) -> Option<(Moment, u32)> {
        self.heap.first().copied()
    }

    /// When a slot ends.
    #[cfg(test)]
    pub(super) fn of(&self, slot: u32) -> Option<Moment> {
        self.place_of(slot).map(|at| self.heap[at].0)
    }

    /// Sets, moves or (with `None`) takes out a slot's end.
    pub(super) fn set(&mut self, slot: u32, end: Option<Moment>) {
        match (self.place_of(slot), end) {
            (Some(at), Some(end)) => {
                self.heap[at].0 = end;
                self.settle(at);
            }
            (None, Some(end)) => {
                self.heap.push((end, slot));
                if self.place.len() <= slot as usize {
                    self.place.resize(slot as usize + 1, 0);
                }
                self.settle(self.heap.len() - 1);
            }
            (Some(at), None) => {
                self.heap.swap_remove(at);
                self.place[slot as usize] = 0;
                if at < self.heap.len() {
                    self.settle(at);
                }
            }
            (None, None) => {}
        }
    }

    /// How many slots have an end.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    fn place_of(&self, slot: u32) -> Option<usize> {
        self.place.get(slot as usize)?.checked_sub(1).map(|at| at as usize)
    }

    /// Moves the entry at `at` up or down to where it belongs.
    fn settle(&mut self, mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.heap.swap(at, (at - 1) / 2);
            self.note(at);
            at = (at - 1) / 2;
        }
        loop {
            let least = [2 * at + 1, 2 * at + 2]
                .into_iter()
                .filter(|child| *child < self.heap.len())
                .min_by_key(|child| self.heap[*child]);
            let Some(child) = least.filter(|child| self.heap[*child] < self.heap[at]) else { break };
            self.heap.swap(at, child);
            self.note(at);
            at = child;
        }
        self.note(at);
    }

    fn note(&mut self, at: usize) {
        let place = u32::try_from(at + 1).expect("slots are u32, so places are");
        self.place[self.heap[at].1 as usize] = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    proptest! {
        #[test]
        fn the_first_deadline_is_the_least_of_a_plain_map(steps in prop::collection::vec((0..40_u32, prop::option::of(0..90_u64)), 1..400)) {
            let mut deadlines = Deadlines::default();
            let mut model = BTreeMap::new();
            for (slot, end) in steps {
                let end = end.map(|seconds| Moment::from_origin(Duration::from_secs(seconds)));
                deadlines.set(slot, end);
                match end {
                    Some(end) => model.insert(slot, end),
                    None => model.remove(&slot),
                };
                prop_assert_eq!(deadlines.first(), model.iter().map(|(slot, end)| (*end, *slot)).min());
                prop_assert_eq!(deadlines.of(slot), model.get(&slot).copied());
                prop_assert_eq!(deadlines.len(), model.len());
            }
        }
    }
}
