//! Reads of a consume queue: the records that its units lead to, and the objects of records.
//!
//! `reput/store/record/layout.py` draws a record, `reput/store/queue/consume_queue.py` a unit.

use std::cell::RefCell;
use std::collections::HashSet;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::counters::{Way, count as tally};
use crate::fetched::FetchedRecords;
use crate::record_maker::RecordMaker;
use crate::room::{bytes, vec_of};
use crate::store_files::{StoreFiles, grow};
use crate::stored::field;

/// Bytes of a unit.
pub const UNIT_SIZE: usize = 20;
/// Bytes before the body, if both hosts are IPv4.
pub const HEAD_SIZE: usize = 88;
const PROPERTIES_SIZE: usize = 2;
const MAGIC_CODE: u32 = 0xDAA3_20A7;
/// Flags of hosts that are IPv6.
pub const IPV6_HOSTS: i32 = 0x10 | 0x20;

/// One unit, and its queue offset.
#[derive(Clone, Copy)]
pub struct Place {
    pub queue_offset: i64,
    pub commit_log_offset: i64,
    pub record_size: i32,
}

/// What a record of a queue has to say of itself, besides its place.
pub struct Wanted<'a> {
    pub queue_id: i32,
    /// Size and topic, as a V1 record has them.
    pub topic_field: &'a [u8],
}

/// Which units of one file are read.
pub struct Units<'a, 'py> {
    pub path: &'a Bound<'py, PyString>,
    /// Where in the file they begin.
    pub at: i64,
    pub count: usize,
    /// Of the first one.
    pub queue_offset: i64,
}

/// Which of the units are wanted, and how many.
pub struct Selection {
    /// Tags codes; None: all.
    pub codes: Option<HashSet<i64>>,
    /// Records, at least one.
    pub count_max: usize,
    /// Bytes of records; the first one always fits.
    pub bytes_max: usize,
}

/// Of the records that are read.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// Those before are gone.
    pub log_min: i64,
    /// Those before are compared with their CRC.
    pub own_from: i64,
}

impl Place {
    fn read(unit: &[u8; UNIT_SIZE], queue_offset: i64) -> Option<Place> {
        Some(Place {
            queue_offset,
            commit_log_offset: i64::from_be_bytes(field(unit, 0)?),
            record_size: i32::from_be_bytes(field(unit, 8)?),
        })
    }

    /// Whether it was never written, or is a pre-blank.
    fn is_without_message(&self) -> bool {
        self.commit_log_offset == 0 && matches!(self.record_size, 0 | i32::MAX)
    }

    /// Return where the record's body ends, if *data* is just the record of this unit; *with_crc*: and has its CRC.
    pub fn body_end(&self, data: &[u8], wanted: &Wanted<'_>, with_crc: bool) -> Option<usize> {
        let body_size = usize::try_from(i32::from_be_bytes(field(data, HEAD_SIZE - 4)?)).ok()?;
        let is_its_record = i32::from_be_bytes(field(data, 0)?) == self.record_size
            && u32::from_be_bytes(field(data, 4)?) == MAGIC_CODE
            && i32::from_be_bytes(field(data, 12)?) == wanted.queue_id
            && i64::from_be_bytes(field(data, 20)?) == self.queue_offset
            && i64::from_be_bytes(field(data, 28)?) == self.commit_log_offset
            && i32::from_be_bytes(field(data, 36)?) & IPV6_HOSTS == 0;
        if !is_its_record {
            return None;
        }
        let (body, behind) = data[HEAD_SIZE..].split_at_checked(body_size)?;
        let properties = behind.strip_prefix(wanted.topic_field)?;
        let properties_size = usize::try_from(i16::from_be_bytes(field(properties, 0)?)).ok()?;
        if properties.len() != PROPERTIES_SIZE + properties_size {
            return None;
        }
        if with_crc && !body.is_empty() && crc32fast::hash(body) & 0x7FFF_FFFF != u32::from_be_bytes(field(data, 8)?) {
            return None;
        }
        Some(HEAD_SIZE + body_size)
    }
}

/// One record that was read.
pub struct ReadRecord {
    pub place: Place,
    /// The bytes of the record and of those that were read with it.
    pub run: Py<PyBytes>,
    /// Where in them it begins.
    pub at: usize,
    /// Where in the record its body ends, which begins behind hosts of IPv4.
    pub body_end: usize,
}

impl ReadRecord {
    /// Return its bytes as an object, without a copy if they were read alone.
    pub fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let own = self.bytes(py);
        let run = self.run.bind(py);
        if own.len() == run.as_bytes().len() { Ok(run.clone()) } else { bytes(py, own) }
    }

    /// Return its bytes.
    pub fn bytes<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        &self.run.bind(py).as_bytes()[self.at..self.at + self.place.record_size as usize]
    }
}

