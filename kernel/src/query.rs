//! Queries by key: the chain of one slot of the index, and the records that its entries lead to.
//!
//! `reput/store/index/index_layout.py` draws the file, `reput/store/index/index_chain.py` a chain.

use std::ops::RangeInclusive;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::index::{ENTRY_SIZE, HEADER_SIZE, SLOT_SIZE, key_hash};
use crate::log_rows::RowProperties;
use crate::reads::{Bounds, HEAD_SIZE, IPV6_HOSTS, OpenSegment, Place, RUN_SIZE_MAX, ReadRecord};
use crate::room::bytes;
use crate::store_files::StoreFiles;
use crate::stored::{Stored, field};

/// Entries of a chain that are read at once.
const SPAN: i32 = 16;
/// A query that follows more entries takes the Python path, which lets other threads run meanwhile.
const ENTRIES_MAX: usize = 4096;

/// One file of the index.
pub struct IndexFile {
    pub path: Py<PyString>,
    pub slot_count: i32,
    /// How many entries it takes. The next file is begun only then.
    pub entry_count: i32,
}

/// The fields of a file's header that a query needs.
struct Header {
    begin_timestamp: i64,
    end_timestamp: i64,
    begin_offset: i64,
    end_offset: i64,
    index_count: i32,
}

impl Header {
    fn read(data: &[u8]) -> Option<Header> {
        Some(Header {
            begin_timestamp: i64::from_be_bytes(field(data, 0)?),
            end_timestamp: i64::from_be_bytes(field(data, 8)?),
            begin_offset: i64::from_be_bytes(field(data, 16)?),
            end_offset: i64::from_be_bytes(field(data, 24)?),
            index_count: i32::from_be_bytes(field(data, 36)?),
        })
    }

    /// Tell whether *times* have all that the file has, and more before. The Python path looks closer at any others.
    fn is_within(&self, times: &RangeInclusive<i64>) -> bool {
        times.contains(&self.begin_timestamp) && *times.end() >= self.end_timestamp
    }
}

/// One entry of a chain.
struct Entry {
    key_hash: i32,
    commit_log_offset: i64,
    seconds: i32,
    previous: i32,
}

impl Entry {
    fn read(data: &[u8]) -> Option<Entry> {
        Some(Entry {
            key_hash: i32::from_be_bytes(field(data, 0)?),
            commit_log_offset: i64::from_be_bytes(field(data, 4)?),
            seconds: i32::from_be_bytes(field(data, 12)?),
            previous: i32::from_be_bytes(field(data, 16)?),
        })
    }
}

/// Where the entries of a file begin, and the place of one of them.
fn entry_at(slot_count: i32, number: i32) -> i64 {
    HEADER_SIZE as i64 + SLOT_SIZE as i64 * i64::from(slot_count) + ENTRY_SIZE as i64 * i64::from(number)
}

/// Give the offsets of the entries under the hash *wanted* to *take*, newest first, until it returns false.
///
/// *read* fills memory from a place of the file on, and tells whether it could. `None`: the chain contradicts itself,
/// the header or the *times*, is very long, or could not be read; or *take* has said `None`.
fn follow_chain(
    read: impl Fn(&mut [u8], i64) -> bool,
    slot_count: i32,
    wanted: i32,
    header: &Header,
    times: &RangeInclusive<i64>,
    mut take: impl FnMut(i64) -> Option<bool>,
) -> Option<()> {
    let slot = wanted.checked_rem(slot_count)?;
    let mut word = [0; SLOT_SIZE];
    if !read(&mut word, HEADER_SIZE as i64 + SLOT_SIZE as i64 * i64::from(slot)) {
        return None;
    }
    let mut number = i32::from_be_bytes(word);
    let mut span = [0; SPAN as usize * ENTRY_SIZE];
    // Number of the first entry in the span; none are in it.
    let mut first = i32::MAX;
    let mut last_offset = i64::MAX;
    for _ in 0..ENTRIES_MAX {
        if number == 0 {
            return Some(());
        }
        if number < 0 {
            return None;
        }
        if number < first {
            first = (number - SPAN + 1).max(1);
            let size = (number - first + 1) as usize * ENTRY_SIZE;
            if !read(&mut span[..size], entry_at(slot_count, first)) {
                return None;
            }
        }
        let entry = Entry::read(&span[(number - first) as usize * ENTRY_SIZE..])?;
        let offset = entry.commit_log_offset;
        let timestamp = i64::from(entry.seconds).checked_mul(1000)?.checked_add(header.begin_timestamp)?;
        let is_chain = entry.key_hash >= 0
            && entry.key_hash % slot_count == slot
            && (0..number).contains(&entry.previous)
            && (0..=last_offset).contains(&offset)
            && entry.seconds >= 0
            && (number >= header.index_count || (header.begin_offset..=header.end_offset).contains(&offset))
            && times.contains(&timestamp);
        if !is_chain || (entry.key_hash == wanted && !take(offset)?) {
            return if is_chain { Some(()) } else { None };
        }
        (last_offset, number) = (offset, entry.previous);
    }
    None
}

