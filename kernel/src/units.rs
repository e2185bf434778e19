//! Consume-queue units of a batch, queue by queue. `reput/store/queue/consume_queue.py` draws a unit.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::counters::{Way, count};
use crate::room::bytes;
use crate::rows::{Columns, Row};

const UNIT_SIZE: usize = 20;
/// Under one record there are several messages; it stands in a batch queue.
const INNER_BATCH: i32 = 0x1 << 7;
/// Prepared and rolled back records share the lower bit; none of them has a unit.
const LEFT_OUT: i32 = 0x1 << 2 | INNER_BATCH;

/// The units of one queue, as they are gathered.
struct QueueRun<'py> {
    name: Bound<'py, PyTuple>,
    data: Vec<u8>,
    first: (i64, i32, i64),
    last: (i64, i32, i64),
    is_consecutive: bool,
}

impl QueueRun<'_> {
    /// Add the unit of a record; false: there is no memory.
    fn add(&mut self, row: &Row<'_>) -> bool {
        if self.data.try_reserve(UNIT_SIZE).is_err() {
            return false;
        }
        let place = (row.commit_log_offset(), row.record_size(), row.queue_offset());
        if self.data.is_empty() {
            self.first = place;
        } else if place.2 != self.last.2.wrapping_add(1) {
            self.is_consecutive = false;
        }
        self.last = place;
        self.data.extend_from_slice(&place.0.to_be_bytes());
        self.data.extend_from_slice(&place.1.to_be_bytes());
        self.data.extend_from_slice(&row.tags_code().to_be_bytes());
        true
    }
}

/// The units of one queue: its name, then the fields of `QueueUnits`.
type Units<'py> = (Bound<'py, PyTuple>, Bound<'py, PyBytes>, i64, i32, i64, i64, i64, bool, Option<Vec<i64>>);

/// Return the units of each queue in *parts*, and how many records stand in batch queues.
///
/// None: the rows are of another form, or one stands in further queues, and all take the Python path.
#[pyfunction]
pub fn queue_units<'py>(parts: &Bound<'py, PyAny>) -> PyResult<Option<(Vec<Units<'py>>, usize)>> {
    let py = parts.py();
    let Some(all) = Columns::read_all(parts)? else { return Ok(None) };
    let row_count: usize = all.iter().map(Columns::row_count).sum();
    let known = PyDict::new(py);
    let mut runs: Vec<QueueRun<'py>> = Vec::new();
    // For each part, the run of each of its queues.
    let mut numbers: Vec<Vec<usize>> = Vec::with_capacity(all.len());
    let mut left_alone = 0;
    for columns in &all {
        let Some(queues) = columns.queues() else { return Ok(None) };
        let mut own = Vec::with_capacity(queues.len());
        for queue in queues {
            if let Some(number) = known.get_item(&queue)? {
                own.push(number.extract()?);
                continue;
            }
            known.set_item(&queue, runs.len())?;
            own.push(runs.len());
            let data = Vec::new();
            runs.push(QueueRun { name: queue, data, first: (0, 0, 0), last: (0, 0, 0), is_consecutive: true });
        }
        if let [number] = own[..]
            && runs[number].data.try_reserve(columns.row_count() * UNIT_SIZE).is_err()
        {
            return Ok(None);
        }
        for row in columns.rows() {
            if row.is_multi_dispatch() {
                return Ok(None);
            }
            if row.sys_flag() & LEFT_OUT != 0 {
                left_alone += usize::from(row.sys_flag() & INNER_BATCH != 0);
                continue;
            }
            if !runs[own[row.queue_index()]].add(&row) {
                return Ok(None);
            }
        }
        numbers.push(own);
    }
    let mut units = Vec::with_capacity(runs.len());
    for (number, run) in runs.iter().enumerate().filter(|(_, run)| !run.data.is_empty()) {
        let (offset, size, queue_offset) = run.first;
        let Some(end) = run.last.0.checked_add(i64::from(run.last.1)) else { return Ok(None) };
        let queue_offsets = if run.is_consecutive { None } else { Some(queue_offsets(&all, &numbers, number)) };
        let Ok(data) = bytes(py, &run.data) else { return Ok(None) };
        let name = run.name.clone();
        units.push((name, data, offset, size, queue_offset, run.last.0, end, run.is_consecutive, queue_offsets));
    }
    count(Way::ConsumeQueue, row_count);
    Ok(Some((units, left_alone)))
}

/// Return the queue offsets of all units of one run.
fn queue_offsets(all: &[Columns<'_>], numbers: &[Vec<usize>], wanted: usize) -> Vec<i64> {
    let of_part = |(columns, own): (&Columns<'_>, &Vec<usize>)| {
        let rows = columns.rows().filter(|row| own[row.queue_index()] == wanted && row.sys_flag() & LEFT_OUT == 0);
        rows.map(|row| row.queue_offset()).collect::<Vec<i64>>()
    };
    all.iter().zip(numbers).flat_map(of_part).collect()
}
