//! Looking at memory that others may change at any moment: engines, other threads, a GPU.
//!
//! ```text
//!  Mapping ──► WritableView ──deref──► View ──sub(offset, len)──► View …
//!                 write, zero            read, is_zero            every access checked against the length
//! ```
//! There is never a Rust reference to the bytes. Every word is moved by one relaxed atomic access, which compiles to a
//! plain move, is defined even while another party writes, and cannot be split or repeated by the compiler. A reader
//! may see a row half old and half new; who may write when is the ledger's business, not this file's.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// An access beyond the end of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at offset {offset} do not lie within {size} bytes")]
pub struct OutOfRange {
    /// Where the access would begin.
    pub offset: u64,
    /// How long it would be.
    pub len: u64,
    /// How long the view is.
    pub size: u64,
}

/// Bytes that can be read, and that may change between two reads.
#[derive(Clone, Copy)]
pub struct View<'m> {
    base: NonNull<u8>,
    len: usize,
    mapping: PhantomData<&'m [AtomicU8]>,
}

/// Bytes that can be written too.
#[derive(Clone, Copy, Debug)]
pub struct WritableView<'m>(View<'m>);

// SAFETY: needed so that several threads may fill, scrub and check one mapping. Sound because a view only reaches the
// bytes through atomic accesses, and the lifetime keeps the mapping in place while a view exists.
unsafe impl Send for View<'_> {}
// SAFETY: as for `Send`; a shared view allows nothing that an owned copy of it does not.
unsafe impl Sync for View<'_> {}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the contents: they belong to a tenant.
        f.debug_struct("View").field("len", &self.len).finish_non_exhaustive()
    }
}

impl View<'_> {
    /// A view of `len` bytes from `base`.
    ///
    /// # Safety
    /// For all of `'m`, the `len` bytes from `base` must be mapped and readable, and this process must reach them by
    /// atomic accesses only.
    pub(crate) const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, mapping: PhantomData }
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes at all.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes begin, for those who hand the address to a driver. Reading through it is up to them.
    pub const fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr().cast_const()
    }

    /// The part of `len` bytes at `offset`.
    ///
    /// # Errors
    /// Where that does not lie within this view.
    pub fn sub(&self, offset: u64, len: u64) -> Result<Self, OutOfRange> {
        let range = self.range(offset, len)?;
        // SAFETY: needed to narrow a view. Sound because `range` lies within this view, so the pointer stays within
        // the same mapping and the bytes have the properties that `View::new` asks for.
        Ok(unsafe { Self::new(self.base.add(range.start), range.len()) })
    }

    /// Copies the bytes at `offset` into `into`.
    ///
    /// # Errors
    /// Where they do not lie within this view.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OutOfRange> {
        let range = self.range(offset, into.len() as u64)?;
        let (head, words, tail) = self.split(range);
        let (head_into, rest) = into.split_at_mut(head.len());
        let (words_into, tail_into) = rest.split_at_mut(words.len());
        for (at, byte) in head.zip(head_into) {
            *byte = self.byte(at).load(Ordering::Relaxed);
        }
        for (at, word) in words.step_by(WORD).zip(words_into.chunks_exact_mut(WORD)) {
            word.copy_from_slice(&self.word(at).load(Ordering::Relaxed).to_ne_bytes());
        }
        for (at, byte) in tail.zip(tail_into) {
            *byte = self.byte(at).load(Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether every byte is zero: the proof that nothing of a tenant is left.
    pub fn is_zero(&self) -> bool {
        let (mut head, words, mut tail) = self.split(0..self.len);
        head.all(|at| self.byte(at).load(Ordering::Relaxed) == 0)
            && words.step_by(WORD).all(|at| self.word(at).load(Ordering::Relaxed) == 0)
            && tail.all(|at| self.byte(at).load(Ordering::Relaxed) == 0)
    }

    fn range(&self, offset: u64, len: u64) -> Result<Range<usize>, OutOfRange> {
        let error = OutOfRange { offset, len, size: self.len as u64 };
        let end = offset.checked_add(len).filter(|end| *end <= self.len as u64).ok_or(error)?;
        let whole = |n: u64| usize::try_from(n).map_err(|_| error);
        Ok(whole(offset)?..whole(end)?)
    }

    /// Cuts a range into the bytes before the first aligned word, the aligned words, and the bytes after the last.
    fn split(&self, range: Range<usize>) -> (Range<usize>, Range<usize>, Range<usize>) {
        let misaligned = (self.base.addr().get() + range.start) % WORD;
        let head_end = if misaligned == 0 { range.start } else { (range.start + WORD - misaligned).min(range.end) };
        let words_end = range.end - (range.end - head_end) % WORD;
        (range.start..head_end, head_end..words_end, words_end..range.end)
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < self.len, "callers check the range first");
        // SAFETY: needed to reach one byte of memory that others change. Sound because `at` lies within the view, a
        // byte is always aligned, and `View::new` promises atomic accesses only for as long as the view lives.
        unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(at)) }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at + WORD <= self.len, "callers check the range first");
        // SAFETY: needed to move eight bytes at once. Sound because the word lies within the view, `split` only hands
        // out aligned offsets, and `View::new` promises atomic accesses only for as long as the view lives.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }
}

