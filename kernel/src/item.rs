//! Item: the stored part of one message, from the program or from a client.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyIterator;

use crate::known::{KnownTopic, TopicSlots};
use crate::record::Head;

/// The queue of a message.
#[derive(Clone, Copy)]
pub enum Queue {
    /// The queue with this id.
    Id(i32),
    /// The next queue in turn, of this number of queues.
    Turn(i64),
}

/// The stored part of one message, without its place and time.
pub struct Item<'a> {
    /// The fields that do not come from the message.
    pub head: &'a Head,
    /// Its topic.
    pub topic: Arc<KnownTopic>,
    /// Its queue.
    pub queue: Queue,
    /// The user's own number.
    pub flag: i32,
    /// Any bytes.
    pub body: &'a [u8],
    /// The properties string, in pieces.
    pub properties: [&'a [u8]; 4],
    /// For the row.
    pub uniq_key: Option<&'a [u8]>,
    /// For the row.
    pub keys: &'a [u8],
    /// For the row; -1 if the message has no keys.
    pub keys_size: i16,
    /// The row's texts contain the properties.
    pub carries_properties: bool,
    /// For the row.
    pub tags: &'a [u8],
    /// For the row.
    pub tags_code: i64,
}

impl Item<'_> {
    /// Bytes of what the row refers to.
    pub fn texts_size(&self) -> usize {
        let properties = if self.carries_properties { self.properties_size() } else { 0 };
        self.uniq_key.map_or(0, <[u8]>::len) + self.keys.len() + properties + self.tags.len()
    }

    /// Bytes of all properties.
    pub fn properties_size(&self) -> usize {
        self.properties.iter().map(|piece| piece.len()).sum()
    }

    /// Bytes of the record.
    pub fn record_size(&self, py: Python<'_>) -> usize {
        self.head.size() + self.body.len() + self.topic.field.bind(py).as_bytes().len() + 2 + self.properties_size()
    }

    /// Return the queue id; a topic's queues take turns.
    pub fn queue_id(&self, py: Python<'_>, slots: &TopicSlots) -> PyResult<i32> {
        match self.queue {
            Queue::Id(queue_id) => Ok(queue_id),
            Queue::Turn(nums) => {
                let turns = slots.turns.get(self.topic.object.bind(py))?.cast_into::<PyIterator>()?;
                let turn =
                    turns.into_iter().next().ok_or_else(|| PyValueError::new_err("a topic's turns have ended"))??;
                Ok((turn.extract::<i64>()? % nums) as i32)
            }
        }
    }
}
