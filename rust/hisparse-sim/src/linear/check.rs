//! The search of Wing and Gong (1993) with Lowe's memory of configurations (2017).
//!
//! ```text
//!  configuration = (calls that have taken effect, state)
//!  next call     = any whose start lies before the end of every answered call that has not yet taken effect
//!  done          = every answered call has taken effect
//! ```
//! Two ways to the same configuration have the same future, so each is looked at once. A call that only looks, and sees
//! what is so, is next: whatever explains the rest with it later also does with it now. A history that is right is
//! found to be so almost at once; for one that is wrong, everything must be tried, and [`Verdict::Undecided`] says
//! that the search was cut short. It never passes for an answer.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash};

/// What one object may answer, call by call.
pub trait Spec {
    /// All that later answers depend on.
    type State: Clone + Eq + Hash + Debug;
    /// A call together with its answer, or with the fact that there was none.
    type Op: Debug;

    /// Before the first call.
    fn start(&self) -> Self::State;

    /// The states after this call, if it takes effect in this one and answers as it did. None: it cannot have. More
    /// than one: the answer does not tell.
    fn after(&self, state: &Self::State, op: &Self::Op) -> Vec<Self::State>;

    /// Whether a call that answers like this changes nothing, in whatever state it takes effect.
    fn only_looks(&self, op: &Self::Op) -> bool;
}

/// A call as its caller saw it. Times are any numbers that grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<Op> {
    /// What was called and what came back.
    pub op: Op,
    /// When it was sent.
    pub invoked: u64,
    /// When its answer came; `None`: never, so it may have taken effect at any time since, or not at all.
    pub answered: Option<u64>,
}

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Some order explains every answer.
    Linearizable,
    /// No order does. The places (in the history as it was given) of the calls that no order got beyond.
    NotLinearizable {
        /// Answered calls at which the longest explanation ends.
        stuck_at: Vec<usize>,
    },
    /// More configurations than were allowed.
    Undecided,
}

/// Which calls have taken effect, as bits.
type Taken = Vec<u64>;

fn has(taken: &Taken, place: usize) -> bool {
    taken[place / 64] >> (place % 64) & 1 == 1
}

/// Looks for an order, through at most `most` configurations.
pub fn check<S: Spec>(spec: &S, history: &[Entry<S::Op>], most: usize) -> Verdict {
    // In order of start, so that candidates are a prefix of what is left.
    let mut order: Vec<usize> = (0..history.len()).collect();
    order.sort_by_key(|place| history[*place].invoked);
    let answered_calls = history.iter().filter(|entry| entry.answered.is_some()).count();

    let mut seen: HashSet<(Taken, S::State), BuildHasherDefault<DefaultHasher>> = HashSet::default();
    let mut stack = vec![(vec![0_u64; history.len().div_ceil(64)], spec.start(), 0_usize)];
    let mut deepest = (0, Vec::new());
    while let Some((taken, state, explained)) = stack.pop() {
        if explained == answered_calls {
            return Verdict::Linearizable;
        }
        if !seen.insert((taken.clone(), state.clone())) {
            continue;
        }
        if seen.len() > most {
            return Verdict::Undecided;
        }
        let candidates = candidates(history, &order, &taken);
        if explained >= deepest.0 {
            deepest = (explained, candidates.iter().copied().filter(|at| history[*at].answered.is_some()).collect());
        }
        let look = candidates.iter().copied().find(|place| {
            let entry = &history[*place];
            entry.answered.is_some() && spec.only_looks(&entry.op) && !spec.after(&state, &entry.op).is_empty()
        });
        for place in look.map_or(candidates, |place| vec![place]) {
            let entry = &history[place];
            let answered = entry.answered.is_some();
            for next in spec.after(&state, &entry.op) {
                // A call that nobody saw the answer of and that changes nothing need not be placed.
                if !answered && next == state {
                    continue;
                }
                let mut with = taken.clone();
                with[place / 64] |= 1 << (place % 64);
                stack.push((with, next, explained + usize::from(answered)));
            }
        }
    }
    Verdict::NotLinearizable { stuck_at: deepest.1 }
}

