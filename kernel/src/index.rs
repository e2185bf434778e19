//! The key index: the keys of a batch and their hashes, and their entries in one file.
//!
//! `reput/store/index/index_layout.py` draws the file.

use std::collections::TryReserveError;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::counters::{Way, count};
use crate::memory::SharedMemory;
use crate::record::string_hash;
use crate::room::{bytes, no_memory, vec_of};
use crate::rows::Columns;

/// Of a record that was rolled back; it has no key.
const ROLLED_BACK: i32 = 0x3 << 2;
pub const HEADER_SIZE: usize = 40;
pub const SLOT_SIZE: usize = 4;
pub const ENTRY_SIZE: usize = 20;
/// A key between the two functions: hash, commit-log offset and store time, little-endian.
const KEY_SIZE: usize = 20;
/// Below this, a look through all entries of the call is less than a table of them.
const FEW_KEYS: usize = 16;

/// Continue the hash of a text, Java's `String.hashCode`, with UTF-8 bytes; broken ones count as U+FFFD.
pub fn continued_hash(hash: u32, text: &[u8]) -> u32 {
    if text.is_ascii() {
        return text.iter().fold(hash, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    }
    String::from_utf8_lossy(text)
        .encode_utf16()
        .fold(hash, |hash, unit| hash.wrapping_mul(31).wrapping_add(u32::from(unit)))
}

/// Return the hash of an entry: never negative.
fn entry_hash(prefix: u32, key: &[u8]) -> u32 {
    let hash = continued_hash(prefix, key).cast_signed().unsigned_abs();
    if hash > i32::MAX as u32 { 0 } else { hash }
}

/// Return the hash of the entries of a key of a topic.
pub fn key_hash(topic: &str, key: &str) -> u32 {
    entry_hash(Prefixes::of(topic).keys, key.as_bytes())
}

/// The hashes of what stands before the keys and the tags of one topic: `topic#`, `topic#T#`.
struct Prefixes {
    keys: u32,
    tags: u32,
}

impl Prefixes {
    fn of(topic: &str) -> Prefixes {
        let keys = continued_hash(string_hash(topic).cast_unsigned(), b"#");
        Prefixes { keys, tags: continued_hash(keys, b"T#") }
    }
}

/// Return the keys of all rows of *parts*, for `put_index_keys`, and whether the last key is of the last row.
///
/// None: the rows are of another form, and take the Python path.
#[pyfunction]
pub fn index_keys<'py>(parts: &Bound<'py, PyAny>, with_tags: bool) -> PyResult<Option<(Bound<'py, PyBytes>, bool)>> {
    let Some(all) = Columns::read_all(parts)? else { return Ok(None) };
    let row_sum = all.iter().map(Columns::row_count).sum::<usize>();
    let Ok(mut keys) = vec_of::<u8>(row_sum * KEY_SIZE) else { return Ok(None) };
    let mut has_room = true;
    let mut row_count = 0;
    let mut ends_batch = false;
    for columns in &all {
        let Some(queues) = columns.queues() else { return Ok(None) };
        let mut prefixes = Vec::with_capacity(queues.len());
        for queue in queues {
            let topic = queue.get_item(0)?.cast_into::<PyString>()?;
            // An error: it has a lone surrogate.
            let Ok(topic) = topic.to_str() else { return Ok(None) };
            prefixes.push(Prefixes::of(topic));
        }
        for row in columns.rows() {
            let Some(texts) = row.split_texts() else { return Ok(None) };
            row_count += 1;
            ends_batch = false;
            if row.sys_flag() & ROLLED_BACK == ROLLED_BACK {
                continue;
            }
            let prefix = &prefixes[row.queue_index()];
            let mut add = |hash: u32| {
                has_room &= keys.try_reserve(KEY_SIZE).is_ok();
                if !has_room {
                    return;
                }
                keys.extend_from_slice(&hash.to_le_bytes());
                keys.extend_from_slice(&row.commit_log_offset().to_le_bytes());
                keys.extend_from_slice(&row.store_timestamp().to_le_bytes());
                ends_batch = true;
            };
            if let Some(uniq_key) = texts.uniq_key {
                add(entry_hash(prefix.keys, uniq_key));
            }
            for key in texts.keys.unwrap_or(b"").split(|byte| *byte == b' ').filter(|key| !key.is_empty()) {
                add(entry_hash(prefix.keys, key));
            }
            if with_tags && let Some(tags) = texts.tags {
                add(entry_hash(prefix.tags, tags));
            }
        }
    }
    let Some(keys) = bytes(parts.py(), &keys).ok().filter(|_| has_room) else { return Ok(None) };
    count(Way::Index, row_count);
    Ok(Some((keys, ends_batch)))
}

