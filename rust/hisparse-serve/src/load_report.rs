//! How loaded the node is, in the form that proxies read: ORCA, on every answer of `Admit` that knows.
//!
//! ```text
//!  Capacity ─► utilization per pool ─┬─► endpoint-load-metrics-bin   trailer, xds.data.orca.v3.OrcaLoadReport (gRFC A51)
//!              the fullest of them   └─► endpoint-load-metrics       header `TEXT …` or `JSON …`, for who asks for one
//! ```
//! A hint for weighted balancing, and free: the caller has the same numbers exactly in `AdmitResponse.capacity`. What
//! cannot be granted counts as used: reserved, committed, quarantined and scrubbing; a cached prefix does not.

use std::collections::BTreeMap;

use prost::Message;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};

use crate::proto;

/// The binary form's name.
const BINARY: &str = "endpoint-load-metrics-bin";
/// The name of the other two.
const READABLE: &str = "endpoint-load-metrics";
/// By which a caller asks for one of those.
const WANTED: &str = "endpoint-load-metrics-format";

/// `xds.data.orca.v3.OrcaLoadReport`, the fields that a node of memory can fill.
#[derive(Clone, PartialEq, Message, serde::Serialize)]
pub(crate) struct LoadReport {
    /// Host pages in use, from 0 to 1.
    #[prost(double, tag = "2")]
    mem_utilization: f64,
    /// Each pool's use, from 0 to 1.
    #[prost(btree_map = "string, double", tag = "5")]
    utilization: BTreeMap<String, f64>,
    /// Other figures.
    #[prost(btree_map = "string, double", tag = "8")]
    named_metrics: BTreeMap<String, f64>,
    /// Use of the fullest pool, from 0 to 1: what the next request meets.
    #[prost(double, tag = "9")]
    application_utilization: f64,
}

/// A form that people can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readable {
    Text,
    Json,
}

impl LoadReport {
    /// Of the node as it is.
    pub(crate) fn of(capacity: &proto::Capacity) -> Self {
        let mut utilization = BTreeMap::new();
        for pool in &capacity.pools {
            let used = pool.total - pool.free.saturating_add(pool.evictable).min(pool.total);
            let share = if pool.total == 0 { 0.0 } else { number(used) / number(pool.total) };
            utilization.insert(pool.name.clone(), share);
        }
        let fullest = utilization.values().copied().fold(0.0, f64::max);
        let longest = number(capacity.largest_grant_tokens);
        Self {
            mem_utilization: utilization.get("host_pages").copied().unwrap_or_default(),
            utilization,
            named_metrics: BTreeMap::from([("hisparse.largest_grant_tokens".to_owned(), longest)]),
            application_utilization: fullest,
        }
    }

    /// Each pool's use, from 0 to 1, by the pool's name.
    pub(crate) fn utilization(&self) -> impl Iterator<Item = (&str, f64)> {
        self.utilization.iter().map(|(pool, share)| (pool.as_str(), *share))
    }

    /// Use of the fullest pool, from 0 to 1.
    pub(crate) const fn fullest(&self) -> f64 {
        self.application_utilization
    }

    /// The metadata that carries it behind an answer.
    pub(crate) fn trailers(&self) -> MetadataMap {
        let mut trailers = MetadataMap::new();
        trailers.insert_bin(BINARY, BinaryMetadataValue::from_bytes(&self.encode_to_vec()));
        trailers
    }

    /// Puts it into an answer's headers, in the form that the caller asked for.
    pub(crate) fn put_readable(&self, form: Readable, headers: &mut MetadataMap) {
        // Names and numbers alone: there is no character in it that a header cannot hold.
        if let Ok(value) = self.readable(form).parse() {
            headers.insert(READABLE, value);
        }
    }

    fn readable(&self, form: Readable) -> String {
        match form {
            Readable::Json => format!("JSON {}", serde_json::to_string(self).unwrap_or_default()),
            Readable::Text => {
                let pools = self.utilization.iter().map(|(pool, share)| format!(", utilization.{pool}={share}"));
                let named = self.named_metrics.iter().map(|(name, value)| format!(", named_metrics.{name}={value}"));
                let (all, mem) = (self.application_utilization, self.mem_utilization);
                format!(
                    "TEXT application_utilization={all}, mem_utilization={mem}{}",
                    pools.chain(named).collect::<String>()
                )
            }
        }
    }
}

impl Readable {
    /// What this call's headers ask for; `None` for nothing, or for the binary form, which comes anyhow.
    pub(crate) fn wanted(headers: &MetadataMap) -> Option<Self> {
        match headers.get(WANTED)?.as_bytes() {
            b"TEXT" => Some(Self::Text),
            b"JSON" => Some(Self::Json),
            _ => None,
        }
    }
}

/// A count as ORCA has it: exact up to 2^53, and beyond that near enough for a balance.
#[allow(clippy::cast_precision_loss)]
const fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, total: u64, free: u64, evictable: u64) -> proto::Pool {
        proto::Pool {
            name: name.into(),
            total,
            free,
            evictable,
            reserved: total - free - evictable,
            ..Default::default()
        }
    }

    fn report() -> LoadReport {
        let pools = vec![pool("host_pages", 100, 50, 25), pool("seats", 8, 4, 0), pool("window_tokens", 0, 0, 0)];
        LoadReport::of(&proto::Capacity { pools, largest_grant_tokens: 4_800, ..Default::default() })
    }

    #[test]
    fn the_fullest_pool_is_the_nodes_utilization_and_cached_prefixes_are_free() {
        let report = report();
        assert_eq!((report.mem_utilization, report.application_utilization), (0.25, 0.5));
        assert!(report.utilization["window_tokens"].abs() < f64::EPSILON, "a pool of nothing is not full");
    }

    #[test]
    fn the_binary_form_has_the_field_numbers_of_the_standard() {
        let trailers = report().trailers();
        let bytes = trailers.get_bin(BINARY).unwrap().to_bytes().unwrap();
        // mem_utilization = field 2, fixed64: tag 0x11; application_utilization = field 9: tag 0x49.
        assert_eq!(bytes[..9], [&[0x11][..], &0.25_f64.to_le_bytes()].concat());
        assert_eq!(bytes[bytes.len() - 9..], [&[0x49][..], &0.5_f64.to_le_bytes()].concat());
        assert_eq!(LoadReport::decode(bytes).unwrap(), report());
    }

    #[test]
    fn text_and_json_say_the_same() {
        let mut headers = MetadataMap::new();
        report().put_readable(Readable::Text, &mut headers);
        assert_eq!(
            headers.get(READABLE).unwrap(),
            "TEXT application_utilization=0.5, mem_utilization=0.25, utilization.host_pages=0.25, utilization.seats=0.5, \
             utilization.window_tokens=0, named_metrics.hisparse.largest_grant_tokens=4800"
        );
        report().put_readable(Readable::Json, &mut headers);
        let text = headers.get(READABLE).unwrap().to_str().unwrap().strip_prefix("JSON ").unwrap().to_owned();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json["named_metrics"]["hisparse.largest_grant_tokens"], 4_800.0);
        assert_eq!(json["utilization"]["seats"], 0.5);
    }
}
