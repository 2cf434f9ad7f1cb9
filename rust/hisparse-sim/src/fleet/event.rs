//! What happens next, in order of time; what comes at the same moment, in the order it was put in.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use hisparse_core::env::Moment;
use hisparse_core::fleet::{Answer, View};

use super::job::{JobId, NodeIndex};

/// One thing that happens.
#[derive(Debug)]
pub(super) enum Event {
    /// A job looks at its router's views.
    Look(JobId),
    /// Its Admit is at the node; `until` is the attempt's deadline.
    Admit { job: JobId, attempt: u32, node: NodeIndex, until: Moment },
    /// The answer is at the router.
    Answered { job: JobId, attempt: u32, answer: Answer, view: Option<Box<View>> },
    /// The attempt's time is over.
    Deadline { job: JobId, attempt: u32 },
    /// A lease that nobody commits would end now.
    Expire { job: JobId, node: NodeIndex, life: u64 },
    /// The last token is out.
    Finish { job: JobId, node: NodeIndex, life: u64 },
    /// A step of making certain, by its place among them.
    Settle(usize),
    /// Its Release is at the node.
    Release(usize),
    /// The Release came back.
    Released { settling: usize, answered: bool },
    /// A node dies; hung rather than gone where it takes calls and answers none.
    Die { node: NodeIndex, hung: bool },
    /// It is back, empty.
    Return(NodeIndex),
    /// A router finds that a node's watch is down.
    Broken { router: usize, node: NodeIndex },
    /// It tries to open it again.
    Probe { router: usize, node: NodeIndex },
    /// A job whose node died is told so.
    Lost(JobId),
    /// Every watch says that its view still holds.
    Beat,
    /// The load of all nodes is noted.
    Sample,
}

#[derive(Debug)]
struct Entry(Moment, u64, Event);

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.0, other.1).cmp(&(self.0, self.1)) // a heap gives the greatest first
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

/// All that is to happen.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    heap: BinaryHeap<Entry>,
    count: u64,
}

impl Agenda {
    pub(super) fn at(&mut self, at: Moment, event: Event) {
        self.heap.push(Entry(at, self.count, event));
        self.count += 1;
    }

    pub(super) fn next_at(&self) -> Option<Moment> {
        self.heap.peek().map(|entry| entry.0)
    }

    pub(super) fn pop(&mut self) -> Option<(Moment, Event)> {
        self.heap.pop().map(|entry| (entry.0, entry.2))
    }
}
