//! HeldRecords: single puts that are published together, for `reput/process/frames/holding_publisher.py`.
//!
//! Between two publications a put changes nothing but this object: no Python code runs for it.

use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::memory::SharedWords;
use crate::record::ROW_SIZE;
use crate::ring_words::RingWords;
use crate::room::{bytes, no_memory};
use crate::word_order::barrier;

/// Where the index of its queue lies in a row.
const QUEUE_INDEX: std::ops::Range<usize> = 44..48;

/// One record, to be held.
pub struct Held<'a> {
    /// Where the log ended before.
    pub begin: i64,
    /// Where it ends now.
    pub end: i64,
    /// When it was stored.
    pub store_timestamp: i64,
    /// Records in the log up to `end`.
    pub ordinal: i64,
    /// Its row, with the queue index 0.
    pub row: &'a [u8],
    /// The row's texts.
    pub texts: &'a [u8],
}

/// Records of one segment, to be published as one frame.
#[derive(Default)]
struct Piece {
    begin: i64,
    end: i64,
    store_timestamp: i64,
    ordinal: i64,
    /// Lists of one queue each.
    queues: Vec<Py<PyList>>,
    rows: Vec<u8>,
    texts: Vec<u8>,
}

/// The ring's words that say whether held records are wanted.
struct Wanted {
    header: SharedWords,
    held_at: usize,
    parked: SharedWords,
    seen: SharedWords,
}

struct State {
    pieces: Vec<Piece>,
    /// For the next segment: empty, with room for a record.
    next: Piece,
    count: usize,
    end: i64,
    store_timestamp: i64,
    /// Store time of the first record.
    since: i64,
    is_open: bool,
    is_watched: bool,
    /// `None`: released.
    wanted: Option<Wanted>,
}

/// Records that are held, in the order of the log, and when the next one may be.
#[pyclass(frozen, module = "reput_kernel")]
pub struct HeldRecords {
    records_type: Py<PyAny>,
    segment_size: i64,
    count_max: usize,
    look_every: usize,
    hold_on_min: usize,
    hold_on_ms: i64,
    /// Never locked while Python code may run.
    state: Mutex<State>,
}

impl HeldRecords {
    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        self.state.lock().map_err(|_| PyRuntimeError::new_err("the held records are broken"))
    }

    fn follows_soon(&self, state: &State, store_timestamp: i64) -> bool {
        state.store_timestamp == store_timestamp
            || state.count >= self.hold_on_min && store_timestamp - state.since < self.hold_on_ms
    }

    /// Make room for *held*, so that `hold` cannot fail; false: its publisher is to be called. Under the put lock.
    pub fn make_room(&self, held: &Held<'_>) -> PyResult<bool> {
        let mut state = self.state()?;
        let is_next = state.end == held.begin && self.follows_soon(&state, held.store_timestamp);
        if !is_next || !state.is_open || !state.is_watched || state.wanted.is_none() {
            return Ok(false);
        }
        state.make_room(held, self.segment_size)?;
        Ok(true)
    }

    /// Hold a record of one of *queues*, a list of one queue; return whether all are to be published now. Under the put
    /// lock.
    pub fn hold(&self, held: &Held<'_>, queues: &Bound<'_, PyList>) -> PyResult<bool> {
        let mut state = self.state()?;
        state.add(held, queues, self.segment_size);
        let is_wanted = match &state.wanted {
            None => true,
            Some(wanted) if state.count == 1 => {
                wanted.header.store(wanted.held_at, 1);
                // This writer sets the held flag and checks for parked readers; a reader sets its parked flag and checks
                // the held flag. At least one sees the other.
                barrier();
                wanted.has_parked()
            }
            Some(wanted) => {
                state.count.is_multiple_of(self.look_every) && (state.count >= self.count_max || wanted.has_parked())
            }
        };
        state.end = held.end;
        Ok(is_wanted)
    }
}

