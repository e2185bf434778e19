//! KernelSends: what a broker does with requests to store messages, from the bytes of their frames to those of the
//! answers, for one `KernelPuts`.
//!
//! ```text
//! frames ── take ──> SendRequests ── put, several under one lock ──> the log, and the frames of the answers
//! ```
//!
//! Only usual requests are taken: their topics are known, and nothing of them but the message has an effect. A broker
//! that asks more of requests, such as a signature, does not use it. The Python path is
//! `reput/broker/requests/send_message.py`.

use std::fmt::Write;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::counters::{Way, count};
use crate::known::KnownTopic;
use crate::memory::with_bytes;
use crate::puts::{Appended, KernelPuts, Place};
use crate::record::{Head, Host};
use crate::room::vec_of;
use crate::send_header::SendRequest;
use crate::sent::{Sent, added_properties, plain_properties, sent_items};

const RETRY_PREFIX: &str = "%RETRY%";
/// Batches of topics with longer names are refused.
const BATCH_TOPIC_SIZE_MAX: usize = 127;
/// The body is itself a batch that stays one record.
const INNER_BATCH_FLAG: i32 = 0x80;
const TRANSACTION_ROLLBACK_TYPE: i32 = 0xC;
const BORN_HOST_V6_FLAG: i32 = 0x10;
const STORE_HOST_V6_FLAG: i32 = 0x20;
const IPV4_HOST_SIZE: usize = 8;

/// One request that was taken.
struct Request {
    /// Where its frame begins, its body, and where both end.
    begin: usize,
    body_at: usize,
    end: usize,
    opaque: i32,
    is_oneway: bool,
    is_of_reput: bool,
    is_batch: bool,
    topic: String,
    queue_id: i32,
    flag: i32,
    head: Head,
    properties: String,
    /// What is stored behind the properties of each message.
    added: Vec<u8>,
    /// For the answer.
    uniq_key: String,
}

/// Requests of one connection, in their order, with a copy of their frames.
#[pyclass(frozen, module = "reput_kernel")]
pub struct SendRequests {
    frames: Vec<u8>,
    requests: Vec<(Request, Arc<KnownTopic>)>,
}

#[pymethods]
impl SendRequests {
    /// Return each frame without the word of its length, for the Python path.
    fn frames<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.requests.iter().map(|(request, _)| PyBytes::new(py, &self.frames[request.begin + 4..request.end])).collect()
    }
}

/// The sends of one broker.
#[pyclass(frozen, module = "reput_kernel")]
pub struct KernelSends {
    puts: Py<KernelPuts>,
    topic_manager: Py<PyAny>,
    added: Vec<u8>,
    refused_topics: Vec<String>,
    answer_fields: String,
    language: String,
    answer_end: String,
}

#[pymethods]
impl KernelSends {
    /// Store through *puts* for a broker.
    ///
    /// *topic_manager* has the ``table`` of topics that messages may be sent to, without those of *refused_topics*.
    /// *added* are the properties that the broker adds to each message, *answer_fields* the JSON of the fields that each
    /// answer has, without braces; an answer also names the broker's *language* and *version*.
    #[new]
    fn new(
        puts: Py<KernelPuts>,
        topic_manager: Py<PyAny>,
        added: Vec<u8>,
        refused_topics: Vec<String>,
        answer_fields: String,
        language: String,
        version: i32,
    ) -> KernelSends {
        let answer_end = format!(r#","serializeTypeCurrentRPC":"JSON","version":{version}}}"#);
        KernelSends { puts, topic_manager, added, refused_topics, answer_fields, language, answer_end }
    }

    /// Take the whole requests that *data*, a buffer, begins with; return them and their bytes.
    ///
    /// `None`: the first request takes the Python path, or is not whole. *born_host* is the client in the form of records.
    fn take<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        born_host: &[u8],
    ) -> PyResult<Option<(SendRequests, usize)>> {
        let Some(born_host) = Host::new(born_host) else { return Ok(None) };
        let store_host = self.puts.get().store_host();
        let buffer = PyBuffer::<u8>::get(data)?;
        let mut requests = Vec::new();
        let frames = with_bytes(py, &buffer, |data| {
            let mut at = 0;
            while let Some(sent) = SendRequest::read(&data[at..]) {
                let size = sent.size;
                let Some(request) = self.request(&sent, at, born_host, store_host) else { break };
                if requests.try_reserve(1).is_err() {
                    break;
                }
                requests.push(request);
                at += size;
            }
            let mut frames = vec_of(at).ok()?;
            frames.extend_from_slice(&data[..at]);
            Some(frames)
        });
        let Some(frames) = frames else { return Ok(None) };
        let Ok(mut taken) = vec_of::<(Request, Arc<KnownTopic>)>(requests.len()) else { return Ok(None) };
        if !requests.is_empty() {
            let table = self.topic_manager.bind(py).getattr(intern!(py, "table"))?.cast_into::<PyDict>()?;
            for request in requests {
                let topic = match taken.last() {
                    Some((last, topic)) if last.topic == request.topic && last.queue_id == request.queue_id => {
                        Arc::clone(topic)
                    }
                    _ => match self.topic_of(&table, &request)? {
                        Some(topic) => Arc::new(topic),
                        None => break,
                    },
                };
                taken.push((request, topic));
            }
        }
        let Some((last, _)) = taken.last() else { return Ok(None) };
        let size = last.end;
        Ok(Some((SendRequests { frames, requests: taken }, size)))
    }

