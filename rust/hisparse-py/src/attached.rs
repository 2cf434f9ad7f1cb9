//! A pool of another process, and its layers as buffers that Python, numpy and torch read without a copy.
//!
//! ```text
//!  AttachedPool ◄── Layer ◄── memoryview, ndarray, tensor      each keeps what is left of it alive
//!     rows of main KV   (pages, rows, row bytes), strided      keys with scales     (pages, page bytes)
//!                                                              keys without         (pages, rows, row bytes)
//! ```
//! `unsafe` is here for one thing, the buffer protocol: raw addresses are handed to Python with what keeps them mapped.

use std::ffi::{CStr, c_int, c_void};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hisparse_core::layout::pool::{Content, LayerView};
use hisparse_mem::attach::client::{AttachError, AttachedPool, Standing};
use hisparse_mem::attach::frame::{Notice, Role};
use hisparse_mem::map::Access;
use hisparse_mem::pin::chunks_of;
use hisparse_mem::populate::{Workers, populate};
use hisparse_mem::rows::{PoolMemory, RowError};
use pyo3::exceptions::{PyBufferError, PyConnectionError, PyIndexError, PyOSError, PyPermissionError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// What an element is, for Python: a byte.
const FORMAT: &CStr = c"B";

/// An attached pool. The session ends with `close`, or with the last reference to it and to its buffers.
#[pyclass(frozen, module = "hisparse_svc.engine", name = "AttachedPool")]
#[derive(Debug)]
pub(crate) struct PyAttachedPool(Arc<AttachedPool>);

#[pymethods]
impl PyAttachedPool {
    /// Attach to the service whose gRPC socket this is, as one of the roles. Raises `PermissionError`
    /// where it refuses, `ValueError` for another role, else `ConnectionError`.
    #[staticmethod]
    #[pyo3(signature = (socket, engine_id, *, rank, role))]
    #[allow(clippy::needless_pass_by_value)] // paths are extracted by value
    fn attach(py: Python<'_>, socket: PathBuf, engine_id: &str, rank: u32, role: &str) -> PyResult<Self> {
        let role = match role {
            "writer" => Role::Writer,
            "reader" => Role::Reader,
            "importer" => Role::Importer,
            "writable_reader" => Role::WritableReader,
            other => return Err(PyValueError::new_err(format!("{other} is no role"))),
        };
        let path = hisparse_serve::attach_beside(&socket);
        let attached = py.detach(|| AttachedPool::attach(&path, engine_id, rank, role));
        attached.map(|pool| Self(Arc::new(pool))).map_err(|error| match error {
            AttachError::Refused(_) => PyPermissionError::new_err(error.to_string()),
            _ => PyConnectionError::new_err(error.to_string()),
        })
    }

    /// Generation of the pool.
    #[getter]
    fn epoch(&self) -> u64 {
        self.0.epoch()
    }

    /// This session's number.
    #[getter]
    fn session(&self) -> u64 {
        self.0.session()
    }

    /// The secret that a successor of this engine hands to `Reclaim`.
    #[getter]
    fn token<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.token().0)
    }

    /// Whether this rank may write.
    #[getter]
    fn writable(&self) -> bool {
        self.0.role().may_write()
    }

    /// Pages, the one that takes what must go nowhere included.
    #[getter]
    fn pages(&self) -> u64 {
        self.0.layout().pages()
    }

    /// Layers that the pool holds main KV (or, of `indexer`, keys) of.
    fn layers(&self, indexer: bool) -> Vec<usize> {
        let regions = self.0.layout().regions().iter().filter(|region| region.content == content(indexer));
        regions.flat_map(|region| region.layers.clone()).collect()
    }

    /// One layer over all pages. Raises `IndexError` where the pool holds none of it.
    fn layer(&self, layer: usize, indexer: bool) -> PyResult<PyLayer> {
        let content = content(indexer);
        let missing = || PyIndexError::new_err(format!("the pool holds no {content} of layer {layer}"));
        let view = self.0.layout().layer(content, layer).ok_or_else(missing)?;
        PyLayer::new(Arc::clone(&self.0), view).ok_or_else(missing)
    }

    /// Layers whose rows of main KV lie side by side, group by group.
    fn groups(&self) -> Vec<Vec<usize>> {
        self.0.layout().groups().map(|group| group.layers.clone().collect()).collect()
    }

    /// The whole group of one layer over all pages. Raises `IndexError` where the pool holds no rows of it.
    fn group(&self, layer: usize) -> PyResult<PyLayer> {
        let missing = || PyIndexError::new_err(format!("the pool holds no rows of layer {layer}"));
        let mut groups = self.0.layout().groups();
        let region = groups.find(|region| region.layers.contains(&layer) && region.row_pitch_bytes > 0);
        let region = region.ok_or_else(missing)?;
        let shape = [self.0.layout().pages(), region.page_rows, region.layers.len() as u64, region.row_bytes];
        let strides = [region.page_pitch_bytes, region.row_pitch_bytes, region.layer_pitch_bytes, 1];
        let whole = PyLayer::of(Arc::clone(&self.0), (region.segment, region.offset_bytes), &shape, &strides);
        whole.ok_or_else(missing)
    }

    /// All of it as (address, bytes), in chunks of at most so many bytes that end where layers do where that is near.
    fn chunks(&self, most_bytes: u64) -> Vec<(usize, usize)> {
        let chunks = chunks_of(self.0.layout(), most_bytes).into_iter().filter_map(|(segment, bytes)| {
            let part = self.0.mapping(segment)?.view().sub(bytes.start, bytes.end - bytes.start).ok()?;
            Some((part.as_ptr().addr(), part.len()))
        });
        chunks.collect()
    }

    /// Make this process's way to every page, by many threads: page-locking would do it one page after the other. Raises
    /// `OSError` where the kernel refuses.
    fn fault_in(&self, py: Python<'_>) -> PyResult<()> {
        let segments = (0..).map_while(|segment| self.0.mapping(segment));
        let workers = Workers::of_this_machine();
        py.detach(|| segments.into_iter().try_for_each(|mapping| populate(mapping, &workers, &|_| {})))
            .map_err(|errno| PyOSError::new_err(errno.raw_os_error()))
    }

    /// Whether it is mapped so that nobody can write through it here.
    #[getter]
    fn mapped_read_only(&self) -> bool {
        !self.0.role().maps_writable()
    }

    /// Copy one row of main KV out. Raises `IndexError`.
    fn read_row<'py>(&self, py: Python<'py>, layer: usize, page: u64, row: u64) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.0.layout().layer(Content::Main, layer).map_or(0, |view| view.row_bytes);
        let mut into = vec![0; usize::try_from(bytes).unwrap_or(0)];
        self.0.read_row(Content::Main, layer, page, row, &mut into).map_err(row_error)?;
        Ok(PyBytes::new(py, &into))
    }

    /// Copy one row of main KV in. Raises `IndexError`, `ValueError`, and `PermissionError` for a reader.
    fn write_row(&self, layer: usize, page: u64, row: u64, data: &[u8]) -> PyResult<()> {
        if !self.0.role().may_write() {
            return Err(row_error(RowError::ReadOnly));
        }
        self.0.write_row(Content::Main, layer, page, row, data).map_err(row_error)
    }

    /// Where the session stands: `open`, `reconnecting` while the service is gone, `ended`.
    #[getter]
    fn standing(&self) -> &'static str {
        match self.0.standing() {
            Standing::Open => "open",
            Standing::Reconnecting => "reconnecting",
            Standing::Ended => "ended",
        }
    }

    /// Say that this process is about to write to the pages of a lease; whether the lease lives. Raises
    /// `ConnectionError` where the service does not say so in time, `ValueError`.
    fn fill(&self, py: Python<'_>, lease_id: &str, timeout_s: f64) -> PyResult<bool> {
        let longest = time_of(timeout_s)?;
        py.detach(|| self.0.fill(lease_id, longest)).map_err(|error| PyConnectionError::new_err(error.to_string()))
    }

    /// Say that it writes to them no more.
    fn filled(&self, lease_id: &str) {
        self.0.filled(lease_id);
    }

    /// The next thing that the engine must know, as (kind, what it is about); `None` where none comes in time.
    fn next_notice(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<(&'static str, String)>> {
        let longest = time_of(timeout_s)?;
        Ok(py.detach(|| self.0.next_notice(longest)).map(|notice| match notice {
            Notice::Quarantined { lease_id } => ("quarantined", lease_id),
            Notice::Released { lease_id } => ("released", lease_id),
            Notice::Resumed { epoch } => ("resumed", epoch.to_string()),
            Notice::Ended { reason } => ("ended", reason),
        }))
    }

    /// End the session. Buffers stay mapped, and are not to be touched any more.
    fn close(&self) {
        self.0.end_session();
    }
}

