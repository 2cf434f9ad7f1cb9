//! A host pool: every segment of a layout, made together or not at all.
//!
//! ```text
//!  PoolLayout ─► headroom ─► backing 1: segment 0, 1, … n ─► HostPool
//!                   │           └─ one fails: all are dropped ─► backing 2 … ─► the last error
//!                   └─ too small: refused before anything is made
//! ```

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use hisparse_core::error::{Problem, Problems};
use hisparse_core::layout::pool::PoolLayout;
use hisparse_core::units::Bytes;

use crate::backing::{Backing, Pages};
use crate::bind::Placement;
use crate::finding::Finding;
use crate::headroom::{Headroom, NoHeadroom};
use crate::machine::{Machine, Room};
use crate::map::Mapping;
use crate::populate::Workers;
use crate::rows::PoolMemory;
use crate::segment::{Recipe, Segment, SegmentError};
use crate::state_dir::{Generation, StateDir, StateDirError};
use crate::view::{View, WritableView};

mod adopting;

pub use adopting::{AdoptError, KeptSegment};

/// How a pool shall be made.
#[derive(Debug)]
pub struct Wishes<'a> {
    /// What its pages shall be.
    pub pages: Pages,
    /// Where each segment's pages come from, in turn; empty leaves it to the kernel.
    pub placements: &'a [Placement],
    /// Threads that make the pages.
    pub workers: Workers,
    /// Whether pages are locked.
    pub lock: bool,
    /// The folder that its segments are files in.
    pub state_dir: Option<&'a StateDir>,
    /// Stands in for what the machine says about its memory.
    pub assume_memory: Option<Bytes>,
}

impl Default for Wishes<'_> {
    fn default() -> Self {
        let workers = Workers::of_this_machine();
        Self { pages: Pages::Auto, placements: &[], workers, lock: false, state_dir: None, assume_memory: None }
    }
}

impl Wishes<'_> {
    /// Kinds of pages to try, best first.
    fn order(&self, layout: &PoolLayout, machine: &Machine) -> Vec<Backing> {
        match self.state_dir {
            Some(_) => vec![Backing::File],
            None => self.pages.order(machine, layout.segment_bytes()),
        }
    }
}

/// How far populating is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes whose pages are made.
    pub made_bytes: u64,
    /// All of them.
    pub total_bytes: u64,
}

/// Why there is no pool. Nothing is left of the attempt.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// It does not fit, or not as it was wished; nothing was tried.
    #[error("{0}")]
    TooLarge(Problems),
    /// A segment could not be made.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The state directory cannot be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
}

/// All segments of one engine group.
pub struct HostPool {
    layout: PoolLayout,
    segments: Vec<Segment>,
    declined: Vec<SegmentError>,
}

impl fmt::Debug for HostPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostPool")
            .field("pages", &self.layout.pages())
            .field("segments", &self.segments)
            .finish_non_exhaustive()
    }
}

impl HostPool {
    /// Makes the segments of `layout` on `machine`; `report` hears of progress from several threads.
    ///
    /// # Errors
    /// What does not fit, or the step that failed with the last kind of pages tried; nothing is left behind.
    pub fn create(
        layout: PoolLayout,
        wishes: &Wishes<'_>,
        machine: &Machine,
        report: &(dyn Fn(Progress) + Sync),
    ) -> Result<Self, PoolError> {
        check_wishes(&layout, wishes, machine).map_err(PoolError::TooLarge)?;
        let total = layout.total_bytes();
        let order = wishes.order(&layout, machine);
        let generation = wishes.state_dir.map(StateDir::new_generation).transpose()?;
        let mut declined = Vec::new();
        let mut refused = None;
        for backing in order {
            if let Err(problems) = check_room(backing, total, wishes, machine) {
                refused = Some(PoolError::TooLarge(problems));
                continue;
            }
            match make_segments(&layout, backing, wishes, machine, generation.as_ref(), report) {
                Ok(segments) => return Ok(Self { layout, segments, declined }),
                Err(error) => {
                    declined.push(error);
                    refused = Some(PoolError::Segment(error));
                }
            }
        }
        if let Some(generation) = &generation {
            generation.withdraw()?;
        }
        // The order is never empty, so a refusal was noted; an empty one would have nothing to report.
        Err(refused.unwrap_or(PoolError::TooLarge(Problems::new())))
    }

    /// Whether `machine` has room for `layout` in any kind of pages that is wished for, before anything is tried.
    ///
    /// # Errors
    /// Every limit that is too small for the last kind there is to try, each with how to raise it.
    pub fn check(layout: &PoolLayout, wishes: &Wishes<'_>, machine: &Machine) -> Result<(), Problems> {
        check_wishes(layout, wishes, machine)?;
        let mut refused = Ok(());
        for backing in wishes.order(layout, machine) {
            refused = check_room(backing, layout.total_bytes(), wishes, machine);
            if refused.is_ok() {
                break;
            }
        }
        refused
    }

    /// The segments in the layout's order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Kinds of pages that were tried before and could not be had.
    pub fn declined(&self) -> &[SegmentError] {
        &self.declined
    }