impl<'m> Deref for WritableView<'m> {
    type Target = View<'m>;

    fn deref(&self) -> &View<'m> {
        &self.0
    }
}

impl WritableView<'_> {
    /// A view of `len` writable bytes from `base`.
    ///
    /// # Safety
    /// As [`View::new`], and the bytes must be writable.
    pub(crate) const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        // SAFETY: the caller promises what `View::new` asks for.
        Self(unsafe { View::new(base, len) })
    }

    /// The writable part of `len` bytes at `offset`.
    ///
    /// # Errors
    /// Where that does not lie within this view.
    pub fn sub(&self, offset: u64, len: u64) -> Result<Self, OutOfRange> {
        self.0.sub(offset, len).map(Self)
    }

    /// Copies `from` to `offset`.
    ///
    /// # Errors
    /// Where it would not lie within this view.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<(), OutOfRange> {
        let range = self.range(offset, from.len() as u64)?;
        let (head, words, tail) = self.split(range);
        let (head_from, rest) = from.split_at(head.len());
        let (words_from, tail_from) = rest.split_at(words.len());
        for (at, byte) in head.zip(head_from) {
            self.byte(at).store(*byte, Ordering::Relaxed);
        }
        for (at, word) in words.step_by(WORD).zip(words_from.chunks_exact(WORD)) {
            let mut bytes = [0; WORD];
            bytes.copy_from_slice(word);
            self.word(at).store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        for (at, byte) in tail.zip(tail_from) {
            self.byte(at).store(*byte, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Makes every byte zero.
    pub fn zero(&self) {
        let (head, words, tail) = self.split(0..self.len);
        for at in head.chain(tail) {
            self.byte(at).store(0, Ordering::Relaxed);
        }
        for at in words.step_by(WORD) {
            self.word(at).store(0, Ordering::Relaxed);
        }
    }

    /// Touches one word in every `step` bytes, leaving it as it is: the page behind it comes into being.
    pub(crate) fn touch(&self, step: usize) {
        for at in (0..self.len).step_by(step) {
            self.byte(at).fetch_or(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::map::Mapping;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 256 }, ..ProptestConfig::default() })]
        #[test]
        fn what_was_written_is_read_at_any_alignment(
            offset in 0_u64..40, bytes in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let mapping = Mapping::heap(128).unwrap();
            let view = mapping.writable().unwrap();
            view.write(offset, &bytes).unwrap();
            let mut back = vec![0; bytes.len()];
            view.read(offset, &mut back).unwrap();
            prop_assert_eq!(&back, &bytes);
            let around = view.sub(offset + bytes.len() as u64, 128 - offset - bytes.len() as u64).unwrap();
            prop_assert!(around.is_zero() && view.sub(0, offset).unwrap().is_zero(), "wrote outside its range");
            view.zero();
            prop_assert!(view.is_zero());
        }
    }

    #[test]
    fn an_access_beyond_the_end_is_refused_and_cannot_wrap() {
        let mapping = Mapping::heap(64).unwrap();
        let view = mapping.writable().unwrap();
        let error = view.write(60, &[1; 8]).unwrap_err();
        assert_eq!(error.to_string(), "8 bytes at offset 60 do not lie within 64 bytes");
        assert!(view.is_zero(), "a refused write leaves nothing behind");
        assert!(view.sub(u64::MAX, 2).is_err());
        assert!(view.sub(64, 0).unwrap().is_empty());
        assert!(view.read(65, &mut []).is_err());
    }

    #[test]
    fn one_byte_anywhere_ends_the_proof_of_zero() {
        let mapping = Mapping::heap(40).unwrap();
        let view = mapping.writable().unwrap();
        for at in 0..40 {
            view.write(at, &[1]).unwrap();
            assert!(!view.is_zero(), "byte {at}");
            view.write(at, &[0]).unwrap();
        }
        assert!(view.is_zero());
    }

    #[test]
    fn several_threads_may_use_one_view() {
        let mapping = Mapping::heap(4096).unwrap();
        let view = mapping.writable().unwrap();
        std::thread::scope(|scope| {
            for byte in 1..4_u8 {
                scope.spawn(move || view.write(0, &[byte; 256]));
            }
        });
        let mut seen = [0; 256];
        view.read(0, &mut seen).unwrap();
        assert!(seen.iter().all(|byte| (1..4).contains(byte)));
    }

    #[test]
    fn showing_a_view_does_not_show_its_contents() {
        let mapping = Mapping::heap(8).unwrap();
        mapping.writable().unwrap().write(0, b"secret!!").unwrap();
        assert_eq!(format!("{:?}", mapping.view()), "View { len: 8, .. }");
    }
}