/// Records of a queue, each checked as a whole, with hosts of IPv4.
#[pyclass(frozen, module = "reput_kernel")]
pub struct ReadRecords {
    pub records: Vec<ReadRecord>,
    /// Queue offset behind the last unit that was looked at.
    pub end: i64,
}

thread_local! {
    /// For what is read and not kept.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Return what *read* does with memory of this thread.
///
/// The memory is taken, not borrowed: Python code may run meanwhile, and may come here again.
pub fn with_scratch<R>(read: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    let mut scratch = SCRATCH.take();
    let result = read(&mut scratch);
    SCRATCH.set(scratch);
    result
}

/// Bytes of neighbours that are read at once; a larger record takes the Python path.
pub const RUN_SIZE_MAX: usize = 1 << 20;

/// A segment: its path, and the commit-log offset of its first byte.
pub type OpenSegment<'py> = (Bound<'py, PyString>, i64);

/// Return path and first offset of a segment, as `segment_at` of `read_queue` returns it.
pub fn open_segment<'py>(segment: &Bound<'py, PyAny>) -> PyResult<Option<OpenSegment<'py>>> {
    if segment.is_none() {
        return Ok(None);
    }
    let py = segment.py();
    let path = segment.getattr(intern!(py, "path"))?.str()?;
    Ok(Some((path, segment.getattr(intern!(py, "begin"))?.extract()?)))
}

/// Read units and the records of those that are selected; *scratch* is for the units.
///
/// None, and *segment_at*: as of `read_queue`.
pub fn read_units<'py>(
    scratch: &mut Vec<u8>,
    files: StoreFiles<'_, 'py>,
    units: &Units<'_, 'py>,
    selection: &Selection,
    bounds: Bounds,
    wanted: &Wanted<'_>,
    mut segment_at: impl FnMut(i64) -> PyResult<Option<OpenSegment<'py>>>,
) -> PyResult<Option<ReadRecords>> {
    let count = units.count;
    let Some(size) = count.checked_mul(UNIT_SIZE).filter(|size| *size <= RUN_SIZE_MAX) else { return Ok(None) };
    if !grow(scratch, size) {
        return Ok(None);
    }
    // Zeros for a unit that was cut short are no unit, or lack its tags alone, which the record has, too.
    if !files.read(units.path, &mut scratch[..size], units.at)? {
        return Ok(None);
    }
    let Some((places, end)) = selection.places(&scratch[..size], units.queue_offset, bounds.log_min) else {
        return Ok(None);
    };
    let Ok(mut records) = vec_of(places.len()) else { return Ok(None) };
    let mut left = &places[..];
    while let Some(first) = left.first() {
        let (in_run, size) = run_of(left);
        // It alone is larger than a run: its size is compared with the record's before so many bytes are read.
        if in_run == 0 {
            return Ok(None);
        }
        let begin = first.commit_log_offset;
        let Some((log_path, segment_begin)) = segment_at(begin)? else { return Ok(None) };
        let Some(bytes_of_run) = files.records(&log_path, begin - segment_begin, size)? else { return Ok(None) };
        let data = bytes_of_run.as_bytes();
        let run;
        (run, left) = left.split_at(in_run);
        let mut at = 0;
        for place in run {
            let own = &data[at..at + place.record_size as usize];
            let Some(body_end) = place.body_end(own, wanted, begin < bounds.own_from) else { return Ok(None) };
            records.push(ReadRecord { place: *place, run: bytes_of_run.clone().unbind(), at, body_end });
            at += own.len();
        }
    }
    Ok(Some(ReadRecords { records, end }))
}

impl Selection {
    /// Return the places of the selected units, and the queue offset behind the last unit that was looked at.
    ///
    /// None: none of them is selected, or one is not plain: it has no message, its record lies before *log_min*, or
    /// its tags code is a time or the address of an ext unit. Or there is no memory.
    fn places(&self, units: &[u8], queue_offset: i64, log_min: i64) -> Option<(Vec<Place>, i64)> {
        let mut places: Vec<Place> = vec_of(self.count_max.min(units.len() / UNIT_SIZE)).ok()?;
        let mut size = 0;
        let mut end = queue_offset;
        for (unit, queue_offset) in units.as_chunks::<UNIT_SIZE>().0.iter().zip(queue_offset..) {
            let place = Place::read(unit, queue_offset)?;
            let record_size = usize::try_from(place.record_size).ok()?;
            if places.len() >= self.count_max || !places.is_empty() && size + record_size > self.bytes_max {
                break;
            }
            end = queue_offset + 1;
            if let Some(codes) = &self.codes {
                let code = i64::from_be_bytes(field(unit, 12)?);
                if i32::try_from(code).is_err() || place.is_without_message() {
                    return None;
                }
                if !codes.contains(&code) {
                    continue;
                }
            }
            if place.commit_log_offset < log_min.max(0) || record_size == 0 {
                return None;
            }
            size += record_size;
            places.push(place);
        }
        (!places.is_empty()).then_some((places, end))
    }
}

