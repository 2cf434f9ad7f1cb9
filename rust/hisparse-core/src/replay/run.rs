//! The event loop of a replay.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use serde::Serialize;

use super::auditor::Auditor;
use super::outcome::{Outcome, Sample, Tally};
use super::trace::TraceRequest;
use crate::env::{Entropy, Moment};
use crate::error::{Problem, Problems};
use crate::ledger::{
    AdmitRequest, CommitBy, Epoch, Granted, Lease, Ledger, LedgerConfig, NodeCapacity, Offer, Refusal, SessionId,
    Ticket, WaitQueue,
};
use crate::limits::{
    MAX_PREFILL_TOKENS_PER_SECOND, MAX_WAIT, REPLAY_DECODE, REPLAY_MAX_WAIT, REPLAY_PREFILL_TPS, REPLAY_SAMPLES,
};
use crate::units::Tokens;

/// How the replay's engine behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayOptions {
    /// Longest a request waits for room.
    pub max_wait: Duration,
    /// Time to produce one token.
    pub decode: Duration,
    /// Tokens prefilled per second, per request.
    pub prefill_tokens_per_second: u64,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self { max_wait: REPLAY_MAX_WAIT, decode: REPLAY_DECODE, prefill_tokens_per_second: REPLAY_PREFILL_TPS }
    }
}

/// A replay's findings.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replay {
    /// The numbers.
    pub outcome: Outcome,
    /// The node over time, evenly spaced.
    pub timeline: Vec<Sample>,
}

/// What happens next to a running request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Its prompt is in host memory. Before the end, where both come at once.
    Prefilled,
    /// Its last token is out.
    Finished,
}

#[derive(Debug)]
struct Run<'a> {
    trace: &'a [TraceRequest],
    options: ReplayOptions,
    node: NodeCapacity,
    ledger: Ledger,
    queue: WaitQueue,
    waiting: BTreeMap<Ticket, usize>,
    running: BTreeMap<usize, Lease>,
    events: BinaryHeap<Reverse<(Moment, Event, usize)>>,
    auditor: Auditor,
    outcome: Outcome,
    waits: Tally,
    new_extents: Tally,
    shared_extents: Tally,
    timeline: Vec<Sample>,
    sample_every_ms: u64,
    next_sample_ms: u64,
}

/// The one engine of the replay.
const ENGINE: SessionId = SessionId(1);

/// Plays `trace` on a node of this capacity. `progress` is told how many requests have arrived.
///
/// # Errors
/// A capacity or an option that is out of range.
pub fn play(
    trace: &[TraceRequest],
    node: &NodeCapacity,
    options: ReplayOptions,
    progress: &mut dyn FnMut(usize),
) -> Result<Replay, Problems> {
    check(options)?;
    let ledger = Ledger::new(LedgerConfig::new(*node), Epoch::FIRST, &mut Fixed(0))?;
    let (first_ms, last_ms) = match trace {
        [first, .., last] => (first.at_ms, last.at_ms),
        _ => (0, 0),
    };
    let run = Run {
        trace,
        options,
        node: *node,
        ledger,
        queue: WaitQueue::new(),
        waiting: BTreeMap::new(),
        running: BTreeMap::new(),
        events: BinaryHeap::new(),
        auditor: Auditor::new(node),
        outcome: Outcome { requests: trace.len() as u64, total_pages: node.host_pages.get(), ..Outcome::default() },
        waits: Tally::default(),
        new_extents: Tally::default(),
        shared_extents: Tally::default(),
        timeline: Vec::new(),
        sample_every_ms: ((last_ms - first_ms) / REPLAY_SAMPLES).max(1),
        next_sample_ms: first_ms,
    };
    Ok(run.play(progress))
}

