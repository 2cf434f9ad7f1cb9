//! Pools on the heap stand-in, and on real memory where there is a kernel.

use hisparse_core::layout::pool::{Content, PoolShape};
use hisparse_core::layout::{RowLayout, StrideAlign, default_index_dtype};
use hisparse_core::model::{Layer, preset};
use hisparse_core::platform::{KvDtype, LayerGroups};

use super::*;
use crate::root::Root;
use crate::root::fixture::Tree;
use crate::rows::RowError;

const LAYERS: [Layer; 5] = [Layer::Indexed, Layer::Shared, Layer::Shared, Layer::Indexed, Layer::Shared];

fn layout(pages: u64) -> PoolLayout {
    let model = preset("glm-5.2").unwrap();
    let main = RowLayout::main(&model, KvDtype::Fp8E4m3, 1).unwrap();
    let indexer = RowLayout::indexer(&model, default_index_dtype(&model)).unwrap();
    PoolLayout::new(&PoolShape {
        layers: &LAYERS,
        draft_layers: 0,
        main: &main,
        indexer: &indexer,
        page_tokens: 64,
        tokens_per_row: 1,
        tokens_per_index_row: 1,
        pages,
        align: StrideAlign::Packed,
        groups: LayerGroups::Auto,
    })
    .unwrap()
}

/// A machine of which only the memory is known.
fn machine(available_kib: u64) -> Machine {
    let meminfo = format!("MemAvailable: {available_kib} kB\n");
    Machine::discover(&Tree::new(&[("proc/meminfo", &meminfo)]).root(), None)
}

fn quiet(_: Progress) {}

/// A pool of five layers on the heap.
pub(crate) fn heap(pages: u64) -> HostPool {
    let wishes = Wishes { pages: Pages::Only(Backing::Heap), ..Wishes::default() };
    HostPool::create(layout(pages), &wishes, &machine(1 << 20), &quiet).unwrap()
}

/// The same on real memory.
#[cfg(not(miri))]
pub(crate) fn shared(pages: u64) -> HostPool {
    let wishes = Wishes { pages: Pages::Only(Backing::Memfd), ..Wishes::default() };
    HostPool::create(layout(pages), &wishes, &machine(1 << 20), &quiet).unwrap()
}

#[test]
fn a_row_is_read_back_and_its_neighbours_are_untouched() {
    let pool = heap(3);
    let row = [7_u8; 656];
    pool.write_row(Content::Main, 1, 2, 63, &row).unwrap();
    let mut back = [0; 656];
    pool.read_row(Content::Main, 1, 2, 63, &mut back).unwrap();
    assert_eq!(back, row);
    for (layer, page, at) in [(0, 2, 63), (2, 2, 63), (1, 2, 62), (1, 1, 63), (3, 2, 63)] {
        pool.read_row(Content::Main, layer, page, at, &mut back).unwrap();
        assert_eq!(back, [0; 656], "layer {layer} page {page} row {at}");
    }
}

#[test]
fn what_is_not_there_is_refused() {
    let pool = heap(3);
    let mut row = [0; 656];
    for (layer, page, at) in [(5, 0, 0), (0, 3, 0), (0, 0, 64), (0, u64::MAX, 0), (0, 0, u64::MAX)] {
        let error = pool.read_row(Content::Main, layer, page, at, &mut row).unwrap_err();
        assert!(matches!(error, RowError::NoSuchRow { .. }), "{error}");
    }
    let short = pool.read_row(Content::Main, 0, 0, 0, &mut [0; 655]).unwrap_err();
    assert_eq!(short.to_string(), "a row has 656 bytes, the buffer 655");
    // Index keys are kept scales last: a page of them is not row after row, and layer 1 has none.
    assert!(pool.read_row(Content::Indexer, 0, 0, 0, &mut [0; 132]).is_err());
    assert!(pool.read_row(Content::Indexer, 1, 0, 0, &mut [0; 132]).is_err());
}

#[test]
fn zeroing_pages_reaches_every_layer_and_nothing_else() {
    let pool = heap(4);
    for layer in 0..LAYERS.len() {
        for page in 0..4 {
            pool.write_row(Content::Main, layer, page, 5, &[9; 656]).unwrap();
        }
    }
    assert!(!pool.pages_are_zero(1..3));
    pool.zero_pages(1..3);
    assert!(pool.pages_are_zero(1..3));
    assert!(!pool.pages_are_zero(0..1) && !pool.pages_are_zero(3..4));
}

#[test]
fn a_pool_larger_than_the_machine_is_refused_before_anything_is_made() {
    let wishes = Wishes { pages: Pages::Only(Backing::Heap), ..Wishes::default() };
    let reported = AtomicU64::new(0);
    let report = |progress: Progress| {
        reported.fetch_add(progress.made_bytes, Ordering::Relaxed);
    };
    let error = HostPool::create(layout(100), &wishes, &machine(1024), &report).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("MemAvailable") && text.contains("--assume-memory"), "{text}");
    assert_eq!(reported.into_inner(), 0);
}

#[test]
fn progress_ends_at_the_total() {
    let wishes = Wishes { pages: Pages::Only(Backing::Heap), ..Wishes::default() };
    let last = AtomicU64::new(0);
    let report = |progress: Progress| {
        assert!(progress.made_bytes <= progress.total_bytes);
        last.fetch_max(progress.made_bytes, Ordering::Relaxed);
    };
    let pool = HostPool::create(layout(3), &wishes, &machine(1 << 20), &report).unwrap();
    let total: u64 = pool.segments().iter().map(Segment::len).sum();
    assert_eq!(last.into_inner(), total);
}

#[cfg(not(miri))]
#[test]
fn a_real_pool_is_sealed_and_holds_rows() {
    let machine = Machine::discover(&Root::machine(), None);
    let pool = HostPool::create(layout(100), &Wishes::default(), &machine, &quiet).unwrap();
    assert!(pool.segments().iter().all(|segment| segment.identity().unwrap().is_sealed()));
    pool.write_row(Content::Main, 4, 99, 63, &[3; 656]).unwrap();
    let mut row = [0; 656];
    pool.read_row(Content::Main, 4, 99, 63, &mut row).unwrap();
    assert_eq!(row, [3; 656]);
}
