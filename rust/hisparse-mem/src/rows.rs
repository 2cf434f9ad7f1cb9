//! Rows of a pool, wherever its segments were mapped: in the service that made them, or in an engine that attached.

use hisparse_core::layout::pool::{Content, LayerView, PoolLayout};

use crate::map::Mapping;
use crate::view::OutOfRange;

/// Why a row could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// The pool holds no such layer, page or row, or a page of it is not row after row.
    #[error("the pool has no row {row} in page {page} of layer {layer} ({content})")]
    NoSuchRow {
        /// Main KV or index keys.
        content: Content,
        /// Layer asked for.
        layer: usize,
        /// Page asked for.
        page: u64,
        /// Row asked for.
        row: u64,
    },
    /// The buffer is not as long as a row.
    #[error("a row has {row_bytes} bytes, the buffer {buffer_bytes}")]
    Length {
        /// Bytes of a row.
        row_bytes: u64,
        /// Bytes of the buffer.
        buffer_bytes: u64,
    },
    /// This process may only read.
    #[error("this process attached as a reader; the writer rank writes")]
    ReadOnly,
    /// The layout and the segments do not fit each other.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
}

/// A pool whose segments are mapped here.
pub trait PoolMemory {
    /// Where everything lies.
    fn layout(&self) -> &PoolLayout;

    /// A segment's mapping.
    fn mapping(&self, segment: usize) -> Option<&Mapping>;

    /// Copies one row out.
    ///
    /// # Errors
    /// See [`RowError`].
    fn read_row(&self, content: Content, layer: usize, page: u64, row: u64, into: &mut [u8]) -> Result<(), RowError> {
        let (mapping, at) = locate(self, content, layer, page, row, into.len())?;
        Ok(mapping.view().read(at, into)?)
    }

    /// Copies one row in.
    ///
    /// # Errors
    /// See [`RowError`].
    fn write_row(&self, content: Content, layer: usize, page: u64, row: u64, from: &[u8]) -> Result<(), RowError> {
        let (mapping, at) = locate(self, content, layer, page, row, from.len())?;
        Ok(mapping.writable().ok_or(RowError::ReadOnly)?.write(at, from)?)
    }
}

fn locate<P: PoolMemory + ?Sized>(
    pool: &P,
    content: Content,
    layer: usize,
    page: u64,
    row: u64,
    buffer: usize,
) -> Result<(&Mapping, u64), RowError> {
    let missing = RowError::NoSuchRow { content, layer, page, row };
    let view: LayerView = pool.layout().layer(content, layer).ok_or(missing)?;
    let buffer_bytes = buffer as u64;
    if buffer_bytes != view.row_bytes {
        return Err(RowError::Length { row_bytes: view.row_bytes, buffer_bytes });
    }
    let at = view.row_bytes_at(page, row).filter(|_| page < pool.layout().pages()).ok_or(missing)?;
    Ok((pool.mapping(view.segment).ok_or(missing)?, at))
}
