//! Registering a mapping with a device, in chunks, all or none.
//!
//! ```text
//!  ├──── segment ─────────────────────────────┤      cuts: where layers begin
//!  ├─ chunk ─┼─ chunk ─┼─ chunk ─┼─ chunk ────┤      each at most 64 GiB, and ending at a cut where one is near
//!      ✓         ✓         ✗  ── unregister the first two, drain the device's error, report the third
//! ```
//! One call over 512 GiB fails, and a long one holds the driver's lock against every other process. The device is
//! behind a trait: the engine's process brings CUDA's, tests a stand-in that needs no GPU.

use std::fmt;
use std::ops::Range;

use crate::map::{Access, Mapping};

/// What registers memory with a device.
pub trait Registrar {
    /// Why it refused.
    type Error: fmt::Display;

    /// Makes the bytes reachable for the device, for reading alone where `access` says so.
    ///
    /// # Errors
    /// As the device says; it must have no error pending afterwards.
    fn register(&self, start: *const u8, bytes: usize, access: Access) -> Result<(), Self::Error>;

    /// Undoes one registration.
    ///
    /// # Errors
    /// As the device says.
    fn unregister(&self, start: *const u8) -> Result<(), Self::Error>;
}

/// The chunk that was refused; those before it have been undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot register bytes {from} to {to} of a segment with the device: {source_text}; unregistered what came before"
)]
pub struct RegisterError {
    /// First byte of the chunk.
    pub from: u64,
    /// End of the chunk.
    pub to: u64,
    /// What the device said.
    pub source_text: String,
}

/// A registered mapping; dropping it unregisters every chunk, the last one first.
pub struct Registration<'m, R: Registrar> {
    registrar: R,
    starts: Vec<*const u8>,
    mapping: &'m Mapping,
}

impl<R: Registrar> fmt::Debug for Registration<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration").field("chunks", &self.starts.len()).field("mapping", self.mapping).finish()
    }
}

impl<'m, R: Registrar> Registration<'m, R> {
    /// Registers all of `mapping`, cut where `cuts` (offsets of layers, rising) allow, at most `most_bytes` at a time.
    ///
    /// # Errors
    /// The chunk that was refused; nothing stays registered.
    pub fn new(mapping: &'m Mapping, registrar: R, cuts: &[u64], most_bytes: u64) -> Result<Self, RegisterError> {
        let mut registration = Self { registrar, starts: Vec::new(), mapping };
        let view = mapping.view();
        for chunk in chunks(mapping.len() as u64, cuts, most_bytes) {
            let refused = |source_text| RegisterError { from: chunk.start, to: chunk.end, source_text };
            let part = view.sub(chunk.start, chunk.end - chunk.start).map_err(|e| refused(e.to_string()))?;
            // On error `registration` is dropped, which unregisters the chunks before this one.
            registration
                .registrar
                .register(part.as_ptr(), part.len(), mapping.access())
                .map_err(|e| refused(e.to_string()))?;
            registration.starts.push(part.as_ptr());
        }
        Ok(registration)
    }

    /// How many registrations it took; systems allow about 65,000 in all.
    pub fn chunks(&self) -> usize {
        self.starts.len()
    }
}

impl<R: Registrar> Drop for Registration<'_, R> {
    fn drop(&mut self) {
        while let Some(start) = self.starts.pop() {
            // Nothing more can be done here; the device forgets the rest when the process ends.
            let _refused = self.registrar.unregister(start);
        }
    }
}

/// Cuts `total` bytes into chunks of at most `most_bytes`: each ends at the last cut within reach, or where none is, at
/// the limit itself.
pub fn chunks(total: u64, cuts: &[u64], most_bytes: u64) -> Vec<Range<u64>> {
    let most = most_bytes.max(1);
    let mut chunks = Vec::new();
    let mut start = 0;
    while start < total {
        let limit = start.saturating_add(most).min(total);
        let cut = cuts.iter().rev().copied().find(|cut| (start + 1..=limit).contains(cut));
        let end = if limit == total { total } else { cut.unwrap_or(limit) };
        chunks.push(start..end);
        start = end;
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;

    /// A device that counts what is registered and refuses the chunk it is told to.
    #[derive(Default)]
    struct StandIn {
        registered: RefCell<Vec<usize>>,
        refuse_at: Option<usize>,
    }

    impl Registrar for &StandIn {
        type Error = &'static str;

        fn register(&self, start: *const u8, bytes: usize, _: Access) -> Result<(), Self::Error> {
            assert!(bytes > 0, "devices refuse empty registrations");
            let mut registered = self.registered.borrow_mut();
            if self.refuse_at == Some(registered.len()) {
                return Err("out of memory");
            }
            registered.push(start.addr());
            Ok(())
        }

        fn unregister(&self, start: *const u8) -> Result<(), Self::Error> {
            assert_eq!(self.registered.borrow_mut().pop(), Some(start.addr()), "the last chunk goes first");
            Ok(())
        }
    }

    #[test]
    fn a_refused_chunk_undoes_those_before_it() {
        let mapping = Mapping::heap(10_000).unwrap();
        let device = StandIn { refuse_at: Some(2), ..StandIn::default() };
        let error = Registration::new(&mapping, &device, &[], 4_000).unwrap_err();
        assert_eq!((error.from, error.to), (8_000, 10_000));
        assert!(error.to_string().contains("out of memory"));
        assert!(device.registered.borrow().is_empty());
    }

    #[test]
    fn dropping_a_registration_undoes_it() {
        let mapping = Mapping::heap(10_000).unwrap();
        let device = StandIn::default();
        let registration = Registration::new(&mapping, &device, &[], 4_000).unwrap();
        assert_eq!((registration.chunks(), device.registered.borrow().len()), (3, 3));
        drop(registration);
        assert!(device.registered.borrow().is_empty());
    }

    #[test]
    fn chunks_end_where_layers_do() {
        assert_eq!(chunks(100, &[0, 30, 60, 90], 64), [0..60, 60..100]);
        assert_eq!(chunks(100, &[], 64), [0..64, 64..100]);
        assert_eq!(chunks(0, &[], 64), Vec::<Range<u64>>::new());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 256 }, ..ProptestConfig::default() })]
        #[test]
        fn chunks_cover_everything_once(
            total in 0_u64..10_000, mut cuts in proptest::collection::vec(0_u64..12_000, 0..20), most in 0_u64..5_000,
        ) {
            cuts.sort_unstable();
            prop_assume!(total / most.max(1) < 2_000);
            let mut end = 0;
            for chunk in chunks(total, &cuts, most) {
                prop_assert_eq!(chunk.start, end);
                prop_assert!(chunk.end > chunk.start && chunk.end - chunk.start <= most.max(1));
                end = chunk.end;
            }
            prop_assert_eq!(end, total);
        }
    }
}