#[pymethods]
impl HeldRecords {
    /// Hold at most *count_max* records, and look for parked readers every *look_every*. From *hold_on_min* records on,
    /// those of the next milliseconds are held as well, until the first one is *hold_on_ms* old.
    ///
    /// *records_type* is `AppendedRecords`. The others are the words of the ring: *header*, of which *held_at* says that
    /// records are held, and *parked* of all readers, beside those that were *seen*.
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        records_type: Py<PyAny>,
        segment_size: i64,
        count_max: usize,
        look_every: usize,
        hold_on_min: usize,
        hold_on_ms: i64,
        header: &Bound<'_, PyAny>,
        held_at: usize,
        parked: &Bound<'_, PyAny>,
        seen: &Bound<'_, PyAny>,
    ) -> PyResult<HeldRecords> {
        let wanted = Wanted {
            header: SharedWords::of(&RingWords::view_of(header)?, true)?,
            held_at,
            parked: SharedWords::of(&RingWords::view_of(parked)?, false)?,
            seen: SharedWords::of(&RingWords::view_of(seen)?, false)?,
        };
        if held_at >= wanted.header.count() || wanted.parked.count() != wanted.seen.count() {
            return Err(PyValueError::new_err("the words are not those of one ring"));
        }
        if segment_size < 1 || look_every < 1 {
            return Err(PyValueError::new_err("the numbers must be positive"));
        }
        let state = State {
            pieces: Vec::new(),
            next: Piece::default(),
            count: 0,
            end: -1,
            store_timestamp: -1,
            since: -1,
            is_open: true,
            is_watched: false,
            wanted: Some(wanted),
        };
        let state = Mutex::new(state);
        Ok(HeldRecords { records_type, segment_size, count_max, look_every, hold_on_min, hold_on_ms, state })
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.state()?.count)
    }

    /// Where the last record ends that another one may be held behind; -1: none may.
    #[getter]
    fn end(&self) -> PyResult<i64> {
        Ok(self.state()?.end)
    }

    #[setter]
    fn set_end(&self, end: i64) -> PyResult<()> {
        self.state()?.end = end;
        Ok(())
    }

    /// When that record was stored.
    #[getter]
    fn store_timestamp(&self) -> PyResult<i64> {
        Ok(self.state()?.store_timestamp)
    }

    #[setter]
    fn set_store_timestamp(&self, store_timestamp: i64) -> PyResult<()> {
        self.state()?.store_timestamp = store_timestamp;
        Ok(())
    }

    /// Whether records are held at all.
    #[getter]
    fn is_open(&self) -> PyResult<bool> {
        Ok(self.state()?.is_open)
    }

    #[setter]
    fn set_is_open(&self, is_open: bool) -> PyResult<()> {
        self.state()?.is_open = is_open;
        Ok(())
    }

    /// Whether somebody looks after held records.
    #[getter]
    fn is_watched(&self) -> PyResult<bool> {
        Ok(self.state()?.is_watched)
    }

    #[setter]
    fn set_is_watched(&self, is_watched: bool) -> PyResult<()> {
        self.state()?.is_watched = is_watched;
        Ok(())
    }

    /// Tell whether a record that is stored at this time follows soon enough to be held.
    fn may_follow(&self, store_timestamp: i64) -> PyResult<bool> {
        Ok(self.follows_soon(&*self.state()?, store_timestamp))
    }

    /// Hold the record of *records*, an `AppendedRecords` with one row, and return how many are held.
    fn add(&self, records: &Bound<'_, PyAny>) -> PyResult<usize> {
        let py = records.py();
        let rows = records.getattr(intern!(py, "rows"))?.cast_into::<PyBytes>()?;
        let texts = records.getattr(intern!(py, "texts"))?.cast_into::<PyBytes>()?;
        let queues = records.getattr(intern!(py, "queues"))?.cast_into::<PyList>()?;
        if rows.as_bytes().len() != ROW_SIZE || queues.len() != 1 {
            return Err(PyValueError::new_err("only a single record is held"));
        }
        let held = Held {
            begin: records.getattr(intern!(py, "begin"))?.extract()?,
            end: records.getattr(intern!(py, "end"))?.extract()?,
            store_timestamp: records.getattr(intern!(py, "store_timestamp"))?.extract()?,
            ordinal: records.getattr(intern!(py, "ordinal"))?.extract()?,
            row: rows.as_bytes(),
            texts: texts.as_bytes(),
        };
        let mut state = self.state()?;
        state.make_room(&held, self.segment_size)?;
        state.add(&held, &queues, self.segment_size);
        Ok(state.count)
    }

    /// Return what is held as `AppendedRecords`, one for each segment. Under the put lock.
    fn pieces<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        // Taken out meanwhile: making an object may run Python code, of a garbage collection.
        let pieces = std::mem::take(&mut self.state()?.pieces);
        let told = pieces.iter().map(|piece| piece.told(self.records_type.bind(py))).collect();
        self.state()?.pieces = pieces;
        told
    }

    /// Hold nothing any more.
    fn clear(&self) -> PyResult<()> {
        let pieces = {
            let mut state = self.state()?;
            state.count = 0;
            std::mem::take(&mut state.pieces)
        };
        drop(pieces);
        Ok(())
    }

    /// Let go of the ring's words. From then on each record is told to the publisher.
    fn release(&self) -> PyResult<()> {
        let wanted = self.state()?.wanted.take();
        drop(wanted);
        Ok(())
    }
}

