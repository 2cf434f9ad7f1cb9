//! How a record is written, and read from bytes that anything may have happened to.
//!
//! ```text
//!  kind, 1 byte │ fields, numbers of 1 to 10 bytes
//! ```

use std::time::Duration;

use super::{Entry, KeptLease, NodeKey};
use crate::journal::bytes::{Take, Unreadable, put_extents, put_number, put_text};
use crate::journal::hashed::{HashedPart, HashedRun};
use crate::ledger::{Holder, LeaseId, LeaseState, NodeCapacity, SessionId, WindowCapacity};
use crate::limits::PAGE_HASH_BYTES;
use crate::pages::{Extent, Isolation};
use crate::units::{Pages, Rows, Tokens};

impl Entry {
    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Node { capacity, isolation, key } => put_node(out, capacity, *isolation, key),
            Self::Tenant { index, name, salt } => {
                out.push(2);
                put_number(out, (*index).into());
                put_text(out, name);
                put_words(out, salt);
            }
            Self::Left { run, kind } => {
                put_run(out, 3, *run);
                put_number(out, (*kind).into());
            }
            Self::Cached { tenant, run } => {
                out.push(14);
                put_number(out, (*tenant).into());
                put_hashed(out, run.part());
            }
            Self::Granted(lease) => put_lease(out, lease),
            Self::Extended { id, tokens, added } => {
                put_id(out, 6, *id);
                put_number(out, tokens.get());
                put_extents(out, added);
            }
            Self::Stands { id, state, holder, ttl } => {
                put_id(out, 7, *id);
                put_standing(out, *state, *holder, *ttl);
            }
            Self::Filled { id, fillers } => {
                put_id(out, 16, *id);
                put_sessions(out, fillers);
            }
            Self::Sealed { id, runs } => put_sealed(out, *id, runs.iter().map(HashedRun::part)),
            Self::Durable { id, pages } => {
                put_id(out, 9, *id);
                put_number(out, (*pages).into());
            }
            Self::Ended { id } => put_id(out, 10, *id),
            Self::Scrubbing(run) => put_run(out, 11, *run),
            Self::Scrubbed(run) => put_run(out, 12, *run),
            Self::Note(words) => {
                out.push(13);
                out.extend_from_slice(words);
            }
        }
    }

    /// Reads a record from bytes that anything may have happened to.
    ///
    /// # Errors
    /// What is wrong with them, where they are none that [`Entry::encode`] writes.
    pub fn decode(record: &[u8]) -> Result<Self, Unreadable> {
        let mut take = Take(record);
        let entry = match take.byte()? {
            1 => take_node(&mut take)?,
            2 => {
                let (index, name) = (take.small()?, take.text()?.to_owned());
                Self::Tenant { index, name, salt: take_words(&mut take)? }
            }
            3 => Self::Left { run: take_run(&mut take)?, kind: take.small()? },
            6 => {
                let id = take_id(&mut take)?;
                Self::Extended { id, tokens: Tokens::new(take.number()?), added: take.extents()? }
            }
            7 => {
                let id = take_id(&mut take)?;
                let (state, holder, ttl) = take_standing(&mut take)?;
                Self::Stands { id, state, holder, ttl }
            }
            9 => Self::Durable { id: take_id(&mut take)?, pages: take.small()? },
            10 => Self::Ended { id: take_id(&mut take)? },
            11 => Self::Scrubbing(take_run(&mut take)?),
            12 => Self::Scrubbed(take_run(&mut take)?),
            13 => return Ok(Self::Note(take.0.to_vec())),
            14 => Self::Cached { tenant: take.small()?, run: take_hashed(&mut take)? },
            15 => {
                let (id, count) = (take_id(&mut take)?, take.small::<u32>()?);
                // Nothing is set aside for a count that the bytes do not bear out.
                Self::Sealed { id, runs: (0..count).map(|_| take_hashed(&mut take)).collect::<Result<_, _>>()? }
            }
            16 => Self::Filled { id: take_id(&mut take)?, fillers: take_sessions(&mut take)? },
            17 => Self::Granted(Box::new(take_lease(&mut take)?)),
            _ => return Err(Unreadable("its kind is not known; another version may have written it")),
        };
        take.end()?;
        Ok(entry)
    }
}

