//! Records that were read ahead of a consumer, each made an object when it is taken.

use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;

use crate::reads::{ReadRecord, ReadRecords};
use crate::record_maker::RecordMaker;

/// An iterator over (queue offset, record).
#[pyclass(frozen, module = "reput_kernel")]
pub struct FetchedRecords {
    found: Py<ReadRecords>,
    maker: Py<RecordMaker>,
    /// Number of the next one.
    next: AtomicUsize,
}

impl FetchedRecords {
    /// Return the records of *found*, from the first one on.
    pub fn new(found: Py<ReadRecords>, maker: Py<RecordMaker>) -> FetchedRecords {
        FetchedRecords { found, maker, next: AtomicUsize::new(0) }
    }

    /// Return the next record and its number, without taking it.
    pub fn peek(&self) -> Option<(usize, &ReadRecord)> {
        let number = self.next.load(Ordering::Relaxed);
        self.found.get().records.get(number).map(|record| (number, record))
    }

    /// Take the record of this number; false: another call has.
    pub fn take(&self, number: usize) -> bool {
        self.next.compare_exchange(number, number + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Make the object of one of the records.
    pub fn object<'py>(&self, py: Python<'py>, record: &ReadRecord) -> PyResult<Bound<'py, PyAny>> {
        self.maker.get().record_of(py, record)
    }
}

#[pymethods]
impl FetchedRecords {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(i64, Bound<'py, PyAny>)>> {
        while let Some((number, record)) = self.peek() {
            let object = self.object(py, record)?;
            // Making an object may run Python code, which may have taken it.
            if self.take(number) {
                return Ok(Some((record.place.queue_offset, object)));
            }
        }
        Ok(None)
    }
}