/// A query by key.
pub struct Query<'a, 'py> {
    pub topic: &'a str,
    pub key: &'a str,
    pub count_max: usize,
    /// Store times in ms.
    pub times: RangeInclusive<i64>,
    /// Entries of records from there on do not count yet.
    pub progress: i64,
    pub bounds: Bounds,
    pub files: StoreFiles<'a, 'py>,
}

impl<'py> Query<'_, 'py> {
    /// Return the newest records that have the key, in commit-log order. *files* come newest first.
    ///
    /// `None`: something is not plain. *is_unchanged* tells whether the index has no other files, *segment_at* returns the segment with the byte at a commit-log offset.
    pub fn find(
        &self,
        scratch: &mut Vec<u8>,
        files: &[IndexFile],
        is_unchanged: impl Fn() -> bool,
        mut segment_at: impl FnMut(i64) -> PyResult<Option<OpenSegment<'py>>>,
    ) -> PyResult<Option<Vec<ReadRecord>>> {
        let py = self.files.descriptors.py();
        let wanted = key_hash(self.topic, self.key).cast_signed();
        let mut seen: Vec<i64> = Vec::new();
        let mut found: Vec<ReadRecord> = Vec::new();
        if files.is_empty() && !is_unchanged() {
            return Ok(None);
        }
        for file in files {
            let path = file.path.bind(py);
            let read = |target: &mut [u8], at: i64| matches!(self.files.read(path, target, at), Ok(true));
            let mut data = [0; HEADER_SIZE];
            if !read(&mut data, 0) {
                return Ok(None);
            }
            let Some(header) = Header::read(&data) else { return Ok(None) };
            // A file may have come after the newest one only if that is full.
            let is_newest = std::ptr::eq(file, &files[0]);
            if is_newest && header.index_count >= file.entry_count && !is_unchanged() {
                return Ok(None);
            }
            if header.index_count <= 1 || !header.is_within(&self.times) {
                return Ok(None);
            }
            let mut error = None;
            let is_followed = follow_chain(read, file.slot_count, wanted, &header, &self.times, |offset| {
                if offset >= self.progress || offset < self.bounds.log_min || seen.contains(&offset) {
                    return Some(true);
                }
                match self.record_at(scratch, offset, &mut segment_at) {
                    Ok(record) => found.push(record?),
                    Err(raised) => {
                        error = Some(raised);
                        return None;
                    }
                }
                seen.push(offset);
                Some(seen.len() < self.count_max)
            });
            if let Some(error) = error {
                return Err(error);
            }
            // Zeros of a file that was cut short look like the end of a chain.
            if is_followed.is_none() || !self.files.is_whole(path)? {
                return Ok(None);
            }
            if seen.len() >= self.count_max {
                break;
            }
        }
        found.sort_by_key(|record| record.place.commit_log_offset);
        Ok(Some(found))
    }

    /// Return the record there; `None`: it is not a whole one with the key and hosts of IPv4.
    fn record_at(
        &self,
        scratch: &mut Vec<u8>,
        offset: i64,
        segment_at: &mut impl FnMut(i64) -> PyResult<Option<OpenSegment<'py>>>,
    ) -> PyResult<Option<ReadRecord>> {
        let Some((path, begin)) = segment_at(offset)? else { return Ok(None) };
        let read = self.files.read_record(&path, scratch, offset - begin, RUN_SIZE_MAX)?;
        let Some(size) = read else { return Ok(None) };
        let data = &scratch[..size];
        let py = self.files.descriptors.py();
        let Some((place, body_end)) = self.is_wanted(data, offset) else { return Ok(None) };
        let Ok(data) = bytes(py, data) else { return Ok(None) };
        Ok(Some(ReadRecord { place, run: data.unbind(), at: 0, body_end }))
    }

    /// Return place and end of the body if *data* is the record at *offset*, and has topic and key.
    fn is_wanted(&self, data: &[u8], offset: i64) -> Option<(Place, usize)> {
        let stored = Stored::read(data).filter(|stored| stored.data.len() == data.len())?;
        let properties = RowProperties::find(stored.properties)?;
        let key = self.key.as_bytes();
        let has_key = properties.uniq_key == key || properties.keys.split(|byte| *byte == b' ').any(|own| own == key);
        let is_plain = has_key
            && stored.topic == self.topic.as_bytes()
            && stored.sys_flag() & IPV6_HOSTS == 0
            && stored.commit_log_offset() == offset
            && (offset >= self.bounds.own_from || stored.body_has_its_crc());
        let place = Place {
            queue_offset: stored.queue_offset(),
            commit_log_offset: offset,
            record_size: i32::try_from(data.len()).ok()?,
        };
        is_plain.then_some((place, HEAD_SIZE + stored.body.len()))
    }
}

