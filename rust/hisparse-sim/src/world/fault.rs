//! One thing that goes wrong, or comes back.

use hisparse_core::ledger::SessionId;

#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    NodeDies,
    NodeStarts,
    NodePauses,
    ClockSteps,
    EngineDies(usize),
    EngineStarts(usize),
    SessionLost { session: SessionId, node_life: u64 },
    RouterDies(usize),
}
