//! The jobs of a run: how many, when, and of which shape.
//!
//! ```text
//!   rate = load × min( seats ÷ mean hold, pages ÷ mean (hold × pages) )       jobs of the start: rate × mean hold (Little)
//! ```

use std::time::Duration;

use hisparse_core::env::Moment;
use hisparse_core::error::{Problem, Problems};
use hisparse_core::fleet::Demand;
use hisparse_core::limits::MAX_SIMULATED_REQUESTS;
use hisparse_core::replay::TraceRequest;

use super::job::{Job, Shape};
use super::setup::Setup;
use crate::dice::Dice;

/// Time between two bursts, and what one takes; a quarter of all arrivals come in them.
const BURST_EVERY_US: u64 = 5_000_000;
const BURST_US: u64 = 500_000;
const BURST_MILLI: u64 = 250;

/// The shapes of a trace.
#[derive(Debug)]
pub(super) struct Workload {
    shapes: Vec<Shape>,
    /// Sum of hold times up to each shape, for draws of jobs that run at a moment.
    hold_us: Vec<u64>,
    /// Sum of pages times hold time.
    page_us: u128,
}

impl Workload {
    pub(super) fn of(trace: &[TraceRequest]) -> Self {
        let shapes: Vec<_> = trace.iter().map(Shape::of).collect();
        let mut hold_us = Vec::with_capacity(shapes.len());
        let (mut sum, mut page_us) = (0_u64, 0_u128);
        for shape in &shapes {
            let hold = micros(shape.hold);
            sum = sum.saturating_add(hold);
            hold_us.push(sum);
            page_us += u128::from(hold) * u128::from(Demand::of_tokens(shape.tokens).pages());
        }
        Self { shapes, hold_us, page_us }
    }

    fn total_us(&self) -> u64 {
        self.hold_us.last().copied().unwrap_or(1).max(1)
    }

    /// Requests that arrive, and those that run when the run begins.
    ///
    /// # Errors
    /// There are none, or more than are kept.
    pub(super) fn check(&self, setup: &Setup) -> Result<(), Problems> {
        let window = setup.warm.saturating_add(setup.measured);
        let arriving = self.count(setup, window);
        let requests = arriving.saturating_add(self.count(setup, self.mean_hold()));
        let mut problems = Problems::new();
        if arriving == 0 {
            let remedy = "give a trace with requests, more nodes, or more seconds";
            problems.push(Problem::new("requests", 0, "must be one at least", remedy));
        } else if requests > MAX_SIMULATED_REQUESTS {
            let rule = format!("must be at most {MAX_SIMULATED_REQUESTS}: each is kept until the end");
            problems.push(Problem::new("requests", requests, rule, "give fewer seconds, fewer nodes or less load"));
        }
        problems.into_result(())
    }

    fn mean_hold(&self) -> Duration {
        Duration::from_micros(self.total_us() / (self.shapes.len() as u64).max(1))
    }

    /// Arrivals within `window` at the setup's load.
    fn count(&self, setup: &Setup, window: Duration) -> u64 {
        let shapes = self.shapes.len() as u128;
        let of = |per_node: u64, work: u128| {
            let room = u128::from(per_node) * setup.nodes as u128 * u128::from(setup.load_milli);
            room * shapes * window.as_micros() / work.max(1) / 1_000
        };
        let count = of(setup.seats, u128::from(self.total_us())).min(of(setup.host_pages, self.page_us));
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// Shapes of jobs that run when the run begins, with what is left of each.
    pub(super) fn running(&self, setup: &Setup, dice: &mut Dice) -> Vec<(Shape, Duration)> {
        let draw = |_| {
            let at = dice.below(self.total_us());
            let shape = self.shapes[self.hold_us.partition_point(|sum| *sum <= at)];
            (shape, Duration::from_micros(dice.below(micros(shape.hold)) + 1))
        };
        (0..self.count(setup, self.mean_hold())).map(draw).collect()
    }

    /// Jobs in order of arrival.
    pub(super) fn arriving(&self, setup: &Setup, dice: &mut Dice) -> Vec<Job> {
        let window = setup.warm.saturating_add(setup.measured);
        let counted_from = Moment::from_origin(setup.warm);
        let arrives = |dice: &mut Dice| {
            let at = dice.below(micros(window));
            let in_burst = setup.bursts && dice.chance(BURST_MILLI);
            if in_burst { at - at % BURST_EVERY_US + dice.below(BURST_US) } else { at }
        };
        let mut times: Vec<u64> = (0..self.count(setup, window)).map(|_| arrives(dice)).collect();
        times.sort_unstable();
        let job = |at_us| {
            let arrives = Moment::from_origin(Duration::from_micros(at_us));
            let shape = dice.pick(&self.shapes).copied()?;
            let router = usize::try_from(dice.below(setup.routers as u64)).unwrap_or(0);
            Some(Job { counted: arrives >= counted_from, ..Job::new(shape, router, arrives) })
        };
        times.into_iter().filter_map(job).collect()
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
