//! One segment: a memory file that is finished before anyone else sees it.
//!
//! ```text
//!  create 0600 ─► size ─► map ─► place on a node ─► populate ─► lock ─► seal shrink, grow ─► seal the seals ─► (name)
//!       └──────────────── any step fails: everything so far is dropped, the error names the step ───────────┘
//! ```
//! Writers get a descriptor that can write (the GPU's backup goes through it), readers one reopened read-only.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hisparse_core::error::Problem;
use hisparse_core::limits::MAX_SEGMENT_BYTES;
use hisparse_core::size::show_size;
use hisparse_core::units::Bytes;
use rustix::io::Errno;
use serde::Serialize;

use crate::backing::Backing;
use crate::bind::{self, Placed, Placement};
use crate::finding::Finding;
use crate::map::{Access, Advice, Mapping};
use crate::memfd::{self, Identity};
use crate::memlock::LOCK_REMEDY;
use crate::populate::{Workers, populate};
use crate::state_dir::Generation;
use crate::view::{View, WritableView};

/// What a segment shall be.
#[derive(Debug)]
pub struct Recipe<'a> {
    /// Its place in the pool; also what its name ends in.
    pub index: usize,
    /// Its size in bytes, at most [`MAX_SEGMENT_BYTES`]; rounded up to the backing's granule.
    pub bytes: u64,
    /// What its pages are.
    pub backing: Backing,
    /// Where they come from.
    pub placement: Placement,
    /// CPUs of that node, for where the kernel refuses a policy.
    pub node_cpus: &'a [usize],
    /// Threads that make the pages.
    pub workers: &'a Workers,
    /// Whether its pages are locked.
    pub lock: bool,
    /// Where its file gets a name; needed for [`Backing::File`] alone.
    pub generation: Option<&'a Generation<'a>>,
}

/// The step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Making the file.
    Create,
    /// Giving it its size.
    Size,
    /// Mapping it.
    Map,
    /// Choosing its node.
    Place,
    /// Making its pages.
    Populate,
    /// Locking them.
    Lock,
    /// Sealing it.
    Seal,
    /// Giving it its name.
    Publish,
}

/// Why there is no segment. Everything done for it has been undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentError {
    /// Where it stopped.
    pub step: Step,
    /// What its pages would have been.
    pub backing: Backing,
    /// How large it would have been, in bytes.
    pub bytes: u64,
    /// The kernel's answer.
    pub errno: Errno,
}

impl SegmentError {
    /// What would let it succeed.
    pub const fn remedy(&self) -> &'static str {
        match (self.step, self.backing, self.errno) {
            (Step::Create, _, Errno::MFILE | Errno::NFILE) => "raise the limit on open files (ulimit -n)",
            (Step::Size, _, Errno::INVAL | Errno::FBIG) => "ask for segments of at most 64 GiB",
            (Step::Map | Step::Populate | Step::Create | Step::Size, Backing::Hugetlb { .. }, _) => {
                "set more huge pages aside (nr_hugepages), raise the container's hugepages limit, or use another backing \
                 (--pages auto)"
            }
            (Step::Map, _, Errno::NOMEM) => "raise the limit on address space (ulimit -v) or vm.max_map_count",
            (Step::Populate, Backing::File, _) => {
                "make the state directory's volume larger (sizeLimit, or mount -o remount,size=…), or ask for less"
            }
            (Step::Populate, _, _) => {
                "raise the memory limit of the container or its control group, free memory on this machine, or ask for a \
                 smaller pool; `doctor` shows its limits"
            }
            (Step::Lock, _, _) => LOCK_REMEDY,
            (Step::Place, _, _) => "name a memory node that `doctor` lists as allowed",
            _ => "see the kernel's message; `doctor` shows what this machine allows",
        }
    }
}

impl SegmentError {
    /// The refusal of a pool of `wanted`, which the user named `field`.
    pub fn problem(&self, field: &str, wanted: Bytes) -> Problem {
        Problem::new(field, show_size(wanted), self.event(), self.remedy())
    }

    fn event(&self) -> String {
        let action = match self.step {
            Step::Create => "create",
            Step::Size => "size",
            Step::Map => "map",
            Step::Place => "place",
            Step::Populate => "populate",
            Step::Lock => "lock",
            Step::Seal => "seal",
            Step::Publish => "name",
        };
        let size = show_size(Bytes::new(self.bytes));
        format!("cannot {action} a segment of {size} in {}: {}", self.backing, self.errno)
    }
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.event(), self.remedy())
    }
}

impl std::error::Error for SegmentError {}

/// A finished segment. Dropping it unmaps it here; the pages live on while another process maps them.
#[derive(Debug)]
pub struct Segment {
    mapping: Mapping,
    file: Option<OwnedFd>,
    backing: Backing,
    placement: Placement,
    placed: Placed,
    nodes: Finding<BTreeMap<u32, u32>>,
}

