//! RecordMaker: the objects of records, as `checked_record` of `reput/store/record/record.py` makes each.

use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::reads::{HEAD_SIZE, ReadRecord};
use crate::room::{bytes, joined};
use crate::slots::{PlainClass, Slot};

/// Of a record, the byte of the flags that has `COMPRESSED`: a client has compressed the body.
const FLAG_BYTE_AT: usize = 39;
const COMPRESSED: u8 = 1;
/// The field before the body.
const BODY_SIZE: usize = 4;

/// What makes objects of records.
#[pyclass(frozen, module = "reput_kernel")]
pub struct RecordMaker {
    class: PlainClass,
    decode: Py<PyAny>,
    early_body_end_max: usize,
    body: Slot,
    commit_log_offset: Slot,
    data: Slot,
    decoder: Slot,
    queue_offset: Slot,
    record_size: Slot,
}

#[pymethods]
impl RecordMaker {
    /// Make objects of *class*, `Record`; *decode* decodes the fields that they do not have at first. A body that ends at
    /// or before *early_body_end_max* is copied at once, unless a client has compressed it.
    #[new]
    fn new(class: &Bound<'_, PyType>, decode: Py<PyAny>, early_body_end_max: usize) -> PyResult<RecordMaker> {
        Ok(RecordMaker {
            class: PlainClass::of(class)?,
            decode,
            early_body_end_max,
            body: Slot::of(class, c"body")?,
            commit_log_offset: Slot::of(class, c"commit_log_offset")?,
            data: Slot::of(class, c"_data")?,
            decoder: Slot::of(class, c"_decode")?,
            queue_offset: Slot::of(class, c"queue_offset")?,
            record_size: Slot::of(class, c"record_size")?,
        })
    }
}

impl RecordMaker {
    /// Return the object of one record.
    pub fn record_of<'py>(&self, py: Python<'py>, found: &ReadRecord) -> PyResult<Bound<'py, PyAny>> {
        let made = self.class.new_object(py)?;
        let place = &found.place;
        self.queue_offset.set(&made, place.queue_offset.into_pyobject(py)?.into_any())?;
        self.commit_log_offset.set(&made, place.commit_log_offset.into_pyobject(py)?.into_any())?;
        self.record_size.set(&made, place.record_size.into_pyobject(py)?.into_any())?;
        self.decoder.set(&made, self.decode.bind(py).clone())?;
        let data = found.bytes(py);
        if found.body_end <= self.early_body_end_max && data[FLAG_BYTE_AT] & COMPRESSED == 0 {
            // The body has its own bytes, so the other fields are decoded from a record whose body is empty.
            let (head, behind) = (&data[..HEAD_SIZE - BODY_SIZE], &data[found.body_end..]);
            self.data.set(&made, joined(py, &[head, &[0; BODY_SIZE], behind])?.into_any())?;
            self.body.set(&made, bytes(py, &data[HEAD_SIZE..found.body_end])?.into_any())?;
        } else {
            self.data.set(&made, found.data(py)?.into_any())?;
        }
        Ok(made)
    }

    /// Return where *record* lies in the log; `None`: it is not exactly of the class, or it was made in Python without.
    pub fn commit_log_offset<'py>(&self, record: &Bound<'py, PyAny>) -> Option<Bound<'py, PyAny>> {
        self.commit_log_offset.get(record).ok()
    }
}
