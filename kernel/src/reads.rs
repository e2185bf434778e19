//! Reads of a consume queue: the records that its units lead to, and the objects of records.
//!
//! `reput/store/record/layout.py` draws a record, `reput/store/queue/consume_queue.py` a unit.

use std::cell::RefCell;
use std::os::fd::RawFd;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyType};

use crate::cached_file::read_cached;
use crate::counters::{Way, count as tally};
use crate::stored::field;

const UNIT_SIZE: usize = 20;
/// Bytes before the body, if both hosts are IPv4.
const HEAD_SIZE: usize = 88;
const PROPERTIES_SIZE: usize = 2;
const MAGIC_CODE: u32 = 0xDAA3_20A7;
/// Flags of hosts that are IPv6.
const IPV6_HOSTS: i32 = 0x10 | 0x20;

/// One unit, and its queue offset.
#[derive(Clone, Copy)]
struct Place {
    queue_offset: i64,
    commit_log_offset: i64,
    record_size: i32,
}

/// What a record of a queue has to say of itself, besides its place.
struct Wanted<'a> {
    queue_id: i32,
    /// Size and topic, as a V1 record has them.
    topic_field: &'a [u8],
}

impl Place {
    fn read(unit: &[u8; UNIT_SIZE], queue_offset: i64) -> Option<Place> {
        Some(Place {
            queue_offset,
            commit_log_offset: i64::from_be_bytes(field(unit, 0)?),
            record_size: i32::from_be_bytes(field(unit, 8)?),
        })
    }