    /// Put the messages of *requests*, a list of `SendRequests`, as one run; return the frames of each one's answers.
    ///
    /// `None`: nothing has changed, and they take the Python path.
    fn put<'py>(&self, requests: &Bound<'py, PyList>) -> PyResult<Option<Vec<Bound<'py, PyBytes>>>> {
        let py = requests.py();
        let puts = self.puts.get();
        let called = puts.monotonic(py)?;
        let carries = puts.carries_properties(py)?;
        let runs = requests.iter().map(|run| Ok(run.cast_into::<SendRequests>()?)).collect::<PyResult<Vec<_>>>()?;
        let mut items = Vec::new();
        let mut counts = Vec::new();
        for run in &runs {
            let run = run.get();
            for (request, topic) in &run.requests {
                let before = items.len();
                let body = &run.frames[request.body_at..request.end];
                let (head, flag, queue_id) = (&request.head, request.flag, request.queue_id);
                let properties = request.properties.as_bytes();
                let found = if request.is_batch {
                    added_properties(properties)
                        .and_then(|named| sent_items(body, topic, queue_id, head, &named, &request.added, carries))
                } else {
                    let sent = Sent { topic, queue_id, head, flag, body, properties };
                    plain_properties(properties)
                        .and_then(|named| sent.item(&named, &self.added, carries))
                        .map(|item| vec![item])
                };
                match found {
                    Some(found)
                        if !found.is_empty()
                            && puts.takes_together(py, &found)
                            && items.try_reserve(found.len()).is_ok() =>
                    {
                        items.extend(found);
                    }
                    _ => return Ok(None),
                }
                counts.push(items.len() - before);
            }
        }
        let Some(appended) = puts.append(py, &items, false, false)? else { return Ok(None) };
        puts.note(py, called, items.len())?;
        count(Way::Sent, items.len());
        let (mut places, mut counts) = (&appended.places[..], counts.into_iter());
        let mut answers = Vec::with_capacity(runs.len());
        for run in &runs {
            let mut frames = Vec::new();
            for (request, _) in &run.get().requests {
                let (own, rest) = places.split_at(counts.next().expect("each request has a count"));
                places = rest;
                if !request.is_oneway {
                    self.add_answer(&mut frames, request, own, &appended);
                }
            }
            answers.push(PyBytes::new(py, &frames));
        }
        Ok(Some(answers))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.puts)?;
        visit.call(&self.topic_manager)
    }
}

