//! Gets and queries of one open store in the writer's process, without a step in Python: `KernelReads`.
//!
//! The Python path finds out where a queue begins and ends, and which files the index has. The kernel keeps that, with
//! the numbers that it follows from: the view's progress and generation, the log's begin, the topic's last deletion.
//! While they stay the same, so does what follows from them. `reput/store/reader/kernel_reads.py` is the other side.

use std::collections::HashMap;
use std::fs::metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyString, PyType};

use crate::counters::{Way, count as tally};
use crate::query::{IndexFile, Query};
use crate::reads::{
    Bounds, OpenSegment, ReadRecord, Selection, UNIT_SIZE, Units, Wanted, open_segment, read_units,
    with_scratch,
};
use crate::record_maker::RecordMaker;
use crate::slots::{PlainClass, Slot};
use crate::store_files::{MappedFiles, StoreFiles};
use crate::view_words::{Reached, ViewWords};

/// A get examines so many units, or as many as it wants, if that is more.
const UNIT_COUNT_MAX: i64 = 800;
/// Segments, and files of a queue, whose paths are kept. It bounds the search, not what can be read.
const SEGMENTS_MAX: usize = 64;
const FILES_MAX: usize = 64;

/// One queue, as long as its numbers are these.
struct Queue {
    reached: Reached,
    log_begin: i64,
    deleted_at: i64,
    low: i64,
    high: i64,
    file_size: i64,
    /// Of its files, up to the name.
    prefix: String,
    topic_field: Vec<u8>,
    /// Paths of its files by their first byte's offset. A mapping is found by the path's object, so each file has one.
    files: Vec<(i64, Py<PyString>)>,
}

impl Queue {
    /// Return the path of the file that begins at this offset.
    fn path<'py>(&mut self, py: Python<'py>, begin: i64) -> Bound<'py, PyString> {
        if let Some(number) = self.files.iter().position(|file| file.0 == begin) {
            return self.files[number].1.bind(py).clone();
        }
        let path = PyString::new(py, &format!("{}{begin:020}", self.prefix));
        if self.files.len() == FILES_MAX {
            self.files.remove(0);
        }
        self.files.push((begin, path.clone().unbind()));
        path
    }
}

/// The index, as long as its numbers are these.
struct Index {
    generation: i64,
    log_begin: i64,
    directory: PathBuf,
    /// When its directory was changed last (ns since 1970), and the directory's number.
    stamp: (i64, i64),
    /// Newest first.
    files: Vec<IndexFile>,
}

/// What was found out.
#[derive(Default)]
struct Known {
    epoch: u64,
    queue_view: Option<Py<ViewWords>>,
    queues: HashMap<String, HashMap<i32, Queue>>,
    index_view: Option<Py<ViewWords>>,
    index: Option<Index>,
    /// First offset, the offset behind the last, and path.
    segments: Vec<(i64, i64, Py<PyString>)>,
}

/// The compiled reads of one reader. Any thread may call `get` and `query`; the rest belongs to the reader's thread.
#[pyclass(frozen, module = "reput_kernel")]
pub struct KernelReads {
    descriptors: Py<PyDict>,
    mapped: MappedFiles,
    writer: Py<PyAny>,
    segment_at: Py<PyAny>,
    result_type: Py<PyAny>,
    found_status: Py<PyAny>,
    records_class: PlainClass,
    records_found: Slot,
    maker: Py<RecordMaker>,
    own_from: i64,
    count_max: usize,
    known: Mutex<Known>,
    /// Grows with each `forget`, which must not wait for a read of another thread.
    epoch: AtomicU64,
}

/// Return a whole number of exactly that type.
fn whole(number: &Bound<'_, PyAny>) -> Option<i64> {
    number.cast_exact::<PyInt>().ok()?.extract().ok()
}

impl KernelReads {
    /// Return the first commit-log offset that the log still has.
    fn log_begin(&self, py: Python<'_>) -> PyResult<i64> {
        self.writer.bind(py).getattr(intern!(py, "commit_log_offset_min"))?.extract()
    }

    /// Return where a topic was deleted last; -1: never.
    fn deleted_at(&self, topic: &Bound<'_, PyString>) -> PyResult<i64> {
        let py = topic.py();
        let appender = self.writer.bind(py).getattr(intern!(py, "appender"))?;
        let deletions = appender.getattr(intern!(py, "deleted_at"))?;
        match deletions.cast::<PyDict>()?.get_item(topic)? {
            None => Ok(-1),
            Some(offset) => offset.extract(),
        }
    }

    /// Return the store's open files.
    fn files<'a, 'py>(&'a self, py: Python<'py>) -> StoreFiles<'a, 'py> {
        StoreFiles { descriptors: self.descriptors.bind(py), mapped: Some(&self.mapped) }
    }