fn time_of(timeout_s: f64) -> PyResult<Duration> {
    let read = Duration::try_from_secs_f64(timeout_s);
    read.map_err(|_| PyValueError::new_err("timeout_s must be a length of time in seconds"))
}

fn content(indexer: bool) -> Content {
    if indexer { Content::Indexer } else { Content::Main }
}

fn row_error(error: RowError) -> PyErr {
    match error {
        RowError::ReadOnly => PyPermissionError::new_err(error.to_string()),
        RowError::Length { .. } => PyValueError::new_err(error.to_string()),
        RowError::NoSuchRow { .. } | RowError::OutOfRange(_) => PyIndexError::new_err(error.to_string()),
    }
}

/// One layer over all pages, as a buffer of bytes.
#[pyclass(frozen, module = "hisparse_svc.engine", name = "Layer")]
#[derive(Debug)]
pub(crate) struct PyLayer {
    pool: Arc<AttachedPool>,
    segment: usize,
    base: usize,
    /// Of the dimensions in use.
    shape: Vec<isize>,
    strides: Vec<isize>,
}

impl PyLayer {
    fn new(pool: Arc<AttachedPool>, view: LayerView) -> Option<Self> {
        let (place, pages) = ((view.segment, view.base_bytes), pool.layout().pages());
        if view.row_pitch_bytes == 0 {
            return Self::of(pool, place, &[pages, view.page_pitch_bytes], &[view.page_pitch_bytes, 1]);
        }
        let shape = [pages, view.page_rows, view.row_bytes];
        Self::of(pool, place, &shape, &[view.page_pitch_bytes, view.row_pitch_bytes, 1])
    }

