//! Making certain that a node holds nothing for a job, step by step as the core says.
//!
//! ```text
//!   outcome unknown ─┐                                ┌─► safe: the job looks for another node
//!   node died ───────┴─► Settling: Rest, Release … ───┤
//!                                                     └─► a second Release in the background
//! ```

use hisparse_core::env::Moment;
use hisparse_core::fleet::{Dice, Settle, Settling};
use hisparse_core::limits::{FLEET_ATTEMPT, FLEET_TTL};

use super::event::Event;
use super::job::{JobId, NodeIndex};
use super::node::State;
use super::undoing::Undoing;
use super::world::World;

impl World {
    /// Begins: the attempt's deadline, or the word of the node's death, is now.
    pub(super) fn undo(&mut self, job: JobId, node: NodeIndex, now: Moment) {
        let settling = Settling::new(now, FLEET_TTL, Dice::of_seed(job as u64));
        self.undoing.push(Undoing { job, node, settling, told: false });
        self.settle(self.undoing.len() - 1, now);
    }

    pub(super) fn settle(&mut self, place: usize, now: Moment) {
        let undoing = &self.undoing[place];
        match undoing.settling.next(now) {
            Settle::Rest(rest) => self.agenda.at(now.saturating_add(rest), Event::Settle(place)),
            Settle::Release => {
                let way = self.nodes[undoing.node].way(&self.setup, &mut self.dice);
                self.agenda.at(now.saturating_add(way), Event::Release(place));
            }
            Settle::Done => self.tell_if_safe(place, now),
        }
    }

    /// A Release is at the node.
    pub(super) fn release(&mut self, place: usize, now: Moment) {
        let (job, node) = (self.undoing[place].job, self.undoing[place].node);
        let back = match self.nodes[node].state {
            State::Hung => FLEET_ATTEMPT,
            State::Gone => self.setup.call,
            State::Up => {
                self.end(job, node, now);
                self.nodes[node].way(&self.setup, &mut self.dice)
            }
        };
        let answered = self.nodes[node].is_up();
        self.agenda.at(now.saturating_add(back), Event::Released { settling: place, answered });
    }

    pub(super) fn released(&mut self, place: usize, answered: bool, now: Moment) {
        self.undoing[place].settling.released(answered, now);
        self.tell_if_safe(place, now);
        self.settle(place, now);
    }

    fn tell_if_safe(&mut self, place: usize, now: Moment) {
        let undoing = &mut self.undoing[place];
        if undoing.told || !undoing.settling.is_safe(now) {
            return;
        }
        undoing.told = true;
        let (job, node) = (undoing.job, undoing.node);
        if self.jobs[job].placing.is_some() {
            self.jobs[job].placing.iter_mut().for_each(hisparse_core::fleet::Placing::settled);
            self.look(job, now);
        } else {
            self.begin(job, Some(node), now);
        }
    }
}
