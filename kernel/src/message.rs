//! Plain messages of the program: they have at most keys, and a topic and tags that the writer has used before.
//!
//! The rules are those of the fast path in `MessagePreparer.prepare`. A message that breaks a limit is not plain, so
//! Python handles it and raises the error.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple, PyType};

use crate::item::{Item, Queue};
use crate::known::{KnownTags, KnownTopic, TopicSlots};
use crate::record::{Head, Host};
use crate::slots::Slot;

/// Maximum number of characters in all keys together; longer keys are checked in Python.
const PLAIN_KEYS_MAX: usize = 4096;
const KEYS_BEGIN: &[u8] = b"KEYS\x01";
const KEYS_END: &[u8] = b"\x02";

/// The keys of a message in their stored form.
enum Keys {
    None,
    One(Py<PyString>),
    Joined(String),
}

/// A plain message, read off its Python object.
pub struct PlainMessage {
    topic: Arc<KnownTopic>,
    /// Its queue.
    pub queue: Queue,
    flag: i32,
    body: Py<PyBytes>,
    keys: Keys,
    tags: Arc<KnownTags>,
}

/// A plain message, checked, with its queue, for `KernelPuts.append_each`.
#[pyclass(frozen, module = "reput_kernel")]
pub struct AdmittedMessage {
    /// The message.
    pub message: PlainMessage,
    /// The queue that was chosen for it.
    #[pyo3(get)]
    pub queue_id: i32,
    /// Bytes of its record.
    #[pyo3(get)]
    pub record_size: usize,
}

/// The attributes of a `Message`.
pub struct MessageSlots {
    body: Slot,
    delay_level: Slot,
    flag: Slot,
    keys: Slot,
    properties: Slot,
    queue_id: Slot,
    sharding_key: Slot,
    tags: Slot,
    topic: Slot,
}

impl MessageSlots {
    /// Find them in the class `Message`.
    pub fn of(class: &Bound<'_, PyType>) -> PyResult<MessageSlots> {
        Ok(MessageSlots {
            body: Slot::of(class, c"body")?,
            delay_level: Slot::of(class, c"delay_level")?,
            flag: Slot::of(class, c"flag")?,
            keys: Slot::of(class, c"keys")?,
            properties: Slot::of(class, c"properties")?,
            queue_id: Slot::of(class, c"queue_id")?,
            sharding_key: Slot::of(class, c"sharding_key")?,
            tags: Slot::of(class, c"tags")?,
            topic: Slot::of(class, c"topic")?,
        })
    }
}

/// Return the value of *object* if it is exactly an `int`, of at most 32 bits.
fn plain_int(object: &Bound<'_, PyAny>) -> Option<i32> {
    if object.is_exact_instance_of::<PyInt>() { object.extract().ok() } else { None }
}

impl PlainMessage {
    /// Read *message*, an exact `Message`; `None`: it is not plain.
    pub fn read<'py>(
        message: &Bound<'py, PyAny>,
        slots: &MessageSlots,
        of_topic: &TopicSlots,
        topic_of: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<Option<Arc<KnownTopic>>>,
        tags_of: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<Option<Arc<KnownTags>>>,
    ) -> PyResult<Option<PlainMessage>> {
        let py = message.py();
        if !slots.properties.get(message)?.is_none()
            || plain_int(&slots.delay_level.get(message)?) != Some(0)
            || !slots.sharding_key.get(message)?.is_none()
        {
            return Ok(None);
        }
        let Some(flag) = plain_int(&slots.flag.get(message)?) else { return Ok(None) };
        let Ok(body) = slots.body.get(message)?.cast_into_exact::<PyBytes>() else { return Ok(None) };
        let Some(topic) = topic_of(&slots.topic.get(message)?)? else { return Ok(None) };
        let Some(tags) = tags_of(&slots.tags.get(message)?)? else { return Ok(None) };
        let queue_id = slots.queue_id.get(message)?;
        let queue = if queue_id.is_none() {
            match of_topic.write_queue_nums.get(topic.object.bind(py))?.extract::<i64>()? {
                // Not looked up yet.
                ..=0 => return Ok(None),
                1 => Queue::Id(0),
                nums => Queue::Turn(nums),
            }
        } else {
            match plain_int(&queue_id) {
                Some(queue_id @ 0..) => Queue::Id(queue_id),
                _ => return Ok(None),
            }
        };
        let Some(keys) = Keys::read(slots.keys.get(message)?)? else { return Ok(None) };
        Ok(Some(PlainMessage { topic, queue, flag, body: body.unbind(), keys, tags }))
    }

    /// Return the stored part of the message; `None`: it is too long.
    pub fn item<'a>(&'a self, py: Python<'a>, head: &'a Head, body_size_max: usize) -> PyResult<Option<Item<'a>>> {
        let body = self.body.as_bytes(py);
        let data = self.tags.data.bind(py).as_bytes();
        let (keys, keys_size, properties) = match &self.keys {
            Keys::None => (&b""[..], if data.is_empty() { 0 } else { -1 }, [data, b"", b"", b""]),
            keys => {
                let keys = keys.text(py)?.as_bytes();
                // Bounded by `PLAIN_KEYS_MAX`, four bytes a character.
                (keys, keys.len() as i16, [KEYS_BEGIN, keys, KEYS_END, data])
            }
        };
        if body.len() > body_size_max {
            return Ok(None);
        }
        Ok(Some(Item {
            head,
            topic: Arc::clone(&self.topic),
            queue: self.queue,
            flag: self.flag,
            body,
            properties,
            uniq_key: None,
            keys,
            keys_size,
            carries_properties: false,
            tags: self.tags.text.bind(py).as_bytes(),
            tags_code: self.tags.code,
        }))
    }
}