fn check(options: ReplayOptions) -> Result<(), Problems> {
    let mut problems = Problems::new();
    if options.max_wait > MAX_WAIT {
        let rule = format!("must be at most {MAX_WAIT:?}");
        problems.push(Problem::new("--max-wait", format!("{:?}", options.max_wait), rule, "wait less"));
    }
    if options.decode > Duration::from_secs(60) {
        let value = format!("{:?}", options.decode);
        problems.push(Problem::new("--decode-ms", value, "must be at most a minute a token", "give milliseconds"));
    }
    let rate = options.prefill_tokens_per_second;
    if !(1..=MAX_PREFILL_TOKENS_PER_SECOND).contains(&rate) {
        let remedy = format!("give a number from 1 to {MAX_PREFILL_TOKENS_PER_SECOND}");
        problems.push(Problem::new("--prefill-tps", rate, "must be a possible rate", remedy));
    }
    problems.into_result(())
}

impl Run<'_> {
    fn play(mut self, progress: &mut dyn FnMut(usize)) -> Replay {
        for place in 0..self.trace.len() {
            self.catch_up(Some(ms(self.trace[place].at_ms)));
            self.arrive(place);
            progress(place + 1);
        }
        self.catch_up(None);
        let Self { mut outcome, waits, new_extents, shared_extents, auditor, .. } = self;
        outcome.overcommit = auditor.overcommit;
        outcome.wait_ms = waits.percentiles();
        outcome.new_extents_per_request = new_extents.per_request();
        outcome.shared_extents_per_request = shared_extents.per_request();
        Replay { outcome, timeline: self.timeline }
    }

    /// Plays all events up to an arrival, or to the end.
    fn catch_up(&mut self, arrival: Option<Moment>) {
        loop {
            let event = self.events.peek().map(|Reverse((at, ..))| *at);
            let next = [event, self.queue.next_deadline()].into_iter().flatten().min();
            let Some(now) = next.filter(|next| arrival.is_none_or(|arrival| *next <= arrival)) else { break };
            self.sample_until(now);
            while let Some(Reverse((at, ..))) = self.events.peek()
                && *at <= now
                && let Some(Reverse((_, event, place))) = self.events.pop()
            {
                match event {
                    Event::Finished => self.finish(place, now),
                    Event::Prefilled => self.publish(place, now),
                }
            }
            self.serve(now);
        }
        if let Some(arrival) = arrival {
            self.sample_until(arrival);
        }
    }

    fn arrive(&mut self, place: usize) {
        let asked = &self.trace[place];
        let now = ms(asked.at_ms);
        let request = AdmitRequest {
            prefix_hashes: asked.page_hashes(self.node.page_tokens),
            ..AdmitRequest::new("", asked.input_tokens, asked.output_tokens)
        };
        match self.queue.offer(&mut self.ledger, request, self.options.max_wait, now) {
            Ok(Offer::Granted(granted)) => self.start(place, &granted, now),
            Ok(Offer::Waiting(ticket)) => {
                self.note_busy();
                self.waiting.insert(ticket, place);
            }
            Err(refusal) => self.refuse(&refusal),
        }
    }

    fn serve(&mut self, now: Moment) {
        for served in self.queue.serve(&mut self.ledger, now) {
            let Some(place) = self.waiting.remove(&served.ticket) else { continue };
            match served.outcome {
                Ok(granted) => {
                    self.outcome.waited += 1;
                    self.start(place, &granted, now);
                }
                Err(refusal) => self.refuse(&refusal),
            }
        }
    }

    fn refuse(&mut self, refusal: &Refusal) {
        if refusal.passes_with_time() {
            self.note_busy();
            self.outcome.refused_busy += 1;
        } else {
            self.outcome.refused_never_fits += 1;
        }
    }

    fn start(&mut self, place: usize, granted: &Granted, now: Moment) {
        let asked = &self.trace[place];
        let Some(id) = granted.lease.id else { return };
        let epoch = self.ledger.epoch();
        let lease = self.ledger.commit(id, None, epoch, CommitBy::Session(ENGINE), now);
        let lease = lease.expect("the lease was granted at this moment, in this epoch");
        self.auditor.granted(&lease, self.tokens_of(place));
        let shared = lease.extents.page_numbers().take(lease.shared_pages as usize);
        let shared_runs = runs_of(shared);
        let all_runs = runs_of(lease.extents.page_numbers());
        self.shared_extents.add(shared_runs);
        // Where the first new page continues the last shared one, the two are one run: it is counted as shared.
        self.new_extents.add(all_runs.saturating_sub(shared_runs));
        self.waits.add(millis(now) - asked.at_ms);
        self.outcome.admitted += 1;
        self.outcome.prefix_hit_pages += u64::from(lease.shared_pages);

        let cached = u64::from(lease.shared_pages) * self.node.page_tokens;
        let to_prefill = asked.input_tokens.saturating_sub(cached);
        let prefill_us = u128::from(to_prefill) * 1_000_000 / u128::from(self.options.prefill_tokens_per_second);
        let prefilled = now.saturating_add(Duration::from_micros(u64::try_from(prefill_us).unwrap_or(u64::MAX)));
        let tokens = u32::try_from(asked.output_tokens).unwrap_or(u32::MAX);
        let finished = prefilled.saturating_add(self.options.decode.saturating_mul(tokens));
        self.events.push(Reverse((prefilled, Event::Prefilled, place)));
        self.events.push(Reverse((finished, Event::Finished, place)));
        self.running.insert(place, lease);
        self.outcome.peak_running = self.outcome.peak_running.max(self.running.len() as u64);
        self.outcome.peak_pages = self.outcome.peak_pages.max(self.used_pages());
    }

    fn publish(&mut self, place: usize, now: Moment) {
        let Some(id) = self.running.get(&place).and_then(|lease| lease.id) else { return };
        let hashes = self.trace[place].page_hashes(self.node.page_tokens);
        let published = self.ledger.publish(id, self.ledger.epoch(), 0, &hashes, now);
        published.expect("a running lease is committed, and its prompt's pages are its own");
    }

    fn finish(&mut self, place: usize, now: Moment) {
        let Some(lease) = self.running.remove(&place) else { return };
        self.auditor.released(&lease, self.tokens_of(place));
        if let Some(id) = lease.id {
            let released = self.ledger.release(id, None, Some(ENGINE), now);
            released.expect("an administrator's release fails for nothing");
        }
    }

    fn tokens_of(&self, place: usize) -> Tokens {
        Tokens::new(self.trace[place].input_tokens + self.trace[place].output_tokens)
    }

    fn used_pages(&self) -> u64 {
        let counts = self.ledger.pages().counts();
        counts.private + counts.held
    }

    #[allow(clippy::cast_precision_loss)] // pages are far below 2^52
    fn note_busy(&mut self) {
        let used = self.used_pages() as f64 / self.node.host_pages.get() as f64;
        self.outcome.used_at_first_busy.get_or_insert(used);
    }

    fn sample_until(&mut self, now: Moment) {
        while self.next_sample_ms <= millis(now) {
            self.timeline.push(Sample {
                at_ms: self.next_sample_ms,
                used_pages: self.used_pages(),
                evictable_pages: self.ledger.pages().counts().evictable,
                seats: self.running.len() as u64,
                waiting: self.queue.len() as u64,
            });
            self.next_sample_ms += self.sample_every_ms;
        }
    }
}

fn runs_of(pages: impl Iterator<Item = u32>) -> u64 {
    let mut runs = 0;
    let mut next = None;
    for page in pages {
        runs += u64::from(next != Some(page));
        next = Some(page + 1);
    }
    runs
}

const fn ms(milliseconds: u64) -> Moment {
    Moment::from_origin(Duration::from_millis(milliseconds))
}

fn millis(moment: Moment) -> u64 {
    u64::try_from(moment.since_origin().as_millis()).unwrap_or(u64::MAX)
}

/// No secrets in a replay: the same run every time.
#[derive(Debug)]
struct Fixed(u64);

impl Entropy for Fixed {
    fn next_u64(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}