    /// Return where the record's body ends, if *data* is just the record of this unit; *with_crc*: and has its CRC.
    fn body_end(&self, data: &[u8], wanted: &Wanted<'_>, with_crc: bool) -> Option<usize> {
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
struct ReadRecord {
    place: Place,
    data: Py<PyBytes>,
    body_end: usize,
}

/// Records of a queue, each checked as a whole, with hosts of IPv4.
#[pyclass(frozen, module = "reput_kernel")]
pub struct ReadRecords {
    records: Vec<ReadRecord>,
}

thread_local! {
    /// For the bytes of neighbours, before each record gets its own.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Bytes of neighbours that are read at once; a larger record goes the Python way.
const RUN_SIZE_MAX: usize = 1 << 20;

/// Return the descriptor of an open file.
fn descriptor_of(descriptors: &Bound<'_, PyDict>, path: &Bound<'_, PyAny>) -> PyResult<Option<RawFd>> {
    descriptors.get_item(path)?.map(|descriptor| descriptor.extract()).transpose()
}

/// Read the units and records; *scratch* is for the bytes of neighbours. The arguments are those of `read_queue`.
fn read_with<'py>(
    scratch: &mut Vec<u8>,
    descriptors: &Bound<'py, PyDict>,
    (path, at, count): (&Bound<'py, PyString>, i64, usize),
    queue_offset: i64,
    (log_min, own_from): (i64, i64),
    wanted: &Wanted<'_>,
    segment_at: &Bound<'py, PyAny>,
) -> PyResult<Option<Vec<ReadRecord>>> {
    let py = path.py();
    let Some(size) = count.checked_mul(UNIT_SIZE).filter(|size| *size <= RUN_SIZE_MAX) else { return Ok(None) };
    grow(scratch, size);
    // From here to the read no other thread runs, so nobody closes the file.
    let Some(descriptor) = descriptor_of(descriptors, path)? else { return Ok(None) };
    if !read_cached(descriptor, &mut scratch[..size], at) {
        return Ok(None);
    }
    let mut places = Vec::with_capacity(count);
    for (unit, queue_offset) in scratch[..size].as_chunks::<UNIT_SIZE>().0.iter().zip(queue_offset..) {
        match Place::read(unit, queue_offset) {
            Some(place) if place.commit_log_offset >= log_min.max(0) && place.record_size > 0 => places.push(place),
            _ => return Ok(None),
        }
    }
    let mut records = Vec::with_capacity(count);
    let mut left = &places[..];
    while let Some(first) = left.first() {
        let (in_run, size) = run_of(left);
        // It alone is larger than a run: its size is compared with the record's before so many bytes are read.
        if in_run == 0 {
            return Ok(None);
        }
        let begin = first.commit_log_offset;
        let segment = segment_at.call1((begin,))?;
        if segment.is_none() {
            return Ok(None);
        }
        let log_path = segment.getattr(intern!(py, "path"))?.str()?;
        let segment_begin: i64 = segment.getattr(intern!(py, "begin"))?.extract()?;
        grow(scratch, size);
        // As above.
        let Some(descriptor) = descriptor_of(descriptors, &log_path)? else { return Ok(None) };
        let data = &mut scratch[..size];
        if !read_cached(descriptor, data, begin - segment_begin) {
            return Ok(None);
        }
        let mut data = &data[..];
        let run;
        (run, left) = left.split_at(in_run);
        for place in run {
            let own;
            (own, data) = data.split_at(place.record_size as usize);
            let Some(body_end) = place.body_end(own, wanted, begin < own_from) else { return Ok(None) };
            records.push(ReadRecord { place: *place, data: PyBytes::new(py, own).unbind(), body_end });
        }
    }
    Ok(Some(records))
}

/// Have *scratch* at least as large as *size*.
fn grow(scratch: &mut Vec<u8>, size: usize) {
    if scratch.len() < size {
        scratch.resize(size, 0);
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

/// Return the records of *count* units, of which the first has *queue_offset*, each checked as a whole.
///
/// The units are in the file *path* from *at* on. *descriptors* are those of open files, by path. *segment_at* returns
/// the segment with the byte at a commit-log offset, None if there is none. Records before *own_from* are compared with
/// their CRC. *topic_field*: size and topic, as a record of V1 has them.
///
/// None: one of them is of another kind, lies before *log_min*, is damaged, or is not in the page cache, and all go the
/// Python way.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub fn read_queue<'py>(
    descriptors: &Bound<'py, PyDict>,
    path: &Bound<'py, PyString>,
    at: i64,
    count: usize,
    queue_offset: i64,
    log_min: i64,
    own_from: i64,
    queue_id: i32,
    topic_field: &[u8],
    segment_at: &Bound<'py, PyAny>,
) -> PyResult<Option<ReadRecords>> {
    let wanted = Wanted { queue_id, topic_field };
    // Taken, not borrowed: Python code runs meanwhile, and may come here again.
    let mut scratch = SCRATCH.take();
    let bounds = (log_min, own_from);
    let found =
        read_with(&mut scratch, descriptors, (path, at, count), queue_offset, bounds, &wanted, segment_at);
    SCRATCH.set(scratch);
    let Some(records) = found? else { return Ok(None) };
    tally(Way::Read, records.len());
    Ok(Some(ReadRecords { records }))
}

#[pymethods]
impl ReadRecords {
    /// The bytes of each record.
    fn data<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.records.iter().map(|record| &record.data))
    }

    /// The queue offset of each record.
    fn queue_offsets(&self) -> Vec<i64> {
        self.records.iter().map(|record| record.place.queue_offset).collect()
    }

    /// Return the objects of the records, as `checked_record` of `reput/store/record/record.py` makes each.
    ///
    /// *undecoded* is the type that they are before they are of the type *record*; *decode* decodes the other fields. A
    /// body that ends at or before *early_body_end_max* is copied at once.
    fn decoded<'py>(
        &self,
        undecoded: &Bound<'py, PyType>,
        record: &Bound<'py, PyType>,
        decode: &Bound<'py, PyAny>,
        early_body_end_max: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = decode.py();
        let objects = PyList::empty(py);
        for found in &self.records {
            let made = undecoded.call0()?;
            made.setattr(intern!(py, "queue_offset"), found.place.queue_offset)?;
            made.setattr(intern!(py, "commit_log_offset"), found.place.commit_log_offset)?;
            made.setattr(intern!(py, "record_size"), found.place.record_size)?;
            made.setattr(intern!(py, "_data"), &found.data)?;
            made.setattr(intern!(py, "_decode"), decode)?;
            if found.body_end <= early_body_end_max {
                let body = PyBytes::new(py, &found.data.bind(py).as_bytes()[HEAD_SIZE..found.body_end]);
                made.setattr(intern!(py, "body"), body)?;
            }
            made.setattr(intern!(py, "__class__"), record)?;
            objects.append(made)?;
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
