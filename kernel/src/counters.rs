//! Counts the messages that the kernel has put, for tests and for checking whether the kernel is in use.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// The call through which a message was put.
#[derive(Clone, Copy)]
pub enum Way {
    /// `put`.
    Put,
    /// `put_batch`.
    PutBatch,
    /// Messages of an event loop's tasks.
    PutEach,
    /// A batch from a client.
    SentBatch,
    /// A request of a client, from its frame on.
    Sent,
    /// A batch of rows for the index.
    Index,
    /// A batch of rows for the consume queues.
    ConsumeQueue,
    /// A read of a consume queue.
    Read,
    /// Bytes of the log made rows.
    Scan,
    /// Records located in bytes of the log.
    Locate,
    /// Records compared with their CRC.
    Check,
    /// A read of a consume queue that Python had no part in.
    Get,
    /// A query by key.
    Query,
    /// A message for a consumer.
    Receive,
    /// A message that a consumer has acknowledged.
    Acknowledge,
    /// A body of JSON made columns.
    Json,
    /// A record whose property became part of a column.
    Property,
}

const NAMES: [&str; 17] = [
    "put",
    "put_batch",
    "put_each",
    "sent_batch",
    "sent",
    "index",
    "consume_queue",
    "read",
    "scan",
    "locate",
    "check",
    "get",
    "query",
    "receive",
    "acknowledge",
    "json",
    "property",
];
static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Count *messages* that were put through one kind of call.
pub fn count(way: Way, messages: usize) {
    COUNTS[way as usize].fetch_add(messages as u64, Ordering::Relaxed);
}

/// Return how many messages of this process the kernel has put, by kind of call.
#[pyfunction]
pub fn counts(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let counts = PyDict::new(py);
    for (name, count) in NAMES.iter().zip(&COUNTS) {
        counts.set_item(name, count.load(Ordering::Relaxed))?;
    }
    Ok(counts)
}