#[cfg(test)]
pub use tests::{index_file, offsets_in};

#[cfg(test)]
mod tests {
    use super::*;

    const SLOTS: i32 = 4;

    /// Return a file with these entries: hash, offset, previous; the slot of hash 1 leads to the last one.
    pub fn index_file(entries: &[(i32, i64, i32)]) -> Vec<u8> {
        let mut data = vec![0; HEADER_SIZE + SLOT_SIZE * SLOTS as usize + ENTRY_SIZE];
        data[HEADER_SIZE + SLOT_SIZE..HEADER_SIZE + 2 * SLOT_SIZE].copy_from_slice(&(entries.len() as i32).to_be_bytes());
        for (key_hash, offset, previous) in entries {
            data.extend_from_slice(&key_hash.to_be_bytes());
            data.extend_from_slice(&offset.to_be_bytes());
            data.extend_from_slice(&0i32.to_be_bytes());
            data.extend_from_slice(&previous.to_be_bytes());
        }
        data
    }

    /// Return the offsets under the hash 1.
    pub fn offsets_in(data: &[u8]) -> Option<Vec<i64>> {
        let header =
            Header { begin_timestamp: 7, end_timestamp: 7, begin_offset: 0, end_offset: 1000, index_count: 1000 };
        let read = |target: &mut [u8], at: i64| {
            let Some(part) = usize::try_from(at).ok().and_then(|at| data.get(at..at + target.len())) else {
                return false;
            };
            target.copy_from_slice(part);
            true
        };
        let mut taken = Vec::new();
        let followed = follow_chain(read, SLOTS, 1, &header, &(0..=i64::MAX), |offset| {
            taken.push(offset);
            Some(true)
        });
        followed.map(|()| taken)
    }

    #[test]
    fn a_chain_is_followed_to_its_begin() {
        let entries: Vec<_> =
            (0..40).map(|number| (if number % 3 == 0 { 5 } else { 1 }, i64::from(number), number)).collect();
        let own: Vec<i64> = (0..40).rev().filter(|number| number % 3 != 0).collect();
        assert_eq!(offsets_in(&index_file(&entries)), Some(own));
    }

    #[test]
    fn a_damaged_chain_is_none() {
        for broken in [(2, 5, 1), (-3, 5, 1), (1, 5, 2), (1, 5, -1), (1, -1, 1), (1, 1001, 1)] {
            assert_eq!(offsets_in(&index_file(&[(1, 3, 0), broken])), None, "{broken:?}");
        }
        // An entry of a later record than the one that leads to it.
        assert_eq!(offsets_in(&index_file(&[(1, 9, 0), (1, 5, 1)])), None);
        assert_eq!(offsets_in(&index_file(&[(1, 3, 0), (1, 5, 1)])), Some(vec![5, 3]));
    }

    #[test]
    fn no_bytes_make_a_panic() {
        let data = index_file(&[(1, 3, 0), (1, 5, 1), (5, 7, 2)]);
        for at in 0..data.len() {
            for byte in 0..=255 {
                let mut damaged = data.clone();
                damaged[at] = byte;
                offsets_in(&damaged);
            }
            offsets_in(&data[..at]);
        }
    }
}
