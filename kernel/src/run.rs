//! Run: the data that is gathered while the records of one put are written, and what the put changes with it.

use std::collections::TryReserveError;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::item::Item;
use crate::known::{KnownTopic, TopicSlots};
use crate::memory::WORD_SIZE;
use crate::record::{Numbers, ROW_SIZE, TextSizes, row};

/// Bytes of rows, and of texts, whose memory is kept for the next put.
const KEPT_SIZE_MAX: usize = 1 << 20;

/// A queue that a run touches.
pub struct RunQueue {
    topic: Arc<KnownTopic>,
    queue_id: i32,
    /// Queue offset of its next record.
    pub next_offset: i64,
    /// Bytes of the run's records in it.
    pub size: i64,
}

/// The data that is gathered while the records of a run are written.
#[derive(Default)]
pub struct Run {
    /// In the order of their first records.
    pub queues: Vec<RunQueue>,
    latest: usize,
    /// What dispatchers get of each record: rows of numbers, and the texts that they refer to.
    pub rows: Vec<u8>,
    pub texts: Vec<u8>,
}

impl Run {
    /// Make room for what `add_row` gathers of *items*.
    pub fn make_room(&mut self, items: &[Item<'_>]) -> Result<(), TryReserveError> {
        self.queues.try_reserve(1)?;
        self.rows.try_reserve(items.len() * ROW_SIZE)?;
        self.texts.try_reserve(items.iter().map(Item::texts_size).sum())
    }

    /// Gather nothing any more.
    pub fn clear(&mut self) {
        self.queues.clear();
        self.latest = 0;
        self.rows.clear();
        self.texts.clear();
    }

    /// Return the number of a queue within the run.
    pub fn queue_index(&mut self, py: Python<'_>, topic: &Arc<KnownTopic>, queue_id: i32) -> PyResult<usize> {
        let is_it = |queue: &RunQueue| queue.queue_id == queue_id && queue.topic.object.is(&topic.object);
        if self.queues.get(self.latest).is_some_and(is_it) {
            return Ok(self.latest);
        }
        // A linear search: a batch has few queues.
        if let Some(index) = self.queues.iter().position(is_it) {
            self.latest = index;
            return Ok(index);
        }
        let next_offset = match topic.offsets.bind(py).get_item(queue_id)? {
            Some(next_offset) => next_offset.extract()?,
            None => 0,
        };
        self.latest = self.queues.len();
        self.queues.push(RunQueue { topic: Arc::clone(topic), queue_id, next_offset, size: 0 });
        Ok(self.latest)
    }

    /// Add the row and the texts of a record.
    pub fn add_row(&mut self, item: &Item<'_>, numbers: &Numbers, queue_index: i32) {
        let before = self.texts.len();
        self.texts.extend_from_slice(item.uniq_key.unwrap_or(b""));
        self.texts.extend_from_slice(item.keys);
        if item.carries_properties {
            item.properties.iter().for_each(|piece| self.texts.extend_from_slice(piece));
        }
        self.texts.extend_from_slice(item.tags);
        let sizes = TextSizes {
            texts: (self.texts.len() - before) as i32,
            uniq_key: item.uniq_key.map_or(-1, |uniq_key| uniq_key.len() as i16),
            keys: item.keys_size,
            properties: if item.carries_properties { item.properties_size() as i16 } else { -1 },
        };
        self.rows.extend_from_slice(&row(item.head, numbers, item.tags_code, queue_index, &sizes));
    }

    /// Return (topic, queue id) of each queue, in the form that publishers expect.
    pub fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        if let [queue] = &self.queues[..] {
            // All puts to a queue share one list, because publishers compare these lists.
            let queues = queue.topic.queues.bind(py);
            if let Some(names) = queues.get_item(queue.queue_id)? {
                return Ok(names.cast_into()?);
            }
            let names = PyList::new(py, [self.name(py, queue)?])?;
            queues.set_item(queue.queue_id, &names)?;
            return Ok(names);
        }
        let names = self.queues.iter().map(|queue| self.name(py, queue)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, names)
    }

    fn name<'py>(&self, py: Python<'py>, queue: &RunQueue) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, [queue.topic.name.bind(py).clone(), queue.queue_id.into_pyobject(py)?.into_any()])
    }

    /// Advance the next queue offsets past the run: all of them or none.
    pub fn move_offsets(&self, py: Python<'_>) -> PyResult<()> {
        for (number, queue) in self.queues.iter().enumerate() {
            if let Err(error) = queue.topic.offsets.bind(py).set_item(queue.queue_id, queue.next_offset) {
                // Out of memory: set the offsets before this one back. Their entries exist, so that cannot fail.
                for moved in &self.queues[..number] {
                    let count = self.row_count(moved);
                    moved.topic.offsets.bind(py).set_item(moved.queue_id, moved.next_offset - count)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Return how many records of the run are in *queue*.
    fn row_count(&self, queue: &RunQueue) -> i64 {
        let index = self.queues.iter().position(|other| std::ptr::eq(other, queue)).unwrap_or(0) as i32;
        self.rows.chunks(ROW_SIZE).filter(|row| row[44..48] == index.to_le_bytes()).count() as i64
    }

    /// Add the bytes of the records to those of their topics.
    pub fn add_put_sizes(&self, py: Python<'_>, slots: &TopicSlots) -> PyResult<()> {
        for queue in &self.queues {
            let topic = queue.topic.object.bind(py);
            let put_size = slots.put_size.get(topic)?.extract::<i64>()? + queue.size;
            slots.put_size.set(topic, put_size.into_pyobject(py)?.into_any())?;
        }
        Ok(())
    }
}

/// What a put gathers, with the memory that it takes.
#[derive(Default)]
pub struct Gathering {
    /// Its records.
    pub run: Run,
    /// The queue of each of them.
    pub queue_ids: Vec<i32>,
    /// Where each record begins in the memory, and the word of its size.
    pub size_words: Vec<(usize, [u8; WORD_SIZE])>,
}

impl Gathering {
    /// Make room for what a put of *items* gathers.
    pub fn make_room(&mut self, items: &[Item<'_>]) -> Result<(), TryReserveError> {
        self.run.make_room(items)?;
        self.queue_ids.try_reserve(items.len())?;
        self.size_words.try_reserve(items.len())
    }

    /// Gather nothing any more, and keep at most the memory of a small put.
    pub fn clear(&mut self) {
        if self.run.rows.capacity() > KEPT_SIZE_MAX || self.run.texts.capacity() > KEPT_SIZE_MAX {
            *self = Gathering::default();
            return;
        }
        self.run.clear();
        self.queue_ids.clear();
        self.size_words.clear();
    }
}
