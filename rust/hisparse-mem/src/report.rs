//! What a pool became: for the operator, who asked for one thing and may have got the next best.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::backing::Backing;
use crate::bind::{Placed, Placement};
use crate::finding::Finding;
use crate::pool::HostPool;
use crate::segment::Segment;

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentReport {
    /// Its size in bytes.
    pub bytes: u64,
    /// What its pages are.
    pub backing: Backing,
    /// Where they were to come from.
    pub placement: Placement,
    /// How that was brought about.
    pub placed: Placed,
    /// Where they lie: node to percent of a sample.
    pub nodes: Finding<BTreeMap<u32, u32>>,
}

/// All of them, and what an operator should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolReport {
    /// In the layout's order.
    pub segments: Vec<SegmentReport>,
    /// What is not as it was asked for, each a full sentence with what to do.
    pub notes: Vec<String>,
}

impl PoolReport {
    /// Of a pool that is made.
    pub fn of(pool: &HostPool) -> Self {
        let segments: Vec<_> = pool.segments().iter().map(SegmentReport::of).collect();
        let mut notes: Vec<String> =
            pool.declined().iter().map(|error| format!("Another kind of pages was used: {error}.")).collect();
        notes.extend(placement_note(&segments));
        Self { segments, notes }
    }

    /// The node that every page looked at lies on, where that is one.
    pub fn only_node(&self) -> Option<u32> {
        let mut nodes = BTreeSet::new();
        for segment in &self.segments {
            nodes.extend(segment.nodes.known()?.keys().copied());
        }
        nodes.first().copied().filter(|_| nodes.len() == 1)
    }
}

impl SegmentReport {
    fn of(segment: &Segment) -> Self {
        Self {
            bytes: segment.len(),
            backing: segment.backing(),
            placement: segment.placement(),
            placed: segment.placed(),
            nodes: segment.nodes().clone(),
        }
    }

    /// Percent of the pages looked at that lie where they were to; `None` where nothing was asked or nothing is known.
    fn percent_in_place(&self) -> Option<u32> {
        let node = self.placement.node()?;
        Some(self.nodes.known()?.get(&node).copied().unwrap_or(0))
    }
}

/// Says that a policy was refused, and that pages lie elsewhere than they were to.
fn placement_note(segments: &[SegmentReport]) -> Option<String> {
    let refused = segments.iter().any(|segment| segment.placed == Placed::ByFirstTouch);
    let worst = segments.iter().filter_map(SegmentReport::percent_in_place).min();
    let lie = match worst {
        Some(100) => "all pages looked at lie on their node".to_owned(),
        Some(percent) => format!("of one segment {percent} % of the pages looked at lie on its node"),
        None => "where the pages lie is not known".to_owned(),
    };
    if refused {
        return Some(format!(
            "The kernel refuses memory policies (mbind), so pages were made by threads kept on their node's CPUs: {lie}; \
             allow mbind in the container's seccomp profile, or grant CAP_SYS_NICE."
        ));
    }
    let asked = segments.iter().any(|segment| segment.placement.node().is_some());
    (asked && worst.is_none_or(|percent| percent < 100))
        .then(|| format!("Not every page lies where --numa says: {lie}; free memory there, or use bind:."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(placement: Placement, placed: Placed, nodes: &[(u32, u32)]) -> SegmentReport {
        let nodes = Finding::Known(nodes.iter().copied().collect());
        SegmentReport { bytes: 1 << 20, backing: Backing::Memfd, placement, placed, nodes }
    }

    fn node_of(segments: Vec<SegmentReport>) -> Option<u32> {
        PoolReport { segments, notes: Vec::new() }.only_node()
    }

    #[test]
    fn a_pool_lies_on_a_node_only_where_all_of_it_does() {
        let on = |node| segment(Placement::Prefer(node), Placed::ByPolicy, &[(node, 100)]);
        assert_eq!(node_of(vec![on(1), on(1)]), Some(1));
        assert_eq!(node_of(vec![on(0), on(1)]), None);
        assert_eq!(node_of(vec![segment(Placement::Anywhere, Placed::Anywhere, &[(0, 60), (1, 40)])]), None);
        let unknown = SegmentReport { nodes: Finding::unknown("refused"), ..on(0) };
        assert_eq!(node_of(vec![on(0), unknown]), None);
    }

    #[test]
    fn a_wish_that_came_true_needs_no_note() {
        assert_eq!(placement_note(&[segment(Placement::Bind(0), Placed::ByPolicy, &[(0, 100)])]), None);
        assert_eq!(placement_note(&[segment(Placement::Anywhere, Placed::Anywhere, &[(0, 50), (1, 50)])]), None);
    }

    #[test]
    fn a_refused_policy_and_pages_elsewhere_are_told() {
        let touched = placement_note(&[segment(Placement::Prefer(0), Placed::ByFirstTouch, &[(0, 100)])]).unwrap();
        assert!(touched.contains("mbind") && touched.contains("all pages looked at lie"), "{touched}");
        let spilled = placement_note(&[segment(Placement::Prefer(0), Placed::ByPolicy, &[(0, 70), (1, 30)])]).unwrap();
        assert!(spilled.contains("70 %"), "{spilled}");
    }
}