    /// Return the segment with the byte at a commit-log offset, and keep it.
    fn segment<'py>(
        &self,
        py: Python<'py>,
        segments: &mut Vec<(i64, i64, Py<PyString>)>,
        offset: i64,
    ) -> PyResult<Option<OpenSegment<'py>>> {
        if let Some((begin, _, path)) = segments.iter().find(|(begin, end, _)| (*begin..*end).contains(&offset)) {
            return Ok(Some((path.bind(py).clone(), *begin)));
        }
        let segment = self.segment_at.bind(py).call1((offset,))?;
        let Some((path, begin)) = open_segment(&segment)? else { return Ok(None) };
        let size: i64 = segment.getattr(intern!(py, "size"))?.extract()?;
        if segments.len() == SEGMENTS_MAX {
            segments.remove(0);
        }
        segments.push((begin, begin.saturating_add(size), path.clone().unbind()));
        Ok(Some((path, begin)))
    }
}

#[pymethods]
impl KernelReads {
    /// Read for a store.
    ///
    /// *descriptors* are those of open files, by path. *writer* says where the log begins and which topics were deleted.
    /// *segment_at* returns the segment with the byte at a commit-log offset, None if there is none. The types are
    /// `GetMessageResult`, with the status of a result with messages, and `KernelRecords`. Records before *own_from* are compared with their CRC, and a query returns at most
    /// *count_max* messages. A file is mapped after *map_after* reads.
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        descriptors: Py<PyDict>,
        writer: Py<PyAny>,
        segment_at: Py<PyAny>,
        result_type: Py<PyAny>,
        found_status: Py<PyAny>,
        records_type: &Bound<'_, PyType>,
        maker: Py<RecordMaker>,
        own_from: i64,
        count_max: usize,
        map_after: u32,
    ) -> PyResult<KernelReads> {
        Ok(KernelReads {
            descriptors,
            mapped: MappedFiles::new(map_after),
            writer,
            segment_at,
            result_type,
            found_status,
            records_class: PlainClass::of(records_type)?,
            records_found: Slot::of(records_type, c"_found")?,
            maker,
            own_from,
            count_max,
            known: Mutex::default(),
            epoch: AtomicU64::new(0),
        })
    }

    /// *segment_at*, *writer* and the views belong to objects that hold this one.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.segment_at)?;
        visit.call(&self.writer)?;
        // Locked: a read goes on, so this object is in use, and so is what it holds.
        if let Ok(known) = self.known.try_lock() {
            visit.call(&known.queue_view)?;
            visit.call(&known.index_view)?;
        }
        Ok(())
    }

    /// Forget what was found out.
    fn forget(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Give up what is kept of a file that is closed.
    fn close_file(&self, py: Python<'_>, path: &str) {
        self.mapped.close(py, path);
    }

    /// Keep where a queue begins and ends at these numbers of its view, this begin of the log and the topic's last
    /// deletion. Its files have *file_size* bytes, and their paths begin with *prefix*.
    #[allow(clippy::too_many_arguments)]
    fn keep_queue(
        &self,
        view: Py<ViewWords>,
        topic: String,
        queue_id: i32,
        progress: i64,
        generation: i64,
        log_begin: i64,
        deleted_at: i64,
        bounds: (i64, i64),
        file_size: i64,
        prefix: String,
        topic_field: Vec<u8>,
    ) {
        let Ok(mut known) = self.known.try_lock() else { return };
        known.renew(self.epoch.load(Ordering::Relaxed));
        known.queue_view = Some(view);
        let reached = Reached { progress, generation };
        let queue = Queue {
            reached,
            log_begin,
            deleted_at,
            low: bounds.0,
            high: bounds.1,
            file_size,
            prefix,
            topic_field,
            files: Vec::new(),
        };
        known.queues.entry(topic).or_default().insert(queue_id, queue);
    }

    /// Keep the files of the index, newest first, each with its number of slots and that of its last entry, at these
    /// numbers of view, log and directory.
    fn keep_index(
        &self,
        view: Py<ViewWords>,
        generation: i64,
        log_begin: i64,
        directory: PathBuf,
        stamp: (i64, i64),
        files: Vec<(Py<PyString>, i32, i32)>,
    ) {
        let Ok(mut known) = self.known.try_lock() else { return };
        known.renew(self.epoch.load(Ordering::Relaxed));
        known.index_view = Some(view);
        let files = files
            .into_iter()
            .map(|(path, slot_count, entry_count)| IndexFile { path, slot_count, entry_count })
            .collect();
        known.index = Some(Index { generation, log_begin, directory, stamp, files });
    }

    /// Return the result of a get of a queue that was kept; None: it takes the Python path.
    fn get<'py>(
        &self,
        topic: &Bound<'py, PyAny>,
        queue_id: &Bound<'py, PyAny>,
        queue_offset: &Bound<'py, PyAny>,
        count_max: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = topic.py();
        let Ok(topic) = topic.cast_exact::<PyString>() else { return Ok(None) };
        let (Some(queue_id), Some(queue_offset), Some(count_max)) =
            (whole(queue_id).and_then(|id| i32::try_from(id).ok()), whole(queue_offset), whole(count_max))
        else {
            return Ok(None);
        };
        let Ok(mut known) = self.known.try_lock() else { return Ok(None) };
        if known.epoch != self.epoch.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Known { queue_view: Some(view), queues, segments, .. } = &mut *known else { return Ok(None) };
        let Ok(name) = topic.to_str() else { return Ok(None) };
        let Some(queue) = queues.get_mut(name).and_then(|queues| queues.get_mut(&queue_id)) else { return Ok(None) };
        if view.get().reached(py)? != Some(queue.reached)
            || self.log_begin(py)? != queue.log_begin
            || self.deleted_at(topic)? != queue.deleted_at
            || !(queue.low..queue.high).contains(&queue_offset)
        {
            return Ok(None);
        }
        let in_reach = queue.high.min(queue_offset.saturating_add(count_max.max(UNIT_COUNT_MAX))) - queue_offset;
        let count = in_reach.min(count_max);
        let Some(at) = queue_offset.checked_mul(UNIT_SIZE as i64).filter(|_| queue.file_size > 0) else {
            return Ok(None);
        };
        let in_file = at % queue.file_size;
        // The units may be in two files.
        if count <= 0 || count > (queue.file_size - in_file) / UNIT_SIZE as i64 {
            return Ok(None);
        }
        let path = queue.path(py, at - in_file);
        let units = Units { path: &path, at: in_file, count: count as usize, queue_offset };
        let bounds = Bounds { log_min: queue.log_begin.max(queue.deleted_at), own_from: self.own_from };
        let wanted = Wanted { queue_id, topic_field: &queue.topic_field };
        let files = self.files(py);
        let all = Selection { codes: None, count_max: units.count, bytes_max: usize::MAX };
        let Some(found) = with_scratch(|scratch| {
            read_units(scratch, files, &units, &all, bounds, &wanted, |offset| self.segment(py, segments, offset))
        })?
        else {
            return Ok(None);
        };
        let (low, high) = (queue.low, queue.high);
        drop(known);
        tally(Way::Get, found.records.len());
        let records = self.records_class.new_object(py)?;
        self.records_found.set(&records, Bound::new(py, found)?.into_any())?;
        let result = (self.found_status.bind(py), queue_offset + count, low, high, records);
        self.result_type.bind(py).call1(result).map(Some)
    }

    /// Return the records that have a key, in commit-log order; None: the query takes the Python path.
    ///
    /// A key that may also be the id of a message, and is not found, takes the Python path.
    fn query<'py>(
        &self,
        topic: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
        count_max: &Bound<'py, PyAny>,
        begin: &Bound<'py, PyAny>,
        end: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let py = topic.py();
        let (Ok(topic), Ok(key)) = (topic.cast_exact::<PyString>(), key.cast_exact::<PyString>()) else {
            return Ok(None);
        };
        let (Ok(topic), Ok(key)) = (topic.to_str(), key.to_str()) else { return Ok(None) };
        let (Some(count_max), Some(begin), Some(end)) = (whole(count_max), whole(begin), whole(end)) else {
            return Ok(None);
        };
        let Ok(count_max) = usize::try_from(count_max) else { return Ok(None) };
        let count_max = count_max.min(self.count_max);
        if count_max == 0 || key.is_empty() {
            return Ok(None);
        }
        let Ok(mut known) = self.known.try_lock() else { return Ok(None) };
        if known.epoch != self.epoch.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let Known { index_view: Some(view), index: Some(index), segments, .. } = &mut *known else { return Ok(None) };
        let log_begin = self.log_begin(py)?;
        let Some(reached) = view.get().reached(py)? else { return Ok(None) };
        if reached.generation != index.generation || log_begin != index.log_begin {
            return Ok(None);
        }
        let query = Query {
            topic,
            key,
            count_max,
            times: begin..=end,
            progress: reached.progress,
            bounds: Bounds { log_min: log_begin, own_from: self.own_from },
            files: self.files(py),
        };
        let Some(found) = with_scratch(|scratch| {
            query.find(scratch, &index.files, || index.is_unchanged(), |offset| self.segment(py, segments, offset))
        })?
        else {
            return Ok(None);
        };
        drop(known);
        if found.is_empty() && is_message_id(key) {
            return Ok(None);
        }
        tally(Way::Query, 1);
        let maker = self.maker.get();
        let records: Vec<_> =
            found.iter().map(|found: &ReadRecord| maker.record_of(py, found)).collect::<PyResult<_>>()?;
        PyList::new(py, records).map(Some)
    }
}

impl Known {
    /// Drop what was found out before *epoch*.
    fn renew(&mut self, epoch: u64) {
        if self.epoch != epoch {
            *self = Known { epoch, ..Known::default() };
        }
    }
}

impl Index {
    /// Tell whether the directory still is what was listed.
    fn is_unchanged(&self) -> bool {
        metadata(&self.directory).is_ok_and(|found| {
            let changed_ns = found.mtime().wrapping_mul(1_000_000_000).wrapping_add(found.mtime_nsec());
            self.stamp == (changed_ns, found.ino().cast_signed())
        })
    }
}

/// Tell whether a key has the form of a message id: address and place in hex.
fn is_message_id(key: &str) -> bool {
    matches!(key.len(), 32 | 56) && key.bytes().all(|byte| byte.is_ascii_hexdigit())
}