fn put_run(out: &mut Vec<u8>, kind: u8, run: Extent) {
    out.push(kind);
    put_number(out, run.start.into());
    put_number(out, run.pages.into());
}

fn take_run(take: &mut Take<'_>) -> Result<Extent, Unreadable> {
    let (start, pages): (u32, u32) = (take.small()?, take.small()?);
    if pages == 0 || start.checked_add(pages).is_none() {
        return Err(Unreadable("a run of pages is empty or without an end"));
    }
    Ok(Extent::new(start, pages))
}

/// Appends the bytes of an [`Entry::Sealed`] without a copy of its hashes.
pub(crate) fn put_sealed<'h>(out: &mut Vec<u8>, id: LeaseId, runs: impl ExactSizeIterator<Item = HashedPart<'h>>) {
    put_id(out, 15, id);
    put_number(out, runs.len() as u64);
    for run in runs {
        put_hashed(out, run);
    }
}

fn put_hashed(out: &mut Vec<u8>, run: HashedPart<'_>) {
    put_number(out, run.first_page.into());
    put_number(out, u64::from(run.place) << 1 | u64::from(run.follows));
    put_number(out, run.hashes.len() as u64);
    out.extend_from_slice(run.hashes.as_flattened());
}

fn take_hashed(take: &mut Take<'_>) -> Result<HashedRun, Unreadable> {
    let (first_page, place, pages) = (take.small::<u32>()?, take.number()?, take.small::<u32>()?);
    let follows = place & 1 == 1;
    let place = u32::try_from(place >> 1).ok().filter(|place| place.checked_add(pages).is_some());
    let (Some(place), Some(_)) = (place, first_page.checked_add(pages).filter(|_| pages > 0)) else {
        return Err(Unreadable("a run of pages is empty or without an end"));
    };
    let bytes = (pages as usize).checked_mul(PAGE_HASH_BYTES).ok_or(Unreadable("it ends too early"))?;
    let hashes = take.slice(bytes)?.as_chunks().0.to_vec();
    Ok(HashedRun { first_page, place, follows, hashes })
}

fn put_id(out: &mut Vec<u8>, kind: u8, id: LeaseId) {
    out.push(kind);
    let (epoch, serial) = id.parts();
    put_number(out, epoch);
    put_number(out, serial);
}

fn take_id(take: &mut Take<'_>) -> Result<LeaseId, Unreadable> {
    let (epoch, serial) = (take.number()?, take.number()?);
    LeaseId::of_parts(epoch, serial).ok_or(Unreadable("a lease has no possible name"))
}

fn put_words(out: &mut Vec<u8>, words: &[u64]) {
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

fn take_words<const N: usize>(take: &mut Take<'_>) -> Result<[u64; N], Unreadable> {
    let mut words = [0; N];
    for word in &mut words {
        *word = take.word()?;
    }
    Ok(words)
}

fn put_node(out: &mut Vec<u8>, capacity: &NodeCapacity, isolation: Isolation, key: &NodeKey) {
    out.push(1);
    out.push(u8::from(isolation == Isolation::Shared));
    put_words(out, key);
    let window = capacity.window.map_or((0, 0), |window| (window.total.get(), window.per_request.get()));
    for number in [
        capacity.host_pages.get(),
        capacity.seats,
        capacity.indexer_tokens.get(),
        capacity.request_slots,
        capacity.page_tokens,
        capacity.hot_rows.get(),
        capacity.max_request_tokens.get(),
        u64::from(capacity.window.is_some()),
        window.0,
        window.1,
    ] {
        put_number(out, number);
    }
}

fn take_node(take: &mut Take<'_>) -> Result<Entry, Unreadable> {
    let isolation = if take_flag(take)? { Isolation::Shared } else { Isolation::Scrub };
    let key = take_words(take)?;
    let mut capacity = NodeCapacity {
        host_pages: Pages::new(take.number()?),
        seats: take.number()?,
        indexer_tokens: Tokens::new(take.number()?),
        request_slots: take.number()?,
        window: None,
        page_tokens: take.number()?,
        hot_rows: Rows::new(take.number()?),
        max_request_tokens: Tokens::new(take.number()?),
    };
    let has_window = take_flag(take)?;
    let window = WindowCapacity { total: Tokens::new(take.number()?), per_request: Tokens::new(take.number()?) };
    if has_window {
        capacity.window = Some(window);
    } else if window.total > Tokens::ZERO || window.per_request > Tokens::ZERO {
        return Err(Unreadable("a window is there and is not"));
    }
    Ok(Entry::Node { capacity, isolation, key })
}

fn take_flag(take: &mut Take<'_>) -> Result<bool, Unreadable> {
    match take.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Unreadable("a choice is neither of the two")),
    }
}

