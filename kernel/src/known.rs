//! A cache of topics and tags, which puts look up again and again, by the identity of their text.
//!
//! Python's texts are immutable, and an entry keeps its text alive, so an equal address means the same text.

use std::sync::{Arc, Mutex};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyType};

use crate::slots::Slot;

/// Entries of a table. If a program alternates between more texts, some are looked up in Python's dictionaries.
const KNOWN_MAX: usize = 64;

/// A topic of the writer, `Topic` of `reput/store/writer/topic_table.py`.
pub struct KnownTopic {
    /// The `Topic` object.
    pub object: Py<PyAny>,
    /// Its name.
    pub name: Py<PyAny>,
    /// Size and name, in the form of records.
    pub field: Py<PyBytes>,
    /// The magic code of the topic's records.
    pub magic_code: u32,
    /// Queue id → next queue offset.
    pub offsets: Py<PyDict>,
    /// Queue id → a list of only this queue.
    pub queues: Py<PyDict>,
}

/// What a put reads of a `Topic` each time, and changes.
pub struct TopicSlots {
    /// Bytes of its records.
    pub put_size: Slot,
    /// Counts the messages that were spread over its queues.
    pub turns: Slot,
    /// The number of these queues; 0: not looked up yet.
    pub write_queue_nums: Slot,
}

impl TopicSlots {
    /// Find them in the class `Topic`.
    pub fn of(class: &Bound<'_, PyType>) -> PyResult<TopicSlots> {
        Ok(TopicSlots {
            put_size: Slot::of(class, c"put_size")?,
            turns: Slot::of(class, c"turns")?,
            write_queue_nums: Slot::of(class, c"write_queue_nums")?,
        })
    }
}

impl KnownTopic {
    /// Read the topic of this name; `None`: the writer has not used it yet.
    pub fn find(topics: &Bound<'_, PyDict>, name: &Bound<'_, PyAny>) -> PyResult<Option<KnownTopic>> {
        let py = name.py();
        let Some(topic) = topics.get_item(name)? else { return Ok(None) };
        Ok(Some(KnownTopic {
            name: topic.getattr(intern!(py, "name"))?.unbind(),
            field: topic.getattr(intern!(py, "field"))?.cast_into::<PyBytes>()?.unbind(),
            magic_code: topic.getattr(intern!(py, "magic_code"))?.extract()?,
            offsets: topic.getattr(intern!(py, "offsets"))?.cast_into::<PyDict>()?.unbind(),
            queues: topic.getattr(intern!(py, "queues"))?.cast_into::<PyDict>()?.unbind(),
            object: topic.unbind(),
        }))
    }
}

/// The tags of a record, `TagsField` of `reput/store/writer/message_preparer.py`.
pub struct KnownTags {
    /// Their code in rows and consume queues.
    pub code: i64,
    /// The stored property.
    pub data: Py<PyBytes>,
    /// The text for dispatchers.
    pub text: Py<PyBytes>,
}

impl KnownTags {
    /// Read the tags; `None`: the writer has not checked them yet.
    pub fn find(known_tags: &Bound<'_, PyAny>, tags: &Bound<'_, PyAny>) -> PyResult<Option<KnownTags>> {
        let py = tags.py();
        let Some(field) = known_tags.cast::<PyDict>()?.get_item(tags)? else { return Ok(None) };
        Ok(Some(KnownTags {
            code: field.getattr(intern!(py, "code"))?.extract()?,
            data: field.getattr(intern!(py, "data"))?.cast_into::<PyBytes>()?.unbind(),
            text: field.getattr(intern!(py, "text"))?.cast_into::<PyBytes>()?.unbind(),
        }))
    }
}

/// A small table whose keys are texts, or Python's None, compared by identity.
pub struct KnownTable<T> {
    entries: Mutex<Vec<Option<Entry<T>>>>,
}

/// A text, and the value that was found for it.
type Entry<T> = (Py<PyAny>, Arc<T>);

impl<T> KnownTable<T> {
    /// Return an empty table.
    pub fn new() -> KnownTable<T> {
        KnownTable { entries: Mutex::new((0..KNOWN_MAX).map(|_| None).collect()) }
    }

    /// Return the entry of *text*, or the result of *find*. `None`: *find* has no result, or *text* is not a text.
    pub fn get(
        &self,
        text: &Bound<'_, PyAny>,
        find: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<Option<T>>,
    ) -> PyResult<Option<Arc<T>>> {
        let number = (text.as_ptr() as usize >> 4) % KNOWN_MAX;
        // The mutex is never held while Python code may run, so no thread that has the interpreter's lock waits for it.
        if let Some((key, entry)) = &self.entries.lock().expect("no panic holds it")[number]
            && key.is(text)
        {
            return Ok(Some(Arc::clone(entry)));
        }
        if !(text.is_none() || text.is_exact_instance_of::<PyString>()) {
            return Ok(None);
        }
        let Some(found) = find(text)? else { return Ok(None) };
        let found = Arc::new(found);
        let previous = self.entries.lock().expect("no panic holds it")[number]
            .replace((text.clone().unbind(), Arc::clone(&found)));
        drop(previous);
        Ok(Some(found))
    }
}
