//! Where the allocator puts pages after much coming and going: what a swap-in benchmark should read from.
//!
//! ```text
//!  page_layout PAGES PERCENT STEPS SEED ──► [[[start, pages], …], …]        extents of each lease that is live at the end
//! ```
//! Requests of 8,192 to 65,536 tokens come while at most PERCENT of the pool is taken and go in random order, one
//! tenant, no prefixes.

use std::io::Write;
use std::time::Duration;

use hisparse_core::env::{Entropy, Moment};
use hisparse_core::ledger::{AdmitRequest, Epoch, Lease, Ledger, LedgerConfig, NodeCapacity};

const SEATS: u64 = 4_096;
const PAGE_TOKENS: u64 = hisparse_core::limits::PAGE_TOKENS;
const SHORTEST_TOKENS: u64 = 8_192;
const LONGEST_TOKENS: u64 = 65_536;

/// Xorshift64*: the same on every machine.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound.max(1)
    }
}

impl Entropy for Seeded {
    fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |missing: u64| numbers.next().unwrap_or(Ok(missing));
    let (pages, percent, steps, seed) = (next(131_072)?, next(100)?, next(20_000)?, next(1)?);
    let most = pages * percent / 100;
    let mut random = Seeded(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let now = Moment::from_origin(Duration::ZERO);
    let capacity = NodeCapacity::of_host_pages(pages, SEATS);
    let epoch = Epoch::new(1).ok_or("1 is an epoch")?;
    let mut node =
        Ledger::new(LedgerConfig::new(capacity), epoch, &mut random).map_err(|problems| problems.to_string())?;
    let mut live = Vec::new();
    let mut taken = 0;
    for step in 0..steps {
        let tokens = SHORTEST_TOKENS + random.below(LONGEST_TOKENS - SHORTEST_TOKENS);
        let request = AdmitRequest::new(&format!("request-{step}"), tokens, PAGE_TOKENS);
        let room = taken + (tokens + PAGE_TOKENS).div_ceil(PAGE_TOKENS) <= most;
        if let Some(granted) = room.then(|| node.admit(&request, now).ok()).flatten() {
            taken += u64::from(granted.lease.pages);
            live.push(granted.lease);
            continue;
        }
        for _ in 0..(1 + random.below(3)).min(live.len() as u64) {
            // Full: some leave, in no order.
            let gone: Lease = live.swap_remove(usize::try_from(random.below(live.len() as u64))?);
            taken -= u64::from(gone.pages);
            node.release(gone.id.ok_or("a granted lease has an id")?, None, None, now)
                .map_err(|refusal| format!("{refusal:?}"))?;
        }
    }
    let extents: Vec<Vec<[u32; 2]>> =
        live.iter().map(|lease| lease.extents.iter().map(|extent| [extent.start, extent.pages]).collect()).collect();
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&extents)?)?;
    Ok(())
}