    /// `None` where the bytes do not lie within their segment, which no layout that was checked says.
    fn of(pool: Arc<AttachedPool>, (segment, base): (usize, u64), shape: &[u64], strides: &[u64]) -> Option<Self> {
        let whole =
            |counts: &[u64]| counts.iter().map(|count| isize::try_from(*count).ok()).collect::<Option<Vec<_>>>();
        let (shape, strides) = (whole(shape)?, whole(strides)?);
        // The last byte that any index reaches must be mapped.
        let reach = shape.iter().zip(&strides).try_fold(0_isize, |sum, (count, stride)| {
            sum.checked_add((*count).checked_sub(1).filter(|most| *most >= 0)?.checked_mul(*stride)?)
        })?;
        let base = usize::try_from(base).ok()?;
        let end = base.checked_add(usize::try_from(reach).ok()?)?;
        (end < pool.mapping(segment)?.len()).then_some(Self { pool, segment, base, shape, strides })
    }

    fn writable(&self) -> bool {
        self.pool.role().may_write()
            && self.pool.mapping(self.segment).is_some_and(|mapping| mapping.access() == Access::ReadWrite)
    }

    fn bytes(&self) -> isize {
        self.shape.iter().product()
    }

    /// Whether its bytes are one run.
    fn contiguous(&self) -> bool {
        let mut run = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(count, stride)| {
            let as_run = *stride == run;
            run *= count;
            as_run
        })
    }
}

#[pymethods]
impl PyLayer {
    /// Counts in each dimension: (pages, rows, row bytes), or (pages, page bytes).
    #[getter]
    fn shape(&self) -> Vec<isize> {
        self.shape.clone()
    }

    /// Bytes from one to the next in each dimension.
    #[getter]
    fn strides(&self) -> Vec<isize> {
        self.strides.clone()
    }

    /// Whether it may not be written through.
    #[getter]
    fn readonly(&self) -> bool {
        !self.writable()
    }

    /// As a `DLPack` capsule, through numpy.
    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(slf: &Bound<'py, Self>, options: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        let array = slf.py().import("numpy")?.call_method1("asarray", (slf,))?;
        array.call_method("__dlpack__", (), options)
    }

    /// The CPU, in `DLPack`'s numbers.
    #[allow(clippy::unused_self)] // the protocol is a method
    fn __dlpack_device__(&self) -> (u8, u8) {
        (1, 0)
    }

    // SAFETY: unsafe because Python hands in a raw structure to be filled. Sound because it is checked for null, and
    // every pointer put into it lives as long as `obj`, which the structure owns: shape, strides and the mapping belong
    // to the frozen object, and `reach` was checked against the mapping.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let refused = |rule: &'static str| Err(PyBufferError::new_err(rule));
        if view.is_null() {
            return refused("there is no view to fill");
        }
        let layer = slf.get();
        let writable = layer.writable();
        let wants = |flag: c_int| flags & flag == flag;
        if wants(ffi::PyBUF_WRITABLE) && !writable {
            return refused("this rank attached as a reader; the writer rank writes");
        }
        let one_run = layer.contiguous();
        let needs_run =
            !wants(ffi::PyBUF_STRIDES) || wants(ffi::PyBUF_C_CONTIGUOUS) || wants(ffi::PyBUF_ANY_CONTIGUOUS);
        if (needs_run && !one_run) || wants(ffi::PyBUF_F_CONTIGUOUS) {
            return refused("rows of one layer lie apart: ask for a strided buffer, as numpy.asarray does");
        }
        let Some(mapping) = layer.pool.mapping(layer.segment) else { return refused("the pool is gone") };
        let address = mapping.view().as_ptr().wrapping_add(layer.base).cast_mut();
        let dimensions = c_int::try_from(layer.shape.len()).unwrap_or(0);
        let (shape, strides, bytes) = (layer.shape.as_ptr(), layer.strides.as_ptr(), layer.bytes());
        let shaped = wants(ffi::PyBUF_ND);
        // SAFETY: `view` is not null, and Python gives a structure that may be written, as the protocol says.
        unsafe {
            (*view).buf = address.cast::<c_void>();
            (*view).len = bytes;
            (*view).readonly = c_int::from(!writable);
            (*view).itemsize = 1;
            (*view).format = if wants(ffi::PyBUF_FORMAT) { FORMAT.as_ptr().cast_mut() } else { std::ptr::null_mut() };
            (*view).ndim = if shaped { dimensions } else { 1 };
            (*view).shape = if shaped { shape.cast_mut() } else { std::ptr::null_mut() };
            (*view).strides = if wants(ffi::PyBUF_STRIDES) { strides.cast_mut() } else { std::ptr::null_mut() };
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = std::ptr::null_mut();
            (*view).obj = slf.into_ptr();
        }
        Ok(())
    }
}