impl KernelSends {
    /// Return what is kept of a request whose frame begins at *begin*; `None`: it is not usual.
    fn request(&self, sent: &SendRequest<'_>, begin: usize, born_host: Host, store_host: Host) -> Option<Request> {
        let is_taken = sent.queue_id >= 0
            && sent.sys_flag & INNER_BATCH_FLAG == 0
            && !sent.topic.starts_with(RETRY_PREFIX)
            && !(sent.is_batch && sent.topic.len() > BATCH_TOPIC_SIZE_MAX)
            && !self.refused_topics.iter().any(|refused| *refused == sent.topic);
        if !is_taken {
            return None;
        }
        let properties = sent.properties.as_bytes();
        let uniq_key = if sent.is_batch {
            added_properties(properties)?.uniq_key.unwrap_or_default()
        } else {
            // The broker makes the key of a message without one.
            plain_properties(properties)?.uniq_key?
        };
        if !uniq_key.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\') {
            return None;
        }
        let mut added = Vec::new();
        if sent.is_batch {
            added.extend_from_slice(properties);
            if !matches!(properties.last(), None | Some(2)) {
                added.push(2);
            }
            added.extend_from_slice(&self.added);
        }
        let mut sys_flag = sent.sys_flag & !(TRANSACTION_ROLLBACK_TYPE | BORN_HOST_V6_FLAG | STORE_HOST_V6_FLAG);
        for (host, flag) in [(born_host, BORN_HOST_V6_FLAG), (store_host, STORE_HOST_V6_FLAG)] {
            if host.stored().len() > IPV4_HOST_SIZE {
                sys_flag |= flag;
            }
        }
        Some(Request {
            begin,
            body_at: begin + sent.size - sent.body.len(),
            end: begin + sent.size,
            opaque: sent.opaque,
            is_oneway: sent.is_oneway,
            is_of_reput: sent.language == self.language,
            is_batch: sent.is_batch,
            topic: sent.topic.to_string(),
            queue_id: sent.queue_id,
            flag: sent.flag,
            head: Head {
                sys_flag,
                born_timestamp: Some(sent.born_timestamp),
                born_host,
                store_host,
                reconsume_times: sent.reconsume_times,
                prepared_transaction_offset: 0,
            },
            properties: sent.properties.to_string(),
            added,
            uniq_key: uniq_key.to_string(),
        })
    }

    /// Return the topic of a request; `None`: it does not exist, has no such queue, or was never put to.
    fn topic_of(&self, table: &Bound<'_, PyDict>, request: &Request) -> PyResult<Option<KnownTopic>> {
        let py = table.py();
        let name = PyString::new(py, &request.topic);
        let Some(config) = table.get_item(&name)? else { return Ok(None) };
        let mut queue_nums: i64 = config.getattr(intern!(py, "write_queue_nums"))?.extract()?;
        queue_nums = queue_nums.max(config.getattr(intern!(py, "read_queue_nums"))?.extract()?);
        if i64::from(request.queue_id) >= queue_nums {
            return Ok(None);
        }
        self.puts.get().topic_named(&name)
    }

    /// Add the frame of the answer to a request whose messages are stored at *places*.
    fn add_answer(&self, frames: &mut Vec<u8>, request: &Request, places: &[Place], appended: &Appended<'_>) {
        let host = self.puts.get().store_host();
        let mut header = String::from(r#"{"code":0,"extFields":{"msgId":""#);
        for (number, place) in places.iter().enumerate() {
            if number > 0 {
                header.push(',');
            }
            for byte in host.stored() {
                write!(header, "{byte:02X}").expect("memory takes it");
            }
            write!(header, "{:016X}", place.commit_log_offset).expect("memory takes it");
        }
        write!(
            header,
            r#"","queueId":"{}","queueOffset":"{}","transactionId":"{}",{}"#,
            request.queue_id, places[0].queue_offset, request.uniq_key, self.answer_fields
        )
        .expect("memory takes it");
        if request.is_of_reput {
            let sizes: Vec<String> = places.iter().map(|place| place.record_size.to_string()).collect();
            write!(header, r#","recordSizes":"{}","storeTimestamp":"{}""#, sizes.join(","), appended.store_timestamp)
                .expect("memory takes it");
        }
        write!(
            header,
            r#"}},"flag":1,"language":"{}","opaque":{}{}"#,
            self.language, request.opaque, self.answer_end
        )
        .expect("memory takes it");
        frames.extend_from_slice(&(4 + header.len() as u32).to_be_bytes());
        frames.extend_from_slice(&(header.len() as u32).to_be_bytes());
        frames.extend_from_slice(header.as_bytes());
    }
}
