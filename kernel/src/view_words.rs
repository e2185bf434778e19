//! Where a view's numbers stand: words of the memory that the group's processes share.

use std::sync::Mutex;

use pyo3::exceptions::PyIndexError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;

use crate::memory::{SharedWords, monotonic_ns};
use crate::ring_words::RingWords;

/// A view's progress that its dispatcher has not told yet.
const UNKNOWN: u64 = u64::MAX;

/// How far a view has got, and which view it is.
#[derive(Clone, Copy, PartialEq)]
pub struct Reached {
    pub progress: i64,
    pub generation: i64,
}

/// Progress and generation of a view, until its group has other members or the memory is closed.
#[pyclass(frozen, module = "reput_kernel")]
pub struct ViewWords {
    group: Py<PyAny>,
    #[pyo3(get)]
    members: Py<PyAny>,
    progress_at: usize,
    generation_at: usize,
    asked_at: usize,
    /// Cells and words of the ring; `None`: released. Never locked while Python code may run.
    shared: Mutex<Option<(SharedWords, SharedWords)>>,
}

impl ViewWords {
    /// Return the view's numbers; `None`: they are not known, or not here any more.
    ///
    /// The dispatcher is told that somebody asks, so that it does not rest.
    pub fn reached(&self, py: Python<'_>) -> PyResult<Option<Reached>> {
        if !self.group.bind(py).getattr(intern!(py, "members"))?.is(&self.members) {
            return Ok(None);
        }
        let Ok(shared) = self.shared.lock() else { return Ok(None) };
        let Some((cells, words)) = &*shared else { return Ok(None) };
        // The progress is read first: that of a new view is told after its generation.
        let progress = cells.load(self.progress_at);
        let generation = cells.load(self.generation_at);
        if progress == UNKNOWN {
            return Ok(None);
        }
        words.store(self.asked_at, monotonic_ns());
        let (Ok(progress), Ok(generation)) = (i64::try_from(progress), i64::try_from(generation)) else {
            return Ok(None);
        };
        Ok(Some(Reached { progress, generation }))
    }
}

#[pymethods]
impl ViewWords {
    /// Read words *progress_at* and *generation_at* of *cells*, as long as *group* has these *members*, and write the
    /// monotonic time of each look into word *asked_at* of *words*.
    #[new]
    fn new(
        group: Py<PyAny>,
        members: Py<PyAny>,
        cells: &Bound<'_, PyAny>,
        progress_at: usize,
        generation_at: usize,
        words: &Bound<'_, PyAny>,
        asked_at: usize,
    ) -> PyResult<ViewWords> {
        let cells = SharedWords::of(&RingWords::view_of(cells)?, false)?;
        let words = SharedWords::of(&RingWords::view_of(words)?, true)?;
        if progress_at.max(generation_at) >= cells.count() || asked_at >= words.count() {
            return Err(PyIndexError::new_err("a word lies outside of the memory"));
        }
        let shared = Mutex::new(Some((cells, words)));
        Ok(ViewWords { group, members, progress_at, generation_at, asked_at, shared })
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.group)?;
        visit.call(&self.members)
    }

    /// Let go of the memory, which is closed then. The numbers are not known from now on.
    fn release(&self) {
        let released = self.shared.lock().ok().and_then(|mut shared| shared.take());
        drop(released);
    }
}
