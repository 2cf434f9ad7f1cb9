//! What a node may answer to Admit, Commit, Extend, Release and `GetCapacity`: the sequential truth in one screen.
//!
//! ```text
//!  state = epoch, last id, what each live lease holds              (no pages, no hashes, no clock)
//! ```
//! It speaks of one tenant without prefixes or waits, where an Admit is granted exactly when every pool has room. Ends
//! that nobody asks for (expiry, a dead session, a dead node) enter the history as calls of their own, at the moment
//! they were seen at the node.

use super::check::Spec;

/// What a node has in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Pages of the host pool.
    pub pages: u64,
    /// Requests at once: the least of seats and request slots.
    pub requests: u64,
    /// Whole pages that the indexer cache holds.
    pub indexer_pages: u64,
}

/// One lease, as far as others can tell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held {
    /// Its number; `None` while nobody has been told.
    pub id: Option<u128>,
    /// What its caller calls it.
    pub request: String,
    /// Its length in pages.
    pub pages: u64,
    /// The engine session that has committed it.
    pub session: Option<u64>,
    /// Past its end, not yet free: its request id is anyone's again.
    pub quarantined: bool,
}

/// A node between two calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    epoch: u64,
    last_id: u128,
    /// Sorted, so that equal states are equal.
    leases: Vec<Held>,
}

impl State {
    fn pages(&self) -> u64 {
        self.leases.iter().map(|lease| lease.pages).sum()
    }

    fn find(&self, id: u128) -> Option<usize> {
        self.leases.iter().position(|lease| lease.id == Some(id))
    }

    fn changed(&self, change: impl FnOnce(&mut Vec<Held>)) -> Self {
        let mut next = self.clone();
        change(&mut next.leases);
        next.leases.sort();
        next
    }
}

/// What came of a call that grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// A lease of this number.
    Lease(u128),
    /// Some pool is busy.
    Busy,
    /// Refused for another reason that leaves everything as it was.
    Refused,
    /// No answer.
    Unknown,
}

/// What came of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Free at once.
    Freed,
    /// Free when the engine that holds it says so.
    Quarantined,
    /// It was gone already.
    Already,
    /// No answer.
    Unknown,
}

/// A call and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Admit of so many pages.
    Admit {
        /// What its caller calls it.
        request: String,
        /// Pages.
        pages: u64,
        /// What came of it.
        got: Got,
    },
    /// An engine (or, without a session, a router) puts a lease to use.
    Commit {
        /// The lease.
        id: u128,
        /// The epoch that the caller believes in.
        epoch: u64,
        /// The engine's session.
        session: Option<u64>,
        /// What came of it: `Some(true)` it is committed, `Some(false)` it was refused, `None` no answer.
        done: Option<bool>,
    },
    /// Growth to so many pages.
    Extend {
        /// The lease.
        id: u128,
        /// The epoch that the caller believes in.
        epoch: u64,
        /// Whole length.
        pages: u64,
        /// What came of it.
        got: Got,
    },
    /// A release by number.
    Release {
        /// The lease.
        id: u128,
        /// The engine's session, where one releases.
        session: Option<u64>,
        /// What came of it.
        gone: Gone,
    },
    /// A release by the caller's own name, without a session.
    ReleaseRequest {
        /// What its caller calls it.
        request: String,
        /// What came of it.
        gone: Gone,
    },
    /// What is left.
    GetCapacity {
        /// Pages in no lease.
        free_pages: u64,
        /// Seats in no lease.
        free_requests: u64,
        /// Generation of the pool.
        epoch: u64,
    },
    /// At the node: a lease ends by itself and keeps its pages for now.
    Quarantine {
        /// The lease.
        id: u128,
        /// What its caller calls it.
        request: String,
    },
    /// At the node: a quarantined lease becomes free.
    Free {
        /// The lease.
        id: u128,
        /// What its caller calls it.
        request: String,
    },
    /// At the node: an engine takes over what its predecessor held.
    Reclaim {
        /// The lease.
        id: u128,
        /// Its new holder.
        session: u64,
    },
    /// At the node: it was killed and starts again, under a new epoch.
    Restart {
        /// It has a journal: what is held stays held. Else it is empty.
        keeps: bool,
        /// The new generation.
        epoch: u64,
    },
}