/// The fields of an index file's header.
#[derive(Clone, Copy)]
struct IndexHeader {
    begin_timestamp: i64,
    end_timestamp: i64,
    begin_offset: i64,
    end_offset: i64,
    hash_slot_count: i32,
    index_count: i32,
}

impl IndexHeader {
    fn read(header: &Bound<'_, PyAny>) -> PyResult<IndexHeader> {
        let py = header.py();
        Ok(IndexHeader {
            begin_timestamp: header.getattr(intern!(py, "begin_timestamp"))?.extract()?,
            end_timestamp: header.getattr(intern!(py, "end_timestamp"))?.extract()?,
            begin_offset: header.getattr(intern!(py, "begin_offset"))?.extract()?,
            end_offset: header.getattr(intern!(py, "end_offset"))?.extract()?,
            hash_slot_count: header.getattr(intern!(py, "hash_slot_count"))?.extract()?,
            index_count: header.getattr(intern!(py, "index_count"))?.extract()?,
        })
    }

    fn assign(&self, header: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = header.py();
        header.setattr(intern!(py, "begin_timestamp"), self.begin_timestamp)?;
        header.setattr(intern!(py, "end_timestamp"), self.end_timestamp)?;
        header.setattr(intern!(py, "begin_offset"), self.begin_offset)?;
        header.setattr(intern!(py, "end_offset"), self.end_offset)?;
        header.setattr(intern!(py, "hash_slot_count"), self.hash_slot_count)?;
        header.setattr(intern!(py, "index_count"), self.index_count)
    }

    fn packed(&self) -> [u8; HEADER_SIZE] {
        let mut data = [0; HEADER_SIZE];
        data[0..8].copy_from_slice(&self.begin_timestamp.to_be_bytes());
        data[8..16].copy_from_slice(&self.end_timestamp.to_be_bytes());
        data[16..24].copy_from_slice(&self.begin_offset.to_be_bytes());
        data[24..32].copy_from_slice(&self.end_offset.to_be_bytes());
        data[32..36].copy_from_slice(&self.hash_slot_count.to_be_bytes());
        data[36..40].copy_from_slice(&self.index_count.to_be_bytes());
        data
    }

    /// What an entry says of its record's store time.
    fn seconds(&self, store_timestamp: i64) -> i32 {
        if self.begin_timestamp <= 0 {
            return 0;
        }
        let seconds = store_timestamp.saturating_sub(self.begin_timestamp).max(0) / 1000;
        i32::try_from(seconds).unwrap_or(i32::MAX)
    }
}

/// The newest entry of each slot, among those of one call.
struct NewestEntries {
    /// (slot, number); number 0: free. A power of two, at least twice as many as entries.
    places: Vec<(u32, u32)>,
    /// In place of the table, if there are few.
    is_list: bool,
}

impl NewestEntries {
    fn new(key_count: usize) -> Result<NewestEntries, TryReserveError> {
        if key_count < FEW_KEYS {
            return Ok(NewestEntries { places: vec_of(key_count)?, is_list: true });
        }
        let size = (2 * key_count).next_power_of_two();
        let mut places = vec_of(size)?;
        places.resize(size, (0, 0));
        Ok(NewestEntries { places, is_list: false })
    }

