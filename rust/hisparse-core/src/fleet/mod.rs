//! What a router knows of many nodes, and how it places a request on one of them. The node's ledger decides; everything
//! here only says whom to ask next.
//!
//! ```text
//!   watches, answers ─► View of each node ─┐                      ┌─ Ask ────► Admit there ─► answered
//!   grants ─► Prefixes: what went where ───┼─► Router ─► Placing ─┼─ Settle ─► Settling: Release until that is certain
//!   failures ─► Breaker, Backoff ──────────┤    rank              ├─ Rest ───► look again
//!   RetryBudget, Gate ─────────────────────┘                      └─ Refuse ─► why nobody takes it
//! ```
//! No I/O: the caller makes the calls, and hands in the time with every step. The Python router and the simulated
//! fleet drive the same steps, so what is simulated is what runs.

mod breaker;
mod budget;
mod demand;
mod dice;
mod gate;
mod node_id;
mod placing;
mod prefixes;
mod rank;
mod router;
mod settling;
mod view;

pub use self::breaker::{Backoff, Breaker};
pub use self::budget::RetryBudget;
pub use self::demand::Demand;
pub use self::dice::Dice;
pub use self::gate::Gate;
pub use self::node_id::NodeId;
pub use self::placing::{Answer, Placing, Step, Why};
pub use self::prefixes::Prefixes;
pub use self::rank::{Candidate, Policy};
pub use self::router::{Choice, Node, Ranked, Router, Settings, Standing, Tally};
pub use self::settling::{Settle, Settling};
pub use self::view::View;
