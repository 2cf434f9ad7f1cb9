//! Messages as plain JSON: the proto's own field names, every integer a number. What Python's `to_plain` makes of the same
//! message is the same document.

#![allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)] // the forms that serde's `serialize_with` calls

use serde::Serializer;

use crate::proto::LeaseState;

/// RFC 3339 in UTC; `null` where absent.
pub(crate) fn timestamp<S: Serializer>(time: &Option<prost_types::Timestamp>, to: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => to.collect_str(time),
        None => to.serialize_none(),
    }
}

/// Seconds, to the millisecond; `null` where absent.
pub(crate) fn duration<S: Serializer>(time: &Option<prost_types::Duration>, to: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => {
            let ms = time.seconds.saturating_mul(1_000).saturating_add(i64::from(time.nanos / 1_000_000));
            #[allow(clippy::cast_precision_loss)] // 2^53 ms are 285,000 years
            to.serialize_f64(ms as f64 / 1_000.0)
        }
        None => to.serialize_none(),
    }
}

/// The state's name.
pub(crate) fn lease_state<S: Serializer>(state: &i32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(LeaseState::try_from(*state).unwrap_or_default().as_str_name())
}