impl Segment {
    /// Makes one; `made` hears of every chunk of bytes populated, from several threads.
    ///
    /// # Errors
    /// The step that failed; nothing is left behind.
    pub fn create(recipe: &Recipe<'_>, made: &(dyn Fn(u64) + Sync)) -> Result<Self, SegmentError> {
        let backing = recipe.backing;
        let failed = |step| move |errno| SegmentError { step, backing, bytes: recipe.bytes, errno };
        let bytes = recipe
            .bytes
            .checked_next_multiple_of(backing.granule_bytes())
            .filter(|bytes| (1..=MAX_SEGMENT_BYTES).contains(bytes))
            .ok_or(Errno::FBIG)
            .map_err(failed(Step::Size))?;
        let len = usize::try_from(bytes).map_err(|_| failed(Step::Size)(Errno::FBIG))?;

        let file = create_file(recipe).map_err(failed(Step::Create))?;
        let mapping = match &file {
            Some(file) => {
                rustix::fs::ftruncate(file, bytes).map_err(failed(Step::Size))?;
                Mapping::of_file(file.as_fd(), len, Access::ReadWrite)
            }
            None => Mapping::heap(len),
        }
        .map_err(failed(Step::Map))?;

        for advice in [Advice::NotInChildren, Advice::NotInDumps] {
            mapping.advise(0, bytes, advice).map_err(failed(Step::Map))?;
        }
        if backing == Backing::MemfdThp {
            // A kernel without transparent huge pages refuses; the pages are then ordinary ones.
            let _refused = mapping.advise(0, bytes, Advice::HugePages);
        }
        let placed = bind::place(&mapping, recipe.placement).map_err(failed(Step::Place))?;
        let kept = Workers { cpus: recipe.node_cpus.to_vec(), ..recipe.workers.clone() };
        let workers = if placed == Placed::ByFirstTouch { &kept } else { recipe.workers };
        populate(&mapping, workers, made).map_err(failed(Step::Populate))?;
        if recipe.lock {
            mapping.lock().map_err(failed(Step::Lock))?;
        }
        if let Some(file) = &file {
            match (backing, recipe.generation) {
                (Backing::File, Some(generation)) => {
                    // Files of a mounted file system carry no seals; the folder's mode keeps others away.
                    generation.publish(file.as_fd(), recipe.index).map_err(failed(Step::Publish))?;
                }
                _ => memfd::seal(file.as_fd()).map_err(failed(Step::Seal))?,
            }
        }
        let nodes = bind::nodes_of(&mapping);
        Ok(Self { mapping, file, backing, placement: recipe.placement, placed, nodes })
    }

    /// Takes over one that another process made, as it is: no page of it is touched, and no room is asked for.
    ///
    /// # Errors
    /// Where it cannot be opened for writing or mapped.
    pub fn adopt(file: BorrowedFd<'_>, backing: Backing, lock: bool) -> Result<Self, SegmentError> {
        let failed = |step, bytes| move |errno| SegmentError { step, backing, bytes, errno };
        let bytes = Identity::of(file).map_err(failed(Step::Create, 0))?.size_bytes;
        // Opened anew: what is handed over may be a reader's descriptor.
        let file = memfd::reopen_writable(file).map_err(failed(Step::Create, bytes))?;
        let len = usize::try_from(bytes).map_err(|_| failed(Step::Size, bytes)(Errno::FBIG))?;
        let mapping = Mapping::of_file(file.as_fd(), len, Access::ReadWrite).map_err(failed(Step::Map, bytes))?;
        for advice in [Advice::NotInChildren, Advice::NotInDumps] {
            mapping.advise(0, bytes, advice).map_err(failed(Step::Map, bytes))?;
        }
        if lock {
            mapping.lock().map_err(failed(Step::Lock, bytes))?;
        }
        let nodes = bind::nodes_of(&mapping);
        let (placement, placed) = (Placement::Anywhere, Placed::Anywhere);
        Ok(Self { mapping, file: Some(file), backing, placement, placed, nodes })
    }

    /// Its size in bytes, rounded up to whole pages of its kind.
    pub const fn len(&self) -> u64 {
        self.mapping.len() as u64
    }

    /// Never true: there is no empty segment.
    pub const fn is_empty(&self) -> bool {
        self.mapping.is_empty()
    }

    /// What its pages are.
    pub const fn backing(&self) -> Backing {
        self.backing
    }

    /// Where its pages were to come from.
    pub const fn placement(&self) -> Placement {
        self.placement
    }

    /// How its node was chosen.
    pub const fn placed(&self) -> Placed {
        self.placed
    }

    /// On which nodes its pages lie: node to percent of a sample.
    pub const fn nodes(&self) -> &Finding<BTreeMap<u32, u32>> {
        &self.nodes
    }

    /// Its bytes, to be read.
    pub const fn view(&self) -> View<'_> {
        self.mapping.view()
    }

    /// Its bytes, to be written; always there in the process that made it.
    pub fn writable(&self) -> Option<WritableView<'_>> {
        self.mapping.writable()
    }

    /// Its mapping in this process, for registration with a device.
    pub const fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// The descriptor a writer gets; `None` on the heap stand-in.
    pub fn writer(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// A descriptor a reader gets: it cannot write, and a reader of another uid cannot make it so.
    ///
    /// # Errors
    /// `EBADF` on the heap stand-in, else as `open` says.
    pub fn reader(&self) -> Result<OwnedFd, Errno> {
        memfd::reopen_read_only(self.writer().ok_or(Errno::BADF)?)
    }

    /// What it is known by after a restart.
    ///
    /// # Errors
    /// `EBADF` on the heap stand-in, else as `fstat` says.
    pub fn identity(&self) -> Result<Identity, Errno> {
        Identity::of(self.writer().ok_or(Errno::BADF)?)
    }
}

fn create_file(recipe: &Recipe<'_>) -> Result<Option<OwnedFd>, Errno> {
    let name = format!("hisparse-segment-{:04}", recipe.index);
    match recipe.backing {
        Backing::Heap => Ok(None),
        Backing::Hugetlb { page_bytes } => memfd::create(&name, Some(page_bytes)).map(Some),
        Backing::MemfdThp | Backing::Memfd => memfd::create(&name, None).map(Some),
        Backing::File => recipe.generation.ok_or(Errno::INVAL)?.create().map(Some),
    }
}

#[cfg(test)]
mod tests;
