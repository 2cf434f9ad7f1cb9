//! The text that scrapers read, in either of its dialects.
//!
//! ```text
//!  # HELP name what it says, and its unit
//!  # TYPE name counter | gauge | histogram | summary
//!  name{label="value"} 7                                   Prometheus text 0.0.4: what everybody reads
//!  name_bucket{le="0.1"} 7 # {trace_id="…"} 0.05 1.7e9     OpenMetrics 1.0, and it alone, can carry an exemplar
//! ```
//! All series of one family carry the same labels, each of a fixed set of values: gateways that merge the pages of many
//! nodes refuse a family whose labels differ.

use std::fmt::{Display, Write};

/// How the page is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Prometheus,
    OpenMetrics,
}

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// A sum and a count, without quantiles.
    Summary,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
        }
    }
}

/// The page under construction.
pub(super) struct Page {
    text: String,
    dialect: Dialect,
    /// The family that is being written: its head is written once.
    family: String,
}

impl Page {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self { text: String::with_capacity(16_384), dialect, family: String::new() }
    }

    /// Begins a family.
    pub(super) fn head(&mut self, name: &str, kind: Kind, help: &str) {
        if self.family == name {
            return;
        }
        name.clone_into(&mut self.family);
        // OpenMetrics names a counter's family without the suffix of its series.
        let family = match (self.dialect, kind) {
            (Dialect::OpenMetrics, Kind::Counter) => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "# HELP {family} {help}\n# TYPE {family} {}", kind.word());
    }

    /// One series: its name with its labels, and its value.
    pub(super) fn line(&mut self, series: &str, value: impl Display) {
        let _ = writeln!(self.text, "{series} {value}");
    }

    /// One series with an exemplar, where there is one and the dialect has room for it.
    pub(super) fn line_with(&mut self, series: &str, value: impl Display, exemplar: Option<String>) {
        match exemplar.filter(|_| self.dialect == Dialect::OpenMetrics) {
            Some(exemplar) => self.line(series, format_args!("{value} # {exemplar}")),
            None => self.line(series, value),
        }
    }

    /// A family of one series.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, Kind::Gauge, help);
        self.line(name, value);
    }

    /// A family of one series.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.head(name, Kind::Counter, help);
        self.line(name, value);
    }

    /// The whole text.
    pub(super) fn finish(mut self) -> String {
        if self.dialect == Dialect::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Microseconds as exact decimal seconds.
pub(super) fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// A label's value, with what the format gives a meaning to escaped.
pub(super) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_names_counters_by_their_family_and_says_where_the_page_ends() {
        let write = |dialect| {
            let mut page = Page::new(dialect);
            page.counter("a_total", "how many", 3);
            page.head("b", Kind::Histogram, "how long");
            page.line_with("b_bucket{le=\"1\"}", 2, Some("{trace_id=\"ab\"} 0.5 7".into()));
            page.finish()
        };
        let plain = "# HELP a_total how many\n# TYPE a_total counter\na_total 3\n\
                     # HELP b how long\n# TYPE b histogram\nb_bucket{le=\"1\"} 2\n";
        assert_eq!(write(Dialect::Prometheus), plain);
        let open = "# HELP a how many\n# TYPE a counter\na_total 3\n\
                    # HELP b how long\n# TYPE b histogram\nb_bucket{le=\"1\"} 2 # {trace_id=\"ab\"} 0.5 7\n# EOF\n";
        assert_eq!(write(Dialect::OpenMetrics), open);
    }

    #[test]
    fn the_head_of_a_family_of_several_pools_is_written_once() {
        let mut page = Page::new(Dialect::Prometheus);
        for numa in 0..2 {
            page.head("pages", Kind::Gauge, "pages");
            page.line(&format!("pages{{numa=\"{numa}\"}}"), 1);
        }
        assert_eq!(page.finish().matches("# TYPE").count(), 1);
    }

    #[test]
    fn a_label_cannot_end_its_own_quotes() {
        assert_eq!(escaped("a\"} 1\nb \\"), "a\\\"} 1\\nb \\\\");
    }
}
