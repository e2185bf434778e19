//! Bytes of the log as dispatch rows, for dispatchers that read it.
//!
//! `LogScan` of `reput/store/log/log_scan.py` makes the same rows with numpy; `reput_hooks/dispatch.py` draws them.

use std::collections::HashMap;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::counters::{Way, count};
use crate::index::continued_hash;
use crate::memory::with_bytes;
use crate::record::ROW_SIZE;
use crate::room::bytes;
use crate::stored::Stored;

/// Of its records, the tags code is the time of their delivery.
const SCHEDULE_TOPIC: &[u8] = b"SCHEDULE_TOPIC_XXXX";
const PROPERTY_END: u8 = 2;
const NAME_END: u8 = 1;

/// The properties that a row needs. Empty: the record has none.
#[derive(Default)]
pub struct RowProperties<'a> {
    pub tags: &'a [u8],
    pub keys: &'a [u8],
    pub uniq_key: &'a [u8],
}

impl<'a> RowProperties<'a> {
    /// Find them; `None`: the record stands in further queues.
    ///
    /// A name ends at the first 0x01. A property without a value does not count; of two equal names the later holds.
    pub fn find(properties: &'a [u8]) -> Option<RowProperties<'a>> {
        let mut found = RowProperties::default();
        for property in properties.split(|byte| *byte == PROPERTY_END) {
            let Some(name_end) = property.iter().position(|byte| *byte == NAME_END) else { continue };
            let (name, value) = (&property[..name_end], &property[name_end + 1..]);
            if value.is_empty() {
                continue;
            }
            match name {
                b"TAGS" => found.tags = value,
                b"KEYS" => found.keys = value,
                b"UNIQ_KEY" => found.uniq_key = value,
                b"INNER_MULTI_DISPATCH" => return None,
                _ => {}
            }
        }
        Some(found)
    }
}

/// Return the bytes of a size, or of -1 for none.
fn size_or_none(text: &[u8], without: i16) -> [u8; 2] {
    // Properties have at most 32,767 bytes.
    if text.is_empty() { without } else { text.len() as i16 }.to_le_bytes()
}

/// Queues, rows and texts, as `DispatchColumns` has them; the end of the last record in the data; its store time.
type LogRows<'py> = (Vec<(String, i32)>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize, i64);

/// Return the rows of the records that *data* begins with, whose first byte has this offset in the log.
///
/// *verify*: a record without its CRC is none. *with_properties*: the texts contain the raw properties.
///
/// The rows end before the first record that is not plain: a delayed one, one that stands in further queues, or none at
/// all. None: it is the first one, and the Python path looks at it.
#[pyfunction]
pub fn log_rows<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    commit_log_offset: i64,
    verify: bool,
    with_properties: bool,
) -> Option<LogRows<'py>> {
    let found = with_bytes(py, &data, |log| PlainRows::find(log, commit_log_offset, verify, with_properties))?;
    let (rows, texts) = (bytes(py, &found.rows).ok()?, bytes(py, &found.texts).ok()?);
    count(Way::Scan, found.rows.len() / ROW_SIZE);
    Some((found.queues, rows, texts, found.end, found.store_timestamp))
}

/// What `log_rows` returns.
struct PlainRows {
    queues: Vec<(String, i32)>,
    rows: Vec<u8>,
    texts: Vec<u8>,
    end: usize,
    store_timestamp: i64,
}

impl PlainRows {
    /// Return the rows of the records that *log* begins with; the arguments are those of `log_rows`.
    fn find(log: &[u8], commit_log_offset: i64, verify: bool, with_properties: bool) -> Option<PlainRows> {
        let mut numbers: HashMap<(&[u8], i32), i32> = HashMap::new();
        let mut queues: Vec<(&[u8], i32)> = Vec::new();
        let mut last_number = 0;
        let (mut rows, mut texts) = (Vec::new(), Vec::new());
        let (mut at, mut store_timestamp) = (0, 0);
        while let Some(stored) = Stored::read(&log[at..]) {
            if stored.commit_log_offset() != commit_log_offset.wrapping_add(at as i64)
                || stored.topic == SCHEDULE_TOPIC
                || (verify && !stored.has_its_crc())
            {
                break;
            }
            let Some(found) = RowProperties::find(stored.properties) else { break };
            let queue = (stored.topic, stored.queue_id());
            // Neighbours are often in the same queue.
            if queues.get(last_number as usize) != Some(&queue) {
                last_number = *numbers.entry(queue).or_insert_with(|| {
                    queues.push(queue);
                    queues.len() as i32 - 1
                });
            }
            let texts_begin = texts.len();
            let own_texts = [found.uniq_key, found.keys, if with_properties { stored.properties } else { b"" }, found.tags];
            let size: usize = own_texts.iter().map(|text| text.len()).sum();
            if rows.try_reserve(ROW_SIZE).is_err() || texts.try_reserve(size).is_err() {
                return None;
            }
            own_texts.iter().for_each(|text| texts.extend_from_slice(text));
            store_timestamp = stored.store_timestamp();
            let tags_code = i64::from(continued_hash(0, found.tags).cast_signed());
            let without_keys = if stored.properties.is_empty() { 0 } else { -1 };
            let properties_size = if with_properties { stored.properties.len() as i16 } else { -1 };
            let mut row = [0; ROW_SIZE];
            row[0..8].copy_from_slice(&stored.commit_log_offset().to_le_bytes());
            row[8..16].copy_from_slice(&stored.queue_offset().to_le_bytes());
            row[16..24].copy_from_slice(&tags_code.to_le_bytes());
            row[24..32].copy_from_slice(&store_timestamp.to_le_bytes());
            row[32..40].copy_from_slice(&stored.prepared_transaction_offset().to_le_bytes());
            row[40..44].copy_from_slice(&(stored.data.len() as i32).to_le_bytes());
            row[44..48].copy_from_slice(&last_number.to_le_bytes());
            row[48..52].copy_from_slice(&stored.sys_flag().to_le_bytes());
            row[52..56].copy_from_slice(&((texts.len() - texts_begin) as i32).to_le_bytes());
            row[56..58].copy_from_slice(&size_or_none(found.uniq_key, -1));
            row[58..60].copy_from_slice(&size_or_none(found.keys, without_keys));
            row[60..62].copy_from_slice(&(-1i16).to_le_bytes());
            row[62..64].copy_from_slice(&properties_size.to_le_bytes());
            rows.extend_from_slice(&row);
            at += stored.data.len();
        }
        if at == 0 {
            return None;
        }
        let queues = queues.iter().map(|(topic, queue_id)| (String::from_utf8_lossy(topic).into_owned(), *queue_id));
        Some(PlainRows { queues: queues.collect(), rows, texts, end: at, store_timestamp })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_properties_holds_and_an_empty_one_does_not_count() {
        let found = RowProperties::find(b"TAGS\x01a\x02TAGS\x01b\x01c\x02TAGS\x01\x02KEYS\x02\x01KEYS\x01k").unwrap();
        assert_eq!((found.tags, found.keys, found.uniq_key), (&b"b\x01c"[..], &b""[..], &b""[..]));
        assert!(RowProperties::find(b"INNER_MULTI_DISPATCH\x01a,b").is_none());
        assert!(RowProperties::find(b"INNER_MULTI_DISPATCH\x01").is_some());
        assert!(RowProperties::find(b"").unwrap().tags.is_empty());
    }
}