impl Spec for Room {
    type State = State;
    type Op = Op;

    fn start(&self) -> State {
        State::default()
    }

    fn after(&self, state: &State, op: &Op) -> Vec<State> {
        match op {
            Op::Admit { request, pages, got } => self.admit(state, request, *pages, *got),
            Op::Commit { id, epoch, session, done } => commit(state, *id, *epoch, *session, *done),
            Op::Extend { id, epoch, pages, got } => self.extend(state, *id, *epoch, *pages, *got),
            Op::Release { id, session, gone } => release(state, state.find(*id), *session, *gone),
            Op::ReleaseRequest { request, gone } => {
                let named = state.leases.iter().position(|lease| lease.request == *request && !lease.quarantined);
                release(state, named, None, *gone)
            }
            Op::GetCapacity { free_pages, free_requests, epoch } => {
                let (pages, requests) = (self.pages - state.pages(), self.requests - state.leases.len() as u64);
                only_if((*free_pages, *free_requests, *epoch) == (pages, requests, state.epoch), state)
            }
            Op::Quarantine { id, request } => at_node(state, *id, request, |leases, at| {
                leases[at].id = Some(*id);
                leases[at].quarantined = true;
            }),
            Op::Free { id, request } => at_node(state, *id, request, |leases, at| {
                leases.remove(at);
            }),
            Op::Reclaim { id, session } => {
                let Some(at) = state.find(*id).filter(|at| state.leases[*at].quarantined) else { return Vec::new() };
                vec![state.changed(|leases| {
                    leases[at].quarantined = false;
                    leases[at].session = Some(*session);
                })]
            }
            Op::Restart { keeps: true, epoch } => vec![State { epoch: *epoch, ..state.clone() }],
            Op::Restart { keeps: false, epoch } => vec![State { epoch: *epoch, ..State::default() }],
        }
    }

    fn only_looks(&self, op: &Op) -> bool {
        matches!(
            op,
            Op::GetCapacity { .. }
                | Op::Admit { got: Got::Busy | Got::Refused, .. }
                | Op::Extend { got: Got::Busy | Got::Refused, .. }
                | Op::Commit { done: Some(false), .. }
                | Op::Release { gone: Gone::Already, .. }
                | Op::ReleaseRequest { gone: Gone::Already, .. }
        )
    }
}

impl Room {
    fn fits(self, pages: u64, more_pages: u64, requests: u64) -> bool {
        let most = self.pages.min(self.indexer_pages);
        pages + more_pages <= most && requests <= self.requests
    }

    fn admit(self, state: &State, request: &str, pages: u64, got: Got) -> Vec<State> {
        let live = state.leases.iter().position(|lease| lease.request == request && !lease.quarantined);
        let fits = self.fits(state.pages(), pages, state.leases.len() as u64 + 1);
        let granted = |id: Option<u128>| {
            let lease = Held { id, request: request.to_owned(), pages, session: None, quarantined: false };
            state.changed(|leases| leases.push(lease))
        };
        match (got, live) {
            (Got::Lease(id), Some(at)) => match state.leases[at].id {
                Some(known) => only_if(known == id, state),
                // Granted to a call that was never answered; this is when its number becomes known.
                None if id > state.last_id => {
                    vec![State { last_id: id, ..state.changed(|leases| leases[at].id = Some(id)) }]
                }
                None => vec![state.changed(|leases| leases[at].id = Some(id))],
            },
            (Got::Lease(id), None) if fits && id > state.last_id => vec![State { last_id: id, ..granted(Some(id)) }],
            (Got::Lease(_), None) => Vec::new(),
            (Got::Busy, live) => only_if(live.is_none() && !fits, state),
            (Got::Unknown, None) if fits => vec![state.clone(), granted(None)],
            (Got::Refused | Got::Unknown, _) => vec![state.clone()],
        }
    }

