//! The ring's words for processors that reorder more than x86-64 does: with the interface of a memory view, and in order.
//!
//! `core/reput/ring` explains which order its protocols need; `SharedWords` keeps it.

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice};

use crate::memory::SharedWords;
use crate::word_order;

/// Words of 8 bytes that other processes read and write, as `memoryview.cast("Q")` with the order of memory kept.
#[pyclass(module = "reput_kernel")]
pub struct RingWords {
    /// The memory view, and its words; `None`: released.
    shared: Option<(Py<PyAny>, SharedWords)>,
}

impl RingWords {
    fn of(view: Bound<'_, PyAny>) -> PyResult<RingWords> {
        let words = SharedWords::of(&view, false)?;
        Ok(RingWords { shared: Some((view.unbind(), words)) })
    }

    fn shared(&self) -> PyResult<&(Py<PyAny>, SharedWords)> {
        self.shared.as_ref().ok_or_else(|| PyValueError::new_err("the words were released"))
    }

    fn words(&self) -> PyResult<&SharedWords> {
        Ok(&self.shared()?.1)
    }

    /// Return the memory view of *object* if it is an object of this class, and *object* otherwise.
    pub fn view_of<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match object.cast::<RingWords>() {
            Ok(words) => Ok(words.borrow().shared()?.0.bind(object.py()).clone()),
            Err(_) => Ok(object.clone()),
        }
    }

    fn place(words: &SharedWords, index: isize) -> PyResult<usize> {
        let index = if index < 0 { index.checked_add_unsigned(words.count()).unwrap_or(-1) } else { index };
        usize::try_from(index)
            .ok()
            .filter(|index| *index < words.count())
            .ok_or_else(|| PyIndexError::new_err("the index is out of bounds"))
    }
}

#[pymethods]
impl RingWords {
    /// Take the words of *octets*, a memory view of bytes.
    #[new]
    fn new(octets: &Bound<'_, PyAny>) -> PyResult<RingWords> {
        RingWords::of(octets.call_method1(intern!(octets.py(), "cast"), ("Q",))?)
    }

    /// Whether the words cannot be stored to.
    #[getter]
    fn readonly(&self) -> PyResult<bool> {
        Ok(!self.words()?.are_writable())
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.words()?.count())
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if index.is_instance_of::<PySlice>() {
            let part = RingWords::of(self.shared()?.0.bind(py).get_item(index)?)?;
            return Ok(Bound::new(py, part)?.into_any());
        }
        let words = self.words()?;
        Ok(words.load(RingWords::place(words, index.extract()?)?).into_pyobject(py)?.into_any())
    }

    fn __setitem__(&self, index: isize, value: u64) -> PyResult<()> {
        let words = self.words()?;
        if !words.are_writable() {
            return Err(PyTypeError::new_err("cannot modify read-only memory"));
        }
        words.store(RingWords::place(words, index)?, value);
        Ok(())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        let (words, other) = (self.words()?, SharedWords::of(&RingWords::view_of(other)?, false)?);
        Ok(words.count() == other.count() && (0..words.count()).all(|index| words.load(index) == other.load(index)))
    }

    fn __ne__(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(!self.__eq__(other)?)
    }

    /// Return the words as a list.
    fn tolist(&self) -> PyResult<Vec<u64>> {
        let words = self.words()?;
        Ok((0..words.count()).map(|index| words.load(index)).collect())
    }

    /// Return a copy of the words' bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let octets: Vec<u8> = self.tolist()?.into_iter().flat_map(u64::to_ne_bytes).collect();
        Ok(PyBytes::new(py, &octets))
    }

    /// Let go of the memory. Every later use of these words is an error.
    fn release(&mut self, py: Python<'_>) -> PyResult<()> {
        if let Some((view, words)) = self.shared.take() {
            drop(words);
            view.bind(py).call_method0(intern!(py, "release"))?;
        }
        Ok(())
    }
}

/// A full barrier with the interface of `threading.Lock`, acquired without blocking and released.
#[pyclass(frozen, module = "reput_kernel")]
pub struct RingBarrier;

#[pymethods]
impl RingBarrier {
    #[new]
    fn new() -> RingBarrier {
        RingBarrier
    }

    /// Make all stores of this thread visible before its next load.
    #[pyo3(signature = (blocking = true))]
    fn acquire(&self, blocking: bool) -> bool {
        let _ = blocking;
        word_order::barrier();
        true
    }

    /// Do nothing.
    fn release(&self) {}
}