fn put_standing(out: &mut Vec<u8>, state: LeaseState, holder: Option<Holder>, ttl: Duration) {
    out.push(match state {
        LeaseState::Reserved => 0,
        LeaseState::Committed => 1,
        LeaseState::Quarantined => 2,
        LeaseState::Released => 3,
    });
    let holder = match holder {
        None => 0,
        Some(Holder::Router) => 1,
        // Sessions are counted from 1 and far from the end.
        Some(Holder::Session(SessionId(number))) => number.saturating_add(2),
    };
    put_number(out, holder);
    put_number(out, u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX));
}

fn take_standing(take: &mut Take<'_>) -> Result<(LeaseState, Option<Holder>, Duration), Unreadable> {
    let state = match take.byte()? {
        0 => LeaseState::Reserved,
        1 => LeaseState::Committed,
        2 => LeaseState::Quarantined,
        // A released lease is not remembered.
        _ => return Err(Unreadable("a lease is in no possible state")),
    };
    let holder = match take.number()? {
        0 => None,
        1 => Some(Holder::Router),
        number => Some(Holder::Session(SessionId(number - 2))),
    };
    Ok((state, holder, Duration::from_micros(take.number()?)))
}

fn put_lease(out: &mut Vec<u8>, lease: &KeptLease) {
    put_id(out, 17, lease.id);
    put_number(out, lease.tenant.into());
    put_text(out, &lease.request_id);
    out.extend_from_slice(&lease.digest.to_le_bytes());
    // Zig-zag: small on either side of zero.
    put_number(out, u64::from((lease.priority.cast_unsigned() << 1) ^ (lease.priority >> 31).cast_unsigned()));
    put_standing(out, lease.state, lease.holder, lease.ttl);
    put_number(out, lease.tokens.get());
    put_number(out, lease.durable.into());
    out.push(u8::from(lease.published));
    put_extents(out, &lease.shared);
    put_extents(out, &lease.own);
    put_sessions(out, &lease.fillers);
}

fn put_sessions(out: &mut Vec<u8>, sessions: &[SessionId]) {
    put_number(out, sessions.len() as u64);
    for SessionId(number) in sessions {
        put_number(out, *number);
    }
}

fn take_sessions(take: &mut Take<'_>) -> Result<Vec<SessionId>, Unreadable> {
    let count: u32 = take.small()?;
    (0..count).map(|_| take.number().map(SessionId)).collect()
}

fn take_lease(take: &mut Take<'_>) -> Result<KeptLease, Unreadable> {
    let (id, tenant, request_id, digest) = (take_id(take)?, take.small()?, take.text()?.to_owned(), take.word()?);
    let zigzag: u32 = take.small()?;
    let priority = (zigzag >> 1).cast_signed() ^ -(zigzag & 1).cast_signed();
    let (state, holder, ttl) = take_standing(take)?;
    let (tokens, durable, published) = (Tokens::new(take.number()?), take.small()?, take_flag(take)?);
    let (shared, own, fillers) = (take.extents()?, take.extents()?, take_sessions(take)?);
    let lease = KeptLease {
        id,
        tenant,
        request_id,
        digest,
        priority,
        state,
        holder,
        ttl,
        tokens,
        durable,
        published,
        shared,
        own,
        fillers,
    };
    Ok(lease)
}