    fn extend(self, state: &State, id: u128, epoch: u64, pages: u64, got: Got) -> Vec<State> {
        let live = state.find(id).filter(|at| !state.leases[*at].quarantined && epoch == state.epoch);
        let more = |at: usize| pages.saturating_sub(state.leases[at].pages);
        let fits = |at: usize| self.fits(state.pages(), more(at), state.leases.len() as u64);
        match (got, live) {
            (Got::Lease(_) | Got::Unknown, Some(at)) if fits(at) => {
                let grown = state.changed(|leases| leases[at].pages = leases[at].pages.max(pages));
                // A node that was killed may never have heard of it.
                let unheard = (got == Got::Unknown).then(|| state.clone());
                unheard.into_iter().chain([grown]).collect()
            }
            (Got::Busy, Some(at)) => only_if(!fits(at), state),
            (Got::Refused, None) | (Got::Unknown, _) => vec![state.clone()],
            _ => Vec::new(),
        }
    }
}

fn commit(state: &State, id: u128, epoch: u64, session: Option<u64>, done: Option<bool>) -> Vec<State> {
    let live = state.find(id).filter(|at| !state.leases[*at].quarantined && epoch == state.epoch);
    // What one engine holds, no other may take.
    let free_for = |holder: Option<u64>| session.is_none() || holder.is_none() || holder == session;
    let live = live.filter(|at| free_for(state.leases[*at].session));
    match (done, live) {
        (Some(true) | None, Some(at)) => vec![state.changed(|leases| {
            if session.is_some() {
                leases[at].session = session;
            }
        })],
        (Some(false) | None, None) => vec![state.clone()],
        _ => Vec::new(),
    }
}

fn release(state: &State, at: Option<usize>, session: Option<u64>, gone: Gone) -> Vec<State> {
    let Some(at) = at else { return only_if(matches!(gone, Gone::Already | Gone::Unknown), state) };
    let held_by_other = state.leases[at].session.is_some_and(|holder| session != Some(holder));
    let done = state.changed(|leases| {
        if held_by_other {
            leases[at].quarantined = true;
        } else {
            leases.remove(at);
        }
    });
    match gone {
        // A node that was killed may never have heard of it.
        Gone::Unknown => vec![state.clone(), done],
        Gone::Quarantined if held_by_other => vec![done],
        Gone::Freed if !held_by_other => vec![done],
        _ => Vec::new(),
    }
}

/// Something that happened at the node to a lease whose number its caller may not know yet.
fn at_node(state: &State, id: u128, request: &str, change: impl FnOnce(&mut Vec<Held>, usize)) -> Vec<State> {
    let unseen = |lease: &Held| lease.id.is_none() && lease.request == request;
    let Some(at) = state.find(id).or_else(|| state.leases.iter().position(unseen)) else { return Vec::new() };
    let next = state.changed(|leases| change(leases, at));
    vec![State { last_id: state.last_id.max(id), ..next }]
}

