//! One request: drawn from the trace, then placed, perhaps lost with its node and placed again.

use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::fleet::Placing;
use hisparse_core::limits::{REPLAY_DECODE, REPLAY_PREFILL_TPS};
use hisparse_core::replay::TraceRequest;

/// Its place in the list of all jobs.
pub(super) type JobId = usize;

/// Its place in the list of nodes; the number of the node's id at every router.
pub(super) type NodeIndex = usize;

/// What a job is, apart from who sends it when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Prompt and output.
    pub(super) tokens: u64,
    /// From the grant to the last token.
    pub(super) hold: Duration,
}

impl Shape {
    /// As the replay of one node times it, no page shared.
    pub(super) fn of(request: &TraceRequest) -> Self {
        let micros = u128::from(request.input_tokens) * 1_000_000 / u128::from(REPLAY_PREFILL_TPS);
        let prefill = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        let decode = REPLAY_DECODE.saturating_mul(u32::try_from(request.output_tokens).unwrap_or(u32::MAX));
        Self {
            tokens: request.input_tokens.saturating_add(request.output_tokens),
            hold: prefill.saturating_add(decode),
        }
    }
}

/// One request.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) shape: Shape,
    pub(super) router: usize,
    pub(super) arrives: Moment,
    /// Whether it arrived while it is counted.
    pub(super) counted: bool,
    /// While it looks for a node.
    pub(super) placing: Option<Placing>,
    /// The attempt that is out, and where.
    pub(super) asking: Option<(u32, NodeIndex)>,
    /// Where it runs, and in which life of that node.
    pub(super) runs: Option<(NodeIndex, u64)>,
    /// Whether it has what it asked for, as far as anybody knows.
    pub(super) granted: bool,
    /// Whether its first node died under it.
    pub(super) lost: bool,
}

impl Job {
    pub(super) const fn new(shape: Shape, router: usize, arrives: Moment) -> Self {
        Self {
            shape,
            router,
            arrives,
            counted: false,
            placing: None,
            asking: None,
            runs: None,
            granted: false,
            lost: false,
        }
    }
}
