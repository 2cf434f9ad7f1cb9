//! Who looks at the counters for the [history](crate::history) of one node.

use std::sync::Arc;

use hisparse_core::limits::HISTORY_STEP;

use crate::node::Node;

/// Looks for ever.
pub(crate) async fn keep(node: Arc<Node>) {
    loop {
        node.history.look(node.counters());
        tokio::time::sleep(HISTORY_STEP).await;
    }
}