impl Keys {
    /// Read the keys of a message; `None`: they are not plain.
    fn read(keys: Bound<'_, PyAny>) -> PyResult<Option<Keys>> {
        if keys.is_none() {
            return Ok(Some(Keys::None));
        }
        let keys = match keys.cast_into_exact::<PyString>() {
            Ok(text) => return if is_plain(&text)? { Ok(Some(Keys::One(text.unbind()))) } else { Ok(None) },
            Err(error) => error.into_inner(),
        };
        let several: Vec<Bound<'_, PyAny>> = if let Ok(list) = keys.cast_exact::<PyList>() {
            if list.len() == 1 {
                let Ok(text) = list.get_item(0)?.cast_into_exact::<PyString>() else { return Ok(None) };
                // A key with a blank would be stored as several keys, so Python refuses it.
                let is_one = is_plain(&text)? && !text.to_str()?.contains(' ');
                return Ok(is_one.then(|| Keys::One(text.unbind())));
            }
            list.iter().collect()
        } else if let Ok(tuple) = keys.cast_exact::<PyTuple>() {
            tuple.iter().collect()
        } else {
            return Ok(None);
        };
        let mut texts = Vec::with_capacity(several.len());
        for key in several {
            let Ok(text) = key.cast_into_exact::<PyString>() else { return Ok(None) };
            // The conversion fails if the text has a lone surrogate.
            let Ok(key) = text.to_str() else { return Ok(None) };
            if key.contains(' ') || !(key.is_empty() || is_plain(&text)?) {
                return Ok(None);
            }
            texts.push(text);
        }
        if texts.len() == 1 {
            let text = texts.pop().expect("one is left");
            return Ok(if text.to_str()?.is_empty() { None } else { Some(Keys::One(text.unbind())) });
        }
        let texts: Vec<&str> = texts.iter().map(|text| text.to_str()).collect::<PyResult<_>>()?;
        let joined = texts.join(" ");
        if joined.is_empty() || joined.chars().count() > PLAIN_KEYS_MAX {
            return Ok(None);
        }
        Ok(Some(Keys::Joined(joined)))
    }

    fn text<'a>(&'a self, py: Python<'a>) -> PyResult<&'a str> {
        match self {
            Keys::None => Ok(""),
            Keys::One(text) => text.to_str(py),
            Keys::Joined(text) => Ok(text),
        }
    }
}

/// Tell whether *text* is printable in Python's sense, not empty and not too long.
fn is_plain(text: &Bound<'_, PyString>) -> PyResult<bool> {
    let Ok(data) = text.to_str() else { return Ok(false) };
    if data.is_ascii() {
        return Ok((1..=PLAIN_KEYS_MAX).contains(&data.len()) && data.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    }
    Ok(data.chars().count() <= PLAIN_KEYS_MAX && text.call_method0(intern!(text.py(), "isprintable"))?.is_truthy()?)
}

/// Return the head of records, `RecordHead` of the encoder.
pub fn head_of(head: &Bound<'_, PyAny>) -> PyResult<Head> {
    let py = head.py();
    let host = |name| -> PyResult<Host> {
        let stored = head.getattr(name)?;
        Host::new(stored.cast::<PyBytes>()?.as_bytes())
            .ok_or_else(|| PyValueError::new_err("a host has neither 8 nor 20 bytes"))
    };
    Ok(Head {
        sys_flag: head.getattr(intern!(py, "sys_flag"))?.extract()?,
        born_timestamp: head.getattr(intern!(py, "born_timestamp"))?.extract()?,
        born_host: host(intern!(py, "born_host"))?,
        store_host: host(intern!(py, "store_host"))?,
        reconsume_times: head.getattr(intern!(py, "reconsume_times"))?.extract()?,
        prepared_transaction_offset: head.getattr(intern!(py, "prepared_transaction_offset"))?.extract()?,
    })
}