fn only_if(true_now: bool, state: &State) -> Vec<State> {
    if true_now { vec![state.clone()] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::super::check::{Entry, Verdict, check};
    use super::*;

    const ROOM: Room = Room { pages: 10, requests: 2, indexer_pages: 10 };

    fn admit(request: &str, pages: u64, got: Got) -> Op {
        Op::Admit { request: request.into(), pages, got }
    }

    fn free(free_pages: u64, free_requests: u64) -> Op {
        Op::GetCapacity { free_pages, free_requests, epoch: 0 }
    }

    fn judge(calls: Vec<(Op, u64, Option<u64>)>) -> Verdict {
        let history: Vec<_> =
            calls.into_iter().map(|(op, invoked, answered)| Entry { op, invoked, answered }).collect();
        check(&ROOM, &history, 100_000)
    }

    fn in_turn(ops: Vec<Op>) -> Verdict {
        judge(ops.into_iter().zip(0..).map(|(op, at)| (op, at * 10, Some(at * 10 + 1))).collect())
    }

    fn bad(verdict: &Verdict) -> bool {
        matches!(verdict, Verdict::NotLinearizable { .. })
    }

    #[test]
    fn the_last_seat_goes_to_one_of_two_racing_callers_and_not_to_both() {
        let one = |other| {
            vec![
                (admit("first", 1, Got::Lease(1)), 0, Some(1)),
                (admit("a", 1, Got::Lease(2)), 10, Some(20)),
                (admit("b", 1, other), 10, Some(20)),
            ]
        };
        assert_eq!(judge(one(Got::Busy)), Verdict::Linearizable);
        assert!(bad(&judge(one(Got::Lease(3)))));
    }

    #[test]
    fn busy_is_a_lie_while_there_is_room() {
        assert!(bad(&in_turn(vec![admit("a", 5, Got::Busy)])));
        assert_eq!(in_turn(vec![admit("a", 9, Got::Lease(1)), admit("b", 2, Got::Busy)]), Verdict::Linearizable);
    }

    #[test]
    fn what_a_release_freed_is_seen_by_the_next_call() {
        let gone = Op::Release { id: 1, session: None, gone: Gone::Freed };
        let calls = |left| vec![admit("a", 5, Got::Lease(1)), gone.clone(), free(left, 2)];
        assert_eq!(in_turn(calls(10)), Verdict::Linearizable);
        assert!(bad(&in_turn(calls(5))));
    }

    #[test]
    fn a_lease_is_freed_once() {
        let gone = |gone| Op::Release { id: 1, session: None, gone };
        let calls = |second| vec![admit("a", 5, Got::Lease(1)), gone(Gone::Freed), gone(second)];
        assert_eq!(in_turn(calls(Gone::Already)), Verdict::Linearizable);
        assert!(bad(&in_turn(calls(Gone::Freed))));
    }

    #[test]
    fn one_request_id_never_names_two_live_leases() {
        assert!(bad(&in_turn(vec![admit("a", 5, Got::Lease(1)), admit("a", 5, Got::Lease(2))])));
        assert_eq!(in_turn(vec![admit("a", 5, Got::Lease(1)), admit("a", 5, Got::Lease(1))]), Verdict::Linearizable);
    }

    #[test]
    fn an_unanswered_admit_explains_missing_pages_and_is_found_again_by_its_name() {
        let lost = (admit("a", 5, Got::Unknown), 0, None);
        let then = |second: Op| vec![lost.clone(), (second, 10, Some(11)), (free(5, 1), 20, Some(21))];
        assert_eq!(judge(then(free(5, 1))), Verdict::Linearizable);
        assert_eq!(judge(then(free(10, 2))), Verdict::Linearizable);
        assert_eq!(judge(then(admit("a", 5, Got::Lease(4)))), Verdict::Linearizable);
        assert!(bad(&judge(then(free(6, 1)))));
    }

    #[test]
    fn quarantined_pages_are_nobodys_until_the_node_frees_them() {
        let gone = Op::Quarantine { id: 1, request: "a".into() };
        let freed = Op::Free { id: 1, request: "a".into() };
        let full = admit("a", 10, Got::Lease(1));
        assert!(bad(&in_turn(vec![full.clone(), gone.clone(), admit("b", 1, Got::Lease(2))])));
        assert_eq!(in_turn(vec![full, gone, freed, admit("b", 1, Got::Lease(2))]), Verdict::Linearizable);
    }

    #[test]
    fn a_commit_of_an_older_epoch_is_never_accepted() {
        let commit = |epoch, done| Op::Commit { id: 1, epoch, session: None, done: Some(done) };
        let calls = |then| vec![Op::Restart { keeps: false, epoch: 4 }, admit("a", 1, Got::Lease(1)), then];
        assert_eq!(in_turn(calls(commit(4, true))), Verdict::Linearizable);
        assert_eq!(in_turn(calls(commit(3, false))), Verdict::Linearizable);
        assert!(bad(&in_turn(calls(commit(3, true)))));
    }

    #[test]
    fn a_restart_with_a_journal_keeps_what_is_held_and_one_without_empties_the_node() {
        let after = |keeps, free_pages, free_requests| {
            let after = Op::GetCapacity { free_pages, free_requests, epoch: 2 };
            in_turn(vec![admit("a", 9, Got::Lease(1)), Op::Restart { keeps, epoch: 2 }, after])
        };
        assert_eq!(after(true, 1, 1), Verdict::Linearizable);
        assert_eq!(after(false, 10, 2), Verdict::Linearizable);
        assert!(bad(&after(true, 10, 2)), "a node that forgot a lease is found out");
    }
}
