//! Where the fields of records lie that follow each other, and the check of many records' CRCs.
//!
//! `RecordColumns` of `reput/store/record/record_columns.py` has these places as arrays, and finds them with numpy.

use std::collections::TryReserveError;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::counters::{Way, count};
use crate::memory::with_bytes;
use crate::room::bytes;
use crate::stored::Stored;

/// Bytes of a header up to the hosts, which every record has at the same places.
const HEADER_SIZE: usize = 48;
/// Numbers of a record beside its header.
const NUMBER_COUNT: usize = 9;
const NUMBER_SIZE: usize = 8;
/// Bytes between topic and properties: the size of the properties.
const PROPERTIES_SIZE_SIZE: usize = 2;

/// The fields of records that follow each other.
#[derive(Default)]
pub struct Places {
    headers: Vec<u8>,
    /// Of each record: its place, store time, and prepared transaction offset; place and size of body, topic, properties.
    numbers: Vec<[i64; NUMBER_COUNT]>,
    /// The end of the last one.
    pub end: usize,
}

impl Places {
    /// Find the records that *log* begins with, up to the first that is none, or whose own offset is not its place.
    pub fn find(log: &[u8], commit_log_offset: i64) -> Result<Places, TryReserveError> {
        let mut found = Places::default();
        while let Some(stored) = Stored::read(&log[found.end..]) {
            let at = found.end;
            if stored.commit_log_offset() != commit_log_offset.wrapping_add(at as i64) {
                break;
            }
            found.headers.try_reserve(HEADER_SIZE)?;
            found.numbers.try_reserve(1)?;
            found.headers.extend_from_slice(&stored.data[..HEADER_SIZE]);
            found.end += stored.data.len();
            let properties_at = found.end - stored.properties.len();
            found.numbers.push([
                at as i64,
                stored.store_timestamp(),
                stored.prepared_transaction_offset(),
                (at + stored.body_at) as i64,
                stored.body.len() as i64,
                (properties_at - PROPERTIES_SIZE_SIZE - stored.topic.len()) as i64,
                stored.topic.len() as i64,
                properties_at as i64,
                stored.properties.len() as i64,
            ]);
        }
        Ok(found)
    }

    /// Return the numbers, each kind of all records behind the other.
    fn by_kind<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, NUMBER_COUNT * self.numbers.len() * NUMBER_SIZE, |target| {
            let (targets, _) = target.as_chunks_mut::<NUMBER_SIZE>();
            let kinds = (0..NUMBER_COUNT).flat_map(|kind| self.numbers.iter().map(move |numbers| numbers[kind]));
            targets.iter_mut().zip(kinds).for_each(|(target, number)| *target = number.to_le_bytes());
            Ok(())
        })
    }
}

/// Headers, numbers, and where the records end.
type Located<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize);

/// Return headers and numbers of the records that *data* begins with, and their end; see `Places`.
///
/// *data* begins at this offset of the log. None: there is no memory, and the Python path looks at them.
#[pyfunction]
pub fn locate_records<'py>(py: Python<'py>, data: PyBuffer<u8>, commit_log_offset: i64) -> Option<Located<'py>> {
    let found = with_bytes(py, &data, |log| Places::find(log, commit_log_offset)).ok()?;
    let located = (bytes(py, &found.headers).ok()?, found.by_kind(py).ok()?, found.end);
    count(Way::Locate, found.numbers.len());
    Some(located)
}

/// Return the number of the first record without its CRC, -1 if all have theirs.
///
/// *positions*: where in *data* each record begins, 8 bytes each, little-endian. None: there is no record at one of
/// them, and they take the Python path.
#[pyfunction]
pub fn first_bad_record(py: Python<'_>, data: PyBuffer<u8>, positions: &[u8]) -> Option<i64> {
    let (positions, _) = positions.as_chunks::<NUMBER_SIZE>();
    let first = with_bytes(py, &data, |log| {
        for (number, position) in positions.iter().enumerate() {
            let at = usize::try_from(i64::from_le_bytes(*position)).ok()?;
            if !Stored::read(log.get(at..)?)?.has_its_crc() {
                return i64::try_from(number).ok();
            }
        }
        Some(-1)
    })?;
    count(Way::Check, positions.len());
    Some(first)
}