    /// Makes every byte of `pages` zero, in all layers and in the index keys.
    pub fn zero_pages(&self, pages: Range<u64>) {
        self.for_each(pages, |segment, range| {
            if let Some(view) = segment.writable().and_then(|view| part_of(&view, &range)) {
                view.zero();
            }
        });
    }

    /// Whether every byte of `pages` is zero: the proof that nothing of a tenant is left.
    pub fn pages_are_zero(&self, pages: Range<u64>) -> bool {
        let mut zero = true;
        self.for_each(pages, |segment, range| {
            let view = segment.view();
            zero &= view.sub(range.start, range.end - range.start).is_ok_and(|view: View<'_>| view.is_zero());
        });
        zero
    }

    fn for_each(&self, pages: Range<u64>, mut visit: impl FnMut(&Segment, Range<u64>)) {
        for (index, range) in self.layout.ranges_of(pages) {
            if let Some(segment) = self.segments.get(index) {
                visit(segment, range);
            }
        }
    }
}

impl PoolMemory for HostPool {
    fn layout(&self) -> &PoolLayout {
        &self.layout
    }

    fn mapping(&self, segment: usize) -> Option<&Mapping> {
        self.segments.get(segment).map(Segment::mapping)
    }
}

fn part_of<'m>(view: &WritableView<'m>, range: &Range<u64>) -> Option<WritableView<'m>> {
    view.sub(range.start, range.end - range.start).ok()
}

/// Whether what is wished for besides the bytes can be had: the nodes, and locking.
fn check_wishes(layout: &PoolLayout, wishes: &Wishes<'_>, machine: &Machine) -> Result<(), Problems> {
    let mut problems = Problems::new();
    let placed = Placement::check("--numa", wishes.placements, layout.segment_bytes(), &machine.numa);
    problems.extend(placed.err().unwrap_or_default());
    let thp = &machine.transparent_hugepages;
    if wishes.pages == Pages::Only(Backing::MemfdThp) && !thp.shared_advice_works() {
        let rule = format!(
            "the kernel ignores the advice: /sys/kernel/mm/transparent_hugepage/shmem_enabled is {}",
            thp.shared
        );
        problems.push(Problem::new("--pages", "thp", rule, "write `advise` there, or use --pages auto"));
    }
    if wishes.lock {
        problems.extend(machine.memlock.check(Bytes::new(layout.total_bytes())).err().unwrap_or_default());
    }
    problems.into_result(())
}

/// Whether `total` bytes of this kind of pages are there.
fn check_room(backing: Backing, total: u64, wishes: &Wishes<'_>, machine: &Machine) -> Result<(), Problems> {
    const FIELD: &str = "--host-pool";
    let wanted = Bytes::new(total);
    let check = |room: Result<Headroom, NoHeadroom>| match room {
        Ok(room) => room.check(FIELD, wanted),
        Err(none) => Err(Problems::one(none.problem(FIELD, wanted))),
    };
    match (backing, wishes.state_dir) {
        (Backing::Hugetlb { page_bytes }, _) => check(machine.headroom_in_hugepages(page_bytes)),
        (Backing::File, Some(dir)) => check(machine.headroom_in(dir.path(), wishes.assume_memory)),
        _ => check(match &machine.headroom {
            Room::Some(room) => Ok(room.clone()),
            Room::None(none) => Err(none.clone()),
        }),
    }
}

fn make_segments(
    layout: &PoolLayout,
    backing: Backing,
    wishes: &Wishes<'_>,
    machine: &Machine,
    generation: Option<&Generation<'_>>,
    report: &(dyn Fn(Progress) + Sync),
) -> Result<Vec<Segment>, SegmentError> {
    let granule = backing.granule_bytes();
    let total_bytes =
        layout.segment_bytes().iter().fold(0_u64, |sum, bytes| sum.saturating_add(bytes.next_multiple_of(granule)));
    let made = AtomicU64::new(0);
    let on_chunk = |bytes: u64| {
        let made_bytes = made.fetch_add(bytes, Ordering::Relaxed) + bytes;
        report(Progress { made_bytes, total_bytes });
    };
    let place = |index: usize| match wishes.placements.len() {
        0 => Placement::Anywhere,
        count => wishes.placements[index % count],
    };
    let sizes = layout.segment_bytes().iter().enumerate();
    sizes
        .map(|(index, bytes)| {
            let placement = place(index);
            let recipe = Recipe {
                index,
                bytes: *bytes,
                backing,
                placement,
                node_cpus: &cpus_of(machine, placement),
                workers: &wishes.workers,
                lock: wishes.lock,
                generation,
            };
            Segment::create(&recipe, &on_chunk)
        })
        .collect()
}

/// CPUs of the node a placement names; none where it names none or the node is not known.
fn cpus_of(machine: &Machine, placement: Placement) -> Vec<usize> {
    let (Some(id), Finding::Known(nodes)) = (placement.node(), &machine.numa.nodes) else { return Vec::new() };
    nodes.iter().find(|node| node.id == id).map(crate::numa::Node::cpu_numbers).unwrap_or_default()
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::heap as small_pool;
#[cfg(all(test, not(miri)))]
pub(crate) use tests::shared as small_shared_pool;