/// Calls that may be next, the likeliest last, where the stack takes them from: unanswered ones come only when
/// nothing else helps, and of the others the one that ended first is tried first.
fn candidates<Op>(history: &[Entry<Op>], order: &[usize], taken: &Taken) -> Vec<usize> {
    let mut first_end = u64::MAX;
    let mut open = Vec::new();
    for place in order.iter().copied().filter(|place| !has(taken, *place)) {
        let entry = &history[place];
        if entry.invoked > first_end {
            break;
        }
        first_end = first_end.min(entry.answered.unwrap_or(u64::MAX));
        open.push(place);
    }
    open.retain(|place| history[*place].invoked <= first_end);
    open.sort_by_key(|place| std::cmp::Reverse(history[*place].answered.unwrap_or(u64::MAX)));
    open
}

/// A hash of anything, the same in every run.
pub(crate) fn digest(of: &impl Hash) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register: the textbook object.
    struct Register;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Write(u8),
        Read(u8),
    }

    impl Spec for Register {
        type State = u8;
        type Op = Op;

        fn start(&self) -> u8 {
            0
        }

        fn after(&self, state: &u8, op: &Op) -> Vec<u8> {
            match *op {
                Op::Write(value) => vec![value],
                Op::Read(value) => (value == *state).then_some(*state).into_iter().collect(),
            }
        }

        fn only_looks(&self, op: &Op) -> bool {
            matches!(op, Op::Read(_))
        }
    }

    fn history(calls: &[(Op, u64, Option<u64>)]) -> Vec<Entry<Op>> {
        calls.iter().map(|&(op, invoked, answered)| Entry { op, invoked, answered }).collect()
    }

    fn judge(calls: &[(Op, u64, Option<u64>)]) -> Verdict {
        check(&Register, &history(calls), 10_000)
    }

    #[test]
    fn a_read_may_see_a_write_that_runs_beside_it_or_not() {
        for value in [0, 1] {
            let calls = [(Op::Write(1), 0, Some(10)), (Op::Read(value), 5, Some(6))];
            assert_eq!(judge(&calls), Verdict::Linearizable, "{value}");
        }
    }

    #[test]
    fn a_read_after_a_write_must_see_it() {
        let calls = [(Op::Write(1), 0, Some(1)), (Op::Read(0), 2, Some(3))];
        assert_eq!(judge(&calls), Verdict::NotLinearizable { stuck_at: vec![1] });
    }

    #[test]
    fn two_readers_agree_on_the_order_of_two_writes() {
        let writes = [(Op::Write(1), 0, Some(100)), (Op::Write(2), 0, Some(100))];
        let with = |seen: [u8; 4]| {
            let reads =
                seen.into_iter().zip(1..).map(|(value, turn)| (Op::Read(value), turn * 10, Some(turn * 10 + 1)));
            judge(&writes.into_iter().chain(reads).collect::<Vec<_>>())
        };
        assert_eq!(with([1, 1, 2, 2]), Verdict::Linearizable);
        assert!(matches!(with([1, 2, 1, 2]), Verdict::NotLinearizable { .. }));
    }

    #[test]
    fn a_write_without_an_answer_may_have_happened_late_or_never() {
        let lost = (Op::Write(1), 0, None);
        assert_eq!(judge(&[lost, (Op::Read(0), 5, Some(6)), (Op::Read(1), 7, Some(8))]), Verdict::Linearizable);
        assert_eq!(judge(&[lost, (Op::Read(0), 5, Some(6))]), Verdict::Linearizable);
        let back = [lost, (Op::Read(1), 5, Some(6)), (Op::Read(0), 7, Some(8))];
        assert!(matches!(judge(&back), Verdict::NotLinearizable { .. }));
    }

    #[test]
    fn a_search_that_is_cut_short_says_so() {
        let calls: Vec<_> = (0..12).map(|value| (Op::Write(value), 0, Some(100))).collect();
        let mut history = history(&calls);
        history.push(Entry { op: Op::Read(77), invoked: 200, answered: Some(201) });
        assert_eq!(check(&Register, &history, 100), Verdict::Undecided);
    }
}