    /// Set the newest entry of *slot*, and return the one before; 0: there is none.
    fn replace(&mut self, slot: u32, number: u32) -> u32 {
        if self.is_list {
            if let Some(place) = self.places.iter_mut().find(|place| place.0 == slot) {
                return std::mem::replace(&mut place.1, number);
            }
            self.places.push((slot, number));
            return 0;
        }
        let mask = self.places.len() - 1;
        // Fibonacci hashing: slots of one batch may be neighbours.
        let mut at = (u64::from(slot).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize & mask;
        loop {
            let place = &mut self.places[at];
            if place.1 == 0 {
                *place = (slot, number);
                return 0;
            }
            if place.0 == slot {
                return std::mem::replace(&mut place.1, number);
            }
            at = (at + 1) & mask;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.places.iter().copied().filter(|place| place.1 != 0)
    }
}

/// Add *count* keys from number *first* on of *keys*, for which there is room, to the file mapped as *memory*.
///
/// *header* is the file's, an `IndexHeader`, and is changed. Entries are written first, then the header, then the slots,
/// as readers expect it.
#[pyfunction]
pub fn put_index_keys(
    memory: &Bound<'_, PyAny>,
    slot_count: u32,
    entry_count: u32,
    header: &Bound<'_, PyAny>,
    keys: &[u8],
    first: usize,
    count: usize,
) -> PyResult<()> {
    let mut now = IndexHeader::read(header)?;
    let memory = SharedMemory::of(memory)?;
    let entries_at = HEADER_SIZE + SLOT_SIZE * slot_count as usize;
    let (whole, rest) = keys.as_chunks::<KEY_SIZE>();
    let keys = first.checked_add(count).and_then(|end| whole.get(first..end)).filter(|_| rest.is_empty());
    let begin = u32::try_from(now.index_count).ok().filter(|begin| *begin > 0);
    let end = begin.and_then(|begin| begin.checked_add(u32::try_from(count).ok()?));
    let (Some(keys), Some(begin), Some(end)) = (keys, begin, end) else {
        return Err(PyValueError::new_err(format!("no such keys, or no such header: first={first} count={count}")));
    };
    let file_size = entries_at + ENTRY_SIZE * entry_count as usize;
    if slot_count == 0 || end > entry_count || end > i32::MAX as u32 || !memory.has(0, file_size) {
        return Err(PyValueError::new_err(format!(
            "the keys do not fit the index file: first={begin} count={count} entry_count={entry_count}"
        )));
    }
    if keys.is_empty() {
        return Ok(());
    }
    let mut newest = NewestEntries::new(count).map_err(no_memory)?;
    let mut entries: Vec<u8> = vec_of(count * ENTRY_SIZE).map_err(no_memory)?;
    for (key, number) in keys.iter().zip(begin..) {
        let hash = u32::from_le_bytes(key[..4].try_into().expect("four bytes"));
        let commit_log_offset = i64::from_le_bytes(key[4..12].try_into().expect("eight bytes"));
        let store_timestamp = i64::from_le_bytes(key[12..].try_into().expect("eight bytes"));
        let slot = hash % slot_count;
        let mut previous = newest.replace(slot, number);
        if previous == 0 {
            let found = u32::from_be_bytes(memory.read_word(HEADER_SIZE + SLOT_SIZE * slot as usize));
            // A crash may have left anything else.
            previous = if found < begin { found } else { 0 };
            now.hash_slot_count += i32::from(previous == 0);
        }
        entries.extend_from_slice(&hash.to_be_bytes());
        entries.extend_from_slice(&commit_log_offset.to_be_bytes());
        entries.extend_from_slice(&now.seconds(store_timestamp).to_be_bytes());
        entries.extend_from_slice(&previous.to_be_bytes());
        if number == 1 {
            (now.begin_offset, now.begin_timestamp) = (commit_log_offset, store_timestamp);
        }
        (now.end_offset, now.end_timestamp) = (commit_log_offset, store_timestamp);
    }
    now.index_count = end.cast_signed();
    memory.write(entries_at + ENTRY_SIZE * begin as usize, &entries);
    memory.write_next(0, &now.packed());
    for (slot, number) in newest.iter() {
        memory.write_word(HEADER_SIZE + SLOT_SIZE * slot as usize, number.to_be_bytes());
    }
    drop(memory);
    now.assign(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_key_is_that_of_java() {
        let prefixes = Prefixes::of("orders");
        assert_eq!(entry_hash(prefixes.keys, b"order-1"), string_hash("orders#order-1").unsigned_abs());
        assert_eq!(entry_hash(prefixes.tags, "grün😀".as_bytes()), string_hash("orders#T#grün😀").unsigned_abs());
        assert_eq!(entry_hash(prefixes.keys, b"\xff"), string_hash("orders#\u{FFFD}").unsigned_abs());
    }

    #[test]
    fn the_newest_entry_of_a_slot_replaces_the_one_before() {
        for key_count in [3, 300] {
            let mut newest = NewestEntries::new(key_count).unwrap();
            assert_eq!(newest.replace(0, 1), 0);
            assert_eq!(newest.replace(7, 2), 0);
            assert_eq!(newest.replace(0, 3), 1);
            let mut all: Vec<_> = newest.iter().collect();
            all.sort_unstable();
            assert_eq!(all, [(0, 3), (7, 2)]);
        }
    }
}
