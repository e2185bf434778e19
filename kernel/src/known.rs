//! What puts look up again and again: topics and tags, by the identity of their text.
//!
//! Texts of Python are immutable, and an entry keeps its text alive, so the same address is the same text.

use std::sync::{Arc, Mutex};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

/// Entries of a table. A program that alternates between more texts looks them up in Python's dictionaries.
const KNOWN_MAX: usize = 64;

/// A topic of the writer, `Topic` of `reput/store/writer/topic_table.py`.
pub struct KnownTopic {
    /// The object itself.
    pub object: Py<PyAny>,
    /// Its name.
    pub name: Py<PyAny>,
    /// Size and name, as a record has them.
    pub field: Py<PyBytes>,
    /// Of its records.
    pub magic_code: u32,
    /// Queue id → next queue offset.
    pub offsets: Py<PyDict>,
    /// Queue id → the list of this one queue.
    pub queues: Py<PyDict>,
}

impl KnownTopic {
    /// Read the topic of this name; `None`: the writer has not met it.
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

/// What tags make of a record, `TagsField` of `reput/store/writer/message_preparer.py`.
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

/// A small table by the identity of a text, or of None.
pub struct KnownTable<T> {
    entries: Mutex<Vec<Option<Entry<T>>>>,
}

/// What was found for a text.
type Entry<T> = (Py<PyAny>, Arc<T>);

impl<T> KnownTable<T> {
    /// Return an empty table.
    pub fn new() -> KnownTable<T> {
        KnownTable { entries: Mutex::new((0..KNOWN_MAX).map(|_| None).collect()) }
    }

    /// Return the entry of *text*, or what *find* finds for it. `None`: it finds nothing, or *text* is none.
    pub fn get(
        &self,
        text: &Bound<'_, PyAny>,
        find: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<Option<T>>,
    ) -> PyResult<Option<Arc<T>>> {
        let number = (text.as_ptr() as usize >> 4) % KNOWN_MAX;
        // The mutex is never held while Python code may run, so no thread waits for it with the interpreter's lock.
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