/// Return how many of *places* lie one behind the other, and their bytes, at most those of a run.
fn run_of(places: &[Place]) -> (usize, usize) {
    let (mut count, mut size) = (0, 0);
    let mut end = places[0].commit_log_offset;
    for place in places {
        let own = place.record_size as usize;
        let Some(behind) = place.commit_log_offset.checked_add(i64::from(place.record_size)) else { break };
        if place.commit_log_offset != end || size + own > RUN_SIZE_MAX {
            break;
        }
        (count, size, end) = (count + 1, size + own, behind);
    }
    (count, size)
}

/// Return the records of the first *count_max* units whose tags code is one of *codes*, None: any; all of one queue.
///
/// *count* units are looked at, of which the first has *queue_offset*; they are in the file *path* from *at* on. The
/// records have *bytes_max* bytes at most, or are one. *descriptors* are those of open files, by path. *segment_at*
/// returns the segment with the byte at a commit-log offset, None if there is none. Records before *own_from* are
/// compared with their CRC. *topic_field*: size and topic, as a record of V1 has them.
///
/// None: no unit is selected, or one of them is of another kind, lies before *log_min*, is damaged, or is not in the
/// page cache, and all take the Python path.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn read_queue<'py>(
    descriptors: &Bound<'py, PyDict>,
    path: &Bound<'py, PyString>,
    at: i64,
    count: usize,
    queue_offset: i64,
    codes: Option<HashSet<i64>>,
    count_max: usize,
    bytes_max: usize,
    log_min: i64,
    own_from: i64,
    queue_id: i32,
    topic_field: &[u8],
    segment_at: &Bound<'py, PyAny>,
) -> PyResult<Option<ReadRecords>> {
    let wanted = Wanted { queue_id, topic_field };
    let units = Units { path, at, count, queue_offset };
    let selection = Selection { codes, count_max, bytes_max };
    let bounds = Bounds { log_min, own_from };
    let found = with_scratch(|scratch| {
        let files = StoreFiles { descriptors, mapped: None };
        read_units(scratch, files, &units, &selection, bounds, &wanted, |offset| {
            open_segment(&segment_at.call1((offset,))?)
        })
    })?;
    if let Some(found) = &found {
        tally(Way::Read, found.records.len());
    }
    Ok(found)
}

#[pymethods]
impl ReadRecords {
    fn __len__(&self) -> usize {
        self.records.len()
    }

    /// The bytes of each record.
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let data = PyList::empty(py);
        for record in &self.records {
            data.append(record.data(py)?)?;
        }
        Ok(data)
    }

    /// The queue offset behind the last unit that was looked at.
    #[getter]
    fn end(&self) -> i64 {
        self.end
    }

    /// Return an iterator over (queue offset, record), which makes each record when it is taken, as `decoded` does.
    fn fetched(this: Bound<'_, ReadRecords>, maker: Py<RecordMaker>) -> FetchedRecords {
        FetchedRecords::new(this.unbind(), maker)
    }

    /// Return the objects of the records.
    fn decoded<'py>(&self, py: Python<'py>, maker: &RecordMaker) -> PyResult<Bound<'py, PyList>> {
        let objects = PyList::empty(py);
        for found in &self.records {
            objects.append(maker.record_of(py, found)?)?;
        }
        Ok(objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(body: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut data = vec![0; HEAD_SIZE];
        data[4..8].copy_from_slice(&MAGIC_CODE.to_be_bytes());
        data[8..12].copy_from_slice(&(crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes());
        data[84..88].copy_from_slice(&(body.len() as i32).to_be_bytes());
        data.extend_from_slice(body);
        data.extend_from_slice(b"\x01t");
        data.extend_from_slice(&(properties.len() as i16).to_be_bytes());
        data.extend_from_slice(properties);
        let size = (data.len() as i32).to_be_bytes();
        data[..4].copy_from_slice(&size);
        data
    }

    #[test]
    fn no_byte_may_differ_and_none_may_be_missing() {
        let wanted = Wanted { queue_id: 0, topic_field: b"\x01t" };
        let data = record(b"body", b"k\x01v\x02");
        let place =
            Place { queue_offset: 0, commit_log_offset: 0, record_size: data.len() as i32 };
        assert_eq!(place.body_end(&data, &wanted, true), Some(HEAD_SIZE + 4));
        for size in 0..data.len() {
            assert_eq!(place.body_end(&data[..size], &wanted, true), None);
        }
        for at in (0..16).chain(20..40).chain(84..96) {
            for bit in 0..8 {
                let mut damaged = data.clone();
                damaged[at] ^= 1 << bit;
                let is_other_flag = (36..40).contains(&at) && !(at == 39 && (bit == 4 || bit == 5));
                assert_eq!(place.body_end(&damaged, &wanted, true).is_some(), is_other_flag, "{at} {bit}");
            }
        }
    }
}
