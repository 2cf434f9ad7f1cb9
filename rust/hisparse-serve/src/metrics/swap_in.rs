//! What engines say of their swap-in, by layer group.
//!
//! ```text
//!  ReportUsage ─┬─ swap_in (by group) ─► rows_total{layer_group="0"…, result}, bytes_total
//!               ├─ usage alone ────────► rows_total{layer_group="all", result}    engines that do not split them
//!               └─ exposed, steps ─────► exposed_seconds_sum, _count
//! ```
//! The groups are those of the pool's layout, so there are no more series than it has groups; no row is counted twice.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::metrics::exposition::{Kind, Page, seconds};
use crate::proto;

/// Rows of one group.
#[derive(Debug, Default)]
struct Rows {
    hit: AtomicU64,
    miss: AtomicU64,
}

impl Rows {
    fn add(&self, hit: u64, miss: u64) {
        add(&self.hit, hit);
        add(&self.miss, miss);
    }
}

/// What was reported so far.
#[derive(Debug)]
pub(crate) struct SwapIn {
    /// By layer group.
    groups: Vec<Rows>,
    /// Of engines that do not say which group.
    unsplit: Rows,
    copied_bytes: AtomicU64,
    exposed_us: AtomicU64,
    steps: AtomicU64,
}

impl SwapIn {
    /// Nothing yet, of a pool of so many layer groups.
    pub(crate) fn new(groups: usize) -> Self {
        Self {
            groups: (0..groups).map(|_| Rows::default()).collect(),
            unsplit: Rows::default(),
            copied_bytes: AtomicU64::new(0),
            exposed_us: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        }
    }

    /// Layer groups of the pool.
    pub(crate) const fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Adds one report. Its groups were checked against [`groups`](Self::groups); another would be left out.
    pub(crate) fn reported(&self, report: &proto::ReportUsageRequest, exposed: Duration) {
        for entry in &report.swap_in {
            let group = usize::try_from(entry.layer_group).ok().and_then(|group| self.groups.get(group));
            if let Some(rows) = group {
                rows.add(entry.hit_rows, entry.miss_rows);
                add(&self.copied_bytes, entry.copied_bytes);
            }
        }
        if report.swap_in.is_empty() {
            for entry in &report.usage {
                self.unsplit.add(entry.hit_rows, entry.miss_rows);
            }
        }
        add(&self.exposed_us, u64::try_from(exposed.as_micros()).unwrap_or(u64::MAX));
        add(&self.steps, report.steps);
    }

    /// Hits and misses by the label `layer_group`.
    pub(crate) fn totals(&self) -> Vec<proto::SwapInTotals> {
        let shown = |(layer_group, rows): (String, &Rows)| proto::SwapInTotals {
            layer_group,
            hit_rows: rows.hit.load(Ordering::Relaxed),
            miss_rows: rows.miss.load(Ordering::Relaxed),
        };
        self.by_label().map(shown).collect()
    }

    fn by_label(&self) -> impl Iterator<Item = (String, &Rows)> {
        let groups = self.groups.iter().enumerate().map(|(group, rows)| (group.to_string(), rows));
        std::iter::once(("all".to_owned(), &self.unsplit)).chain(groups)
    }

    pub(super) fn write(&self, out: &mut Page) {
        out.head(
            "hisparse_swap_in_rows_total",
            Kind::Counter,
            "rows (one token in one layer) that attention read, as engines report them: hot already, or copied from host \
             memory; layer_group is the number of the group in the pool, or all where an engine does not split them",
        );
        for (group, rows) in self.by_label() {
            for (result, count) in [("hit", &rows.hit), ("miss", &rows.miss)] {
                let series = format!("hisparse_swap_in_rows_total{{layer_group=\"{group}\",result=\"{result}\"}}");
                out.line(&series, count.load(Ordering::Relaxed));
            }
        }
        out.counter(
            "hisparse_swap_in_bytes_total",
            "bytes copied from host memory by swap-in, as engines report them",
            self.copied_bytes.load(Ordering::Relaxed),
        );
        out.head(
            "hisparse_swap_in_exposed_seconds",
            Kind::Summary,
            "time that decode steps stood still for rows on their way, as engines report it; the count is of steps",
        );
        out.line("hisparse_swap_in_exposed_seconds_sum", seconds(self.exposed_us.load(Ordering::Relaxed)));
        out.line("hisparse_swap_in_exposed_seconds_count", self.steps.load(Ordering::Relaxed));
    }
}

/// Adds without a wrap: an engine that reports nonsense leaves a counter at its end, and the others right.
fn add(count: &AtomicU64, more: u64) {
    let sum = |now: u64| Some(now.saturating_add(more));
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::exposition::Dialect;

    fn page(swap_in: &SwapIn) -> String {
        let mut out = Page::new(Dialect::Prometheus);
        swap_in.write(&mut out);
        out.finish()
    }

    fn lease(hit_rows: u64, miss_rows: u64) -> proto::LeaseUsage {
        proto::LeaseUsage { hit_rows, miss_rows, ..Default::default() }
    }

    #[test]
    fn rows_that_come_by_group_and_by_request_are_counted_once() {
        let swap_in = SwapIn::new(2);
        let group = |layer_group| proto::SwapInUsage { layer_group, hit_rows: 7, miss_rows: 3, copied_bytes: 1_968 };
        let split = proto::ReportUsageRequest {
            usage: vec![lease(14, 6)],
            swap_in: vec![group(0), group(1), group(2)],
            exposed: None,
            steps: 4,
        };
        swap_in.reported(&split, Duration::from_micros(1_500));
        swap_in.reported(&proto::ReportUsageRequest { usage: vec![lease(1, 2)], ..Default::default() }, Duration::ZERO);
        let page = page(&swap_in);
        for line in [
            "hisparse_swap_in_rows_total{layer_group=\"all\",result=\"hit\"} 1",
            "hisparse_swap_in_rows_total{layer_group=\"all\",result=\"miss\"} 2",
            "hisparse_swap_in_rows_total{layer_group=\"0\",result=\"hit\"} 7",
            "hisparse_swap_in_rows_total{layer_group=\"1\",result=\"miss\"} 3",
            "hisparse_swap_in_bytes_total 3936",
            "hisparse_swap_in_exposed_seconds_sum 0.001500",
            "hisparse_swap_in_exposed_seconds_count 4",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("layer_group=\"2\""), "a label that no layout has");
    }

    #[test]
    fn a_counter_ends_instead_of_starting_again() {
        let swap_in = SwapIn::new(0);
        for _ in 0..2 {
            let report = proto::ReportUsageRequest { usage: vec![lease(u64::MAX, 1)], ..Default::default() };
            swap_in.reported(&report, Duration::ZERO);
        }
        assert!(page(&swap_in).contains(&format!("{{layer_group=\"all\",result=\"hit\"}} {}", u64::MAX)));
    }
}
