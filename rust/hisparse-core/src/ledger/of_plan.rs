//! From a plan to the books: how much of each pool a planned rank has.
//!
//! ```text
//!  logical_tokens ─► host_pages, indexer_tokens        seats ─► seats, request_slots
//!  max_request_tokens, hot_rows, page_tokens ─► the same
//! ```

use super::pools::NodeCapacity;
use crate::budget::Plan;
use crate::units::{Pages, Rows, Tokens};

impl NodeCapacity {
    /// What a rank can hold that was planned so. Pages and indexer tokens are whole pages of the logical capacity; the
    /// pad page is not among them. `seats` and `request_slots` go before the plan's, where an operator wants fewer or
    /// knows better; without the latter there is one slot per seat.
    ///
    /// The window pool of a plan is as large as its seats need, so it never binds before them and has no books.
    pub fn of_plan(plan: &Plan, seats: Option<u64>, request_slots: Option<u64>) -> Self {
        let page_tokens = plan.page_tokens.max(1);
        let pages = plan.logical_tokens / page_tokens;
        let seats = seats.unwrap_or(plan.seats);
        Self {
            host_pages: Pages::new(pages),
            seats,
            // At most `logical_tokens`, so it cannot overflow.
            indexer_tokens: Tokens::new(pages * page_tokens),
            request_slots: request_slots.unwrap_or(seats),
            window: None,
            page_tokens,
            hot_rows: Rows::new(plan.hot_rows),
            max_request_tokens: Tokens::new(plan.max_request_tokens),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::budget::{PlanRequest, plan};
    use crate::model::presets::preset;

    fn planned(flags: &serde_json::Value) -> Plan {
        let request = PlanRequest::from_json(flags.as_object().unwrap()).unwrap();
        plan(&preset("glm-5.2").unwrap(), &request).unwrap()
    }

    #[test]
    fn every_token_of_the_plan_is_in_a_page_and_no_page_is_more_than_planned() {
        let plan = planned(&json!({"kv_bytes": "20GiB", "host_pool": "160GiB", "hot_rows": 4096}));
        let node = NodeCapacity::of_plan(&plan, None, None);
        assert_eq!(node.host_pages.get() * 64, plan.logical_tokens);
        assert_eq!((node.seats, node.request_slots), (plan.seats, plan.seats));
        assert_eq!(node.max_request_tokens.get(), plan.max_request_tokens);
        // 53,940 B a token: what a replay of the published trace assumes of this node.
        assert!((49_700..=49_800).contains(&node.host_pages.get()), "{}", node.host_pages);
    }

    #[test]
    fn an_operator_may_allow_fewer() {
        let node =
            NodeCapacity::of_plan(&planned(&json!({"kv_bytes": "20GiB", "host_pool": "1GiB"})), Some(3), Some(2));
        assert_eq!((node.seats, node.request_slots), (3, 2));
    }
}