impl Wanted {
    /// Tell whether a reader has parked, or has resumed, since the last publication.
    fn has_parked(&self) -> bool {
        (0..self.parked.count()).any(|reader| self.parked.load(reader) != self.seen.load(reader))
    }
}

impl State {
    /// Make room for *held*.
    fn make_room(&mut self, held: &Held<'_>, segment_size: i64) -> PyResult<()> {
        if self.is_in_last_piece(held, segment_size) {
            return self.pieces.last_mut().expect("there is one").make_room(held.texts.len());
        }
        self.pieces.try_reserve(1).map_err(no_memory)?;
        self.next.make_room(held.texts.len())
    }

    fn is_in_last_piece(&self, held: &Held<'_>, segment_size: i64) -> bool {
        self.pieces.last().is_some_and(|piece| (piece.end - 1) / segment_size == (held.end - 1) / segment_size)
    }

    /// Add *held*, for which there is room.
    fn add(&mut self, held: &Held<'_>, queues: &Bound<'_, PyList>, segment_size: i64) {
        if !self.is_in_last_piece(held, segment_size) {
            let piece = std::mem::take(&mut self.next);
            self.pieces.push(Piece { begin: held.begin, ..piece });
        }
        let piece = self.pieces.last_mut().expect("one was pushed");
        let row_at = piece.rows.len();
        let index = piece.queue_index(queues);
        piece.rows.extend_from_slice(held.row);
        piece.rows[row_at..][QUEUE_INDEX].copy_from_slice(&index.to_le_bytes());
        piece.texts.extend_from_slice(held.texts);
        piece.end = held.end;
        piece.store_timestamp = held.store_timestamp;
        piece.ordinal = held.ordinal;
        if self.count == 0 {
            self.since = held.store_timestamp;
        }
        self.store_timestamp = held.store_timestamp;
        self.count += 1;
    }
}

impl Piece {
    /// Make room for one more record with texts of this size.
    fn make_room(&mut self, texts_size: usize) -> PyResult<()> {
        self.queues.try_reserve(1).map_err(no_memory)?;
        self.rows.try_reserve(ROW_SIZE).map_err(no_memory)?;
        self.texts.try_reserve(texts_size).map_err(no_memory)
    }

    /// Return the number of the queue of this list.
    fn queue_index(&mut self, queues: &Bound<'_, PyList>) -> i32 {
        let is_it = |other: &Py<PyList>| other.is(queues) || other.bind(queues.py()).eq(queues).unwrap_or(false);
        let index = self.queues.iter().position(is_it).unwrap_or(self.queues.len());
        if index == self.queues.len() {
            self.queues.push(queues.clone().unbind());
        }
        index as i32
    }

    /// Return the piece as an `AppendedRecords`.
    fn told<'py>(&self, records_type: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = records_type.py();
        let queues = match &self.queues[..] {
            // All puts to a queue share one list.
            [queues] => queues.bind(py).clone(),
            several => {
                let names = several.iter().map(|queues| queues.bind(py).get_item(0)).collect::<PyResult<Vec<_>>>()?;
                PyList::new(py, names)?
            }
        };
        let (rows, texts) = (bytes(py, &self.rows)?, bytes(py, &self.texts)?);
        records_type.call1((self.begin, self.end, self.store_timestamp, self.ordinal, queues, rows, texts))
    }
}
