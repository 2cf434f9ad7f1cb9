//! Owning a piece of this process's address space; dropping it gives it back.
//!
//! ```text
//!  Mapping ─┬─ Shared: pages of a file, which other processes map too
//!           └─ Heap:   a stand-in with the same behaviour and no other process; Miri can run it
//! ```

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};

use crate::view::{OutOfRange, View, WritableView};

/// Size of an ordinary page, in bytes, on every machine this runs on (x86-64 and 4 KiB arm64); larger base pages only
/// make the touching of pages finer than it need be.
pub const PAGE_BYTES: usize = 4096;

/// Whether a mapping may be written through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reading alone.
    Read,
    /// Reading and writing.
    ReadWrite,
}

/// What the kernel is told about a range; none of it changes what the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Back it with huge pages where that can be done.
    HugePages,
    /// Make its pages now, for writing where the mapping may be written through, and for reading where not.
    Populate,
    /// Leave it out of children: they would keep a pool alive that its owner gave back.
    NotInChildren,
    /// Leave it out of core dumps: they would hold tenants' contents.
    NotInDumps,
}

/// A piece of address space that holds bytes.
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    access: Access,
    kind: Kind,
}

enum Kind {
    Shared,
    Heap(Layout),
}

// SAFETY: needed to share a pool between threads. Sound because the mapping is owned, its bytes are only reached through
// views (atomic accesses), and unmapping needs ownership.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send`: `&Mapping` only hands out views.
unsafe impl Sync for Mapping {}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("len", &self.len).field("access", &self.access).finish_non_exhaustive()
    }
}

impl Mapping {
    /// Maps the first `len` bytes of `file`, shared with everyone who maps it.
    ///
    /// # Errors
    /// As the kernel says: `ENOMEM` where address space or reserved huge pages are short, `EACCES` where the
    /// descriptor does not allow `access`.
    pub fn of_file(file: BorrowedFd<'_>, len: usize, access: Access) -> Result<Self, Errno> {
        let protection = match access {
            Access::Read => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: needed because there is no other way to share memory between processes. Sound because the kernel
        // picks the place (no existing mapping is replaced), and the bytes are only reached through views.
        let base = unsafe { mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len, access, kind: Kind::Shared })
    }

    /// A stand-in of `len` zero bytes that no other process can map.
    ///
    /// # Errors
    /// `ENOMEM` where the allocator has none, `EINVAL` for no bytes at all.
    pub fn heap(len: usize) -> Result<Self, Errno> {
        let layout = Layout::from_size_align(len, PAGE_BYTES).map_err(|_| Errno::NOMEM)?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: needed because a `Vec` would be a Rust reference to bytes that others change. Sound because the
        // layout has a size above zero.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).ok_or(Errno::NOMEM)?;
        Ok(Self { base, len, access: Access::ReadWrite, kind: Kind::Heap(layout) })
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes; never true, the kernel refuses such a mapping.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it may be written through.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Whether other processes can share it.
    pub const fn is_shared(&self) -> bool {
        matches!(self.kind, Kind::Shared)
    }

    /// The bytes, to be read.
    pub const fn view(&self) -> View<'_> {
        // SAFETY: needed to reach the bytes. Sound because they stay mapped and readable while `self` is borrowed, and
        // this crate reaches them through views alone.
        unsafe { View::new(self.base, self.len) }
    }

    /// The bytes, to be written; `None` where this mapping is read-only.
    pub fn writable(&self) -> Option<WritableView<'_>> {
        // SAFETY: needed to fill the bytes. Sound as in `view`, and the mapping allows writing.
        (self.access == Access::ReadWrite).then(|| unsafe { WritableView::new(self.base, self.len) })
    }

    /// Tells the kernel about the `len` bytes at `offset`. On the heap stand-in it does nothing.
    pub(crate) fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<(), Errno> {
        let range = self.view().sub(offset, len).map_err(|OutOfRange { .. }| Errno::INVAL)?;
        if !self.is_shared() || range.is_empty() {
            return Ok(());
        }
        let advice = match advice {
            Advice::HugePages => mm::Advice::LinuxHugepage,
            Advice::Populate if self.access == Access::ReadWrite => mm::Advice::LinuxPopulateWrite,
            Advice::Populate => mm::Advice::LinuxPopulateRead,
            Advice::NotInChildren => mm::Advice::LinuxDontFork,
            Advice::NotInDumps => mm::Advice::LinuxDontDump,
        };
        // SAFETY: needed because the advice goes by address. Sound because the range lies within this mapping, and none
        // of the four kinds of advice takes bytes away from this process or changes them.
        unsafe { mm::madvise(range.as_ptr().cast_mut().cast(), range.len(), advice) }
    }

    /// Keeps the pages from being written to swap.
    ///
    /// # Errors
    /// `ENOMEM` or `EPERM` where the locked-memory limit is too small.
    pub(crate) fn lock(&self) -> Result<(), Errno> {
        if !self.is_shared() {
            return Ok(());
        }
        // SAFETY: needed because locking goes by address. Sound because it changes where pages may live, not what they
        // hold; unmapping unlocks.
        unsafe { mm::mlock(self.base.as_ptr().cast(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        match self.kind {
            Kind::Shared => {
                // SAFETY: needed to give the address space back. Sound because this value owns exactly this range, and
                // every view borrows from it.
                let unmapped = unsafe { mm::munmap(self.base.as_ptr().cast(), self.len) };
                // Only a range that is not ours could fail, and that would be a fault of this file.
                debug_assert_eq!(unmapped, Ok(()));
            }
            // SAFETY: needed to give the memory back. Sound because it was allocated with exactly this layout.
            Kind::Heap(layout) => unsafe { dealloc(self.base.as_ptr(), layout) },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn no_bytes_are_no_mapping() {
        assert_eq!(Mapping::heap(0).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn advice_outside_the_mapping_is_refused() {
        let mapping = Mapping::heap(PAGE_BYTES).unwrap();
        assert_eq!(mapping.advise(0, 1 << 20, Advice::Populate), Err(Errno::INVAL));
        assert_eq!(mapping.advise(0, 4096, Advice::Populate), Ok(()));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no memory files")]
    fn pages_are_made_for_whatever_the_mapping_allows() {
        let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, PAGE_BYTES as u64).unwrap();
        let made = [Access::Read, Access::ReadWrite].map(|access| {
            let mapping = Mapping::of_file(file.as_fd(), PAGE_BYTES, access).unwrap();
            mapping.advise(0, PAGE_BYTES as u64, Advice::Populate)
        });
        assert_eq!(made[0], made[1], "kernels before 5.14 refuse both");
    }
}
