//! What goes wrong, when, and what is left of it.
//!
//! ```text
//!  plan_faults ─► (time, fault) ─► strike ─► a process is gone, a clock is off, a socket is closed
//! ```

use hisparse_core::ledger::SessionId;

use super::fault::Fault;
use super::{Event, MS, World};
use crate::actors::engine::Engine;
use crate::actors::router::Router;
use crate::audit::Finding;
use crate::call::{CallId, Input, Who};
use crate::clock::NodeClock;
use crate::dice::Dice;
use crate::node::make::make_node;

impl World {
    pub(super) fn plan_faults(&mut self) {
        let f = self.faults;
        self.recur(f.node_dies_every_ms, |_| Fault::NodeDies);
        self.recur(f.node_pauses_every_ms, |_| Fault::NodePauses);
        self.recur(f.clock_steps_every_ms, |_| Fault::ClockSteps);
        let (engines, routers) = (self.setup.engines as u64, self.setup.routers as u64);
        self.recur(f.engine_dies_every_ms, |dice| Fault::EngineDies(place_of(dice, engines)));
        self.recur(f.router_dies_every_ms, |dice| Fault::RouterDies(place_of(dice, routers)));
    }

    /// Faults of one kind, spread over the busy time. No two are closer than half their mean distance.
    fn recur(&mut self, every_ms: u64, fault: impl Fn(&mut Dice) -> Fault) {
        if every_ms == 0 {
            return;
        }
        let mut at = 0;
        loop {
            at += self.chaos.within(every_ms / 2..=every_ms * 3 / 2) * MS;
            if at > self.setup.busy_us {
                break;
            }
            let fault = fault(&mut self.chaos);
            self.after(at, Event::Fault(fault));
        }
    }

    fn node_starts(&mut self) -> Result<(), Finding> {
        if self.node.is_some() {
            return Ok(());
        }
        self.epoch += self.chaos.within(1..=3);
        let node = make_node(self.seed, self.epoch, &self.setup, self.bug);
        self.seen = node.seen();
        self.node = Some(node);
        self.node_life += 1;
        self.start_clock();
        self.number += 1;
        self.history.restarted(self.epoch, self.number);
        if self.audited { self.auditor.restarted(self.seen.clone()) } else { Ok(()) }
    }

    pub(super) fn start_clock(&mut self) {
        let ppm = i64::try_from(self.chaos.within(0..=self.faults.clock_drift_ppm)).unwrap_or(0);
        self.clock = NodeClock::start(self.at_us, if self.chaos.chance(500) { ppm } else { -ppm });
    }

    fn engine_starts(&mut self, place: usize) -> Result<(), Finding> {
        if self.engines[place].2 || self.node.is_none() {
            return Ok(());
        }
        let life = self.engines[place].0 + 1;
        let first = life == 1;
        self.next_session += 1;
        let session = SessionId(self.next_session);
        let engine = Engine::new(session, Some(&self.engines[place].1).filter(|_| !first));
        self.engines[place] = (life, engine, true);
        self.step(&Input::Attached(session))?;
        self.with_actor(Who::Engine(place), |world, out| world.engines[place].1.begin(out));
        Ok(())
    }

    pub(super) fn close_engine(&mut self, place: usize, notice_us: u64) {
        let Some((_, engine, lives)) = self.engines.get_mut(place).filter(|(.., lives)| *lives) else { return };
        *lives = false;
        let breath = u64::try_from(Engine::last_breath().as_micros()).unwrap_or(0);
        self.auditor.transfers_end(&engine.leases(), self.at_us + breath);
        let fault = Fault::SessionLost { session: engine.session, node_life: self.node_life };
        self.after(notice_us, Event::Fault(fault));
    }

    pub(super) fn strike(&mut self, fault: Fault) -> Result<(), Finding> {
        match fault {
            Fault::NodeDies => {
                self.node = None;
                self.node_life += 1;
                let down = self.chaos.within(100..=5_000) * MS;
                self.after(down, Event::Fault(Fault::NodeStarts));
                // Every session dies with it, and is told at once.
                for place in 0..self.engines.len() {
                    self.engines[place].2 = false;
                    let back = down + self.chaos.within(1..=500) * MS;
                    self.after(back, Event::Fault(Fault::EngineStarts(place)));
                }
            }
            Fault::NodeStarts => self.node_starts()?,
            Fault::NodePauses => {
                let pause = self.chaos.within(1..=self.faults.pause_ms.max(1)) * MS;
                self.paused_until_us = self.paused_until_us.max(self.at_us + pause);
            }
            Fault::ClockSteps => {
                let step = self.chaos.within(1..=self.faults.clock_step_ms.max(1)) * MS;
                let step = i64::try_from(step).unwrap_or(0);
                self.clock.step(if self.chaos.chance(500) { step } else { -step });
            }
            Fault::EngineDies(place) => {
                if self.engines.get(place).is_some_and(|(.., lives)| *lives) {
                    let notice = self.chaos.within(0..=self.faults.death_noticed_after_ms) * MS;
                    self.close_engine(place, notice);
                    let back = self.chaos.within(50..=5_000) * MS;
                    self.after(back, Event::Fault(Fault::EngineStarts(place)));
                }
            }
            Fault::EngineStarts(place) => self.engine_starts(place)?,
            Fault::SessionLost { session, node_life } if node_life == self.node_life && self.node.is_some() => {
                self.step(&Input::SessionLost(session))?;
            }
            Fault::RouterDies(place) => {
                let life = self.routers[place].0 + 1;
                self.routers[place] = (life, Router::new(place, life, self.setup.busy_us));
                let gone: Vec<CallId> =
                    self.callers.iter().filter(|(_, (who, _))| *who == Who::Router(place)).map(|(id, _)| *id).collect();
                for call in gone {
                    self.cancel(call)?;
                }
                self.with_actor(Who::Router(place), |_, out| Router::begin(out));
            }
            Fault::SessionLost { .. } => {}
        }
        Ok(())
    }
}

fn place_of(dice: &mut Dice, of: u64) -> usize {
    usize::try_from(dice.below(of)).unwrap_or(0)
}
