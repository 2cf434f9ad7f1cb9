//! How Admits ended over the last minutes: the counters, looked at every few seconds.
//!
//! ```text
//!  counters ──every 5 s──► [ … ][ … ][ … ] 120 looks        the steps shown are what lies between two of them,
//!                                       └──── now           and after the last one
//! ```
//! Kept whether or not somebody looks: a page that is opened after an incident shows it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use hisparse_core::limits::{HISTORY_STEP, HISTORY_STEPS};

use crate::metrics::{Counters, OUTCOMES};
use crate::{proto, wire};

/// The counters at one moment, in the order of [`OUTCOMES`].
type Look = [u64; OUTCOMES.len()];

/// The looks of the last minutes, oldest first.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<VecDeque<Look>>);

impl History {
    /// Takes one more look.
    pub(crate) fn look(&self, counters: &Counters) {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // One look more than whole steps, and the step that runs is the last one shown.
        if looks.len() >= HISTORY_STEPS {
            looks.pop_front();
        }
        looks.push_back(counters.outcomes());
    }

    /// Every way to end that was ever met, with its steps.
    pub(crate) fn shown(&self, counters: &Counters) -> proto::AdmitHistory {
        let now = counters.outcomes();
        let looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let met = OUTCOMES.iter().enumerate().filter(|(place, _)| now[*place] > 0);
        let series = met.map(|(place, (result, reason))| {
            let totals: Vec<u64> = looks.iter().map(|look| look[place]).chain([now[place]]).collect();
            proto::AdmitSeries {
                result: (*result).to_owned(),
                reason: (*reason).to_owned(),
                total: now[place],
                counts: totals.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect(),
            }
        });
        proto::AdmitHistory {
            step: Some(wire::duration_to_proto(HISTORY_STEP)),
            most_steps: u32::try_from(HISTORY_STEPS).unwrap_or(u32::MAX),
            series: series.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::Refusal;
    use crate::metrics::{Admitted, SwapIn};
    use crate::pool_bytes::PoolBytes;

    fn granted(counters: &Counters, times: u64) {
        (0..times).for_each(|_| counters.admitted(Admitted::Granted, Duration::ZERO, None));
    }

    #[test]
    fn a_step_lies_between_two_looks_and_the_last_one_is_still_running() {
        let (history, counters) = (History::default(), Counters::new(SwapIn::new(0), None));
        history.look(&counters);
        granted(&counters, 2);
        history.look(&counters);
        history.look(&counters);
        granted(&counters, 3);
        counters.admitted(Admitted::Refused(&Refusal::NoPool(PoolBytes::Making)), Duration::ZERO, None);
        let shown = history.shown(&counters).series;
        let lines: Vec<_> =
            shown.iter().map(|each| (each.reason.as_str(), each.total, each.counts.as_slice())).collect();
        assert_eq!(lines, [("", 5, [2, 0, 3].as_slice()), ("RECOVERING", 1, [0, 0, 1].as_slice())]);
    }

    #[test]
    fn no_more_than_its_steps_are_kept() {
        let (history, counters) = (History::default(), Counters::new(SwapIn::new(0), None));
        for _ in 0..3 * HISTORY_STEPS {
            granted(&counters, 1);
            history.look(&counters);
        }
        let shown = history.shown(&counters).series;
        assert_eq!(shown[0].counts.len(), HISTORY_STEPS);
        assert_eq!(shown[0].counts.iter().sum::<u64>(), HISTORY_STEPS as u64 - 1, "the running step has none yet");
    }
}
