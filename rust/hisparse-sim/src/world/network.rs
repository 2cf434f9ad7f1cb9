//! The network between callers and the node: it takes its time, loses, repeats, and lets one message overtake another.
//!
//! ```text
//!  actor ─► send ─► (lost) (twice) (slow) ─► arrive ─► step ─► (lost) (slow) ─► deliver ─► actor
//! ```

use super::{Event, MS, World};
use crate::actors::Out;
use crate::audit::Finding;
use crate::call::{Answer, Call, CallId, Input, Who};

impl World {
    /// A call's stream is reset. A waiting call hears of it; what the network still carries does not.
    pub(super) fn cancel(&mut self, call: CallId) -> Result<(), Finding> {
        self.callers.remove(&call);
        if self.node.as_ref().is_some_and(|node| node.waiting().contains(&call)) {
            self.step(&Input::Cancel(call))?;
        }
        Ok(())
    }

    /// Lets an actor act, and carries out what it wants.
    pub(super) fn with_actor(&mut self, who: Who, act: impl FnOnce(&mut Self, &mut Out<'_>)) {
        let (setup, faults) = (self.setup.clone(), self.faults);
        let (mut dice, mut next_call) = (self.work.clone(), self.next_call);
        let mut out = Out {
            dice: &mut dice,
            faults: &faults,
            setup: &setup,
            now_us: self.at_us,
            next_call: &mut next_call,
            calls: Vec::new(),
            wakes: Vec::new(),
            handovers: Vec::new(),
            transfers: Vec::new(),
        };
        act(self, &mut out);
        let Out { calls, wakes, handovers, transfers, .. } = out;
        (self.work, self.next_call) = (dice, next_call);
        let life = match who {
            Who::Router(place) => self.routers[place].0,
            Who::Engine(place) => self.engines[place].0,
        };
        for (lease, for_us) in transfers {
            self.auditor.transfer_begins(&lease, self.at_us + for_us);
        }
        for call in calls {
            self.send(&call, who, life);
        }
        for (delay, wake) in wakes {
            self.after(delay, Event::Wake { who, life, wake });
        }
        for (engine, handover) in handovers {
            let delay = self.delay();
            self.after(delay, Event::Handover { engine, handover });
        }
    }

    pub(super) fn delay(&mut self) -> u64 {
        let slow = self.chaos.chance(self.faults.slow_per_mille);
        let usual = self.chaos.within(50..=1_000);
        if slow { usual + self.chaos.within(0..=self.faults.slow_ms * MS) } else { usual }
    }

    pub(super) fn send(&mut self, call: &Call, from: Who, life: u64) {
        self.number += 1;
        self.history.sent(call, self.number);
        self.callers.insert(call.id, (from, life));
        let copies = 1 + u64::from(self.chaos.chance(self.faults.duplicated_per_mille));
        for _ in 0..copies {
            let delay = self.delay();
            if !self.chaos.chance(self.faults.call_lost_per_mille) {
                self.after(delay, Event::ToNode { call: call.clone(), from, life });
            }
        }
    }

    /// A call reaches the node's socket. It is looked at when the node is not paused.
    pub(super) fn arrive(&mut self, call: Call, from: Who, life: u64) -> Result<(), Finding> {
        if self.node.is_none() {
            return Ok(());
        }
        if self.at_us < self.paused_until_us {
            // It keeps its patience: the node counts from when it reads a call.
            let delay = self.paused_until_us - self.at_us;
            self.after(delay, Event::ToNode { call, from, life });
            return Ok(());
        }
        let arrived = self.clock.now(self.at_us);
        self.step(&Input::Call { call, arrived })?;
        self.scrub()
    }

    pub(super) fn deliver(&mut self, to: Who, life: u64, call: CallId, answer: &Answer, said: u64) {
        if !self.lives(to, life) || self.callers.remove(&call).is_none() {
            return;
        }
        self.number += 1;
        self.history.answered(call, said, self.number);
        self.with_actor(to, |world, out| match to {
            Who::Router(place) => world.routers[place].1.answered(call, answer, out),
            Who::Engine(place) => world.engines[place].1.answered(call, answer, out),
        });
    }

    pub(super) fn lives(&self, who: Who, life: u64) -> bool {
        match who {
            Who::Router(place) => self.routers[place].0 == life,
            Who::Engine(place) => self.engines[place].0 == life && self.engines[place].2,
        }
    }
}
