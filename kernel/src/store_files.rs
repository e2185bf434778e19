//! Open files of a store, read from memory alone: those that are read often through mappings, the others by system calls.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::Mutex;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::cached_file::{read_cached, read_some_cached};
use crate::mapping::{MAPPINGS_MAX, Mapping};
use crate::memory::monotonic_seconds;
use crate::stored::field;

/// Mostly a whole record.
const FIRST_READ_SIZE: usize = 2048;
/// Files whose reads are counted. It bounds the table, not what can be read.
const COUNTED_MAX: usize = 1024;

/// One file: its path, how often it was read by system calls, and its mapping.
struct Counted {
    path: Py<PyString>,
    reads: u32,
    mapping: Option<Mapping>,
}

/// The mappings of one reader. Never locked while Python code may run.
pub struct MappedFiles {
    /// By the address of the path's object, which lives as long as the entry.
    files: Mutex<HashMap<usize, Counted>>,
    /// A file is mapped after so many reads.
    map_after: u32,
}

impl MappedFiles {
    /// Have no mappings yet.
    pub fn new(map_after: u32) -> MappedFiles {
        MappedFiles { files: Mutex::default(), map_after }
    }

    /// Give up the mapping of a file that is closed.
    pub fn close(&self, py: Python<'_>, path: &str) {
        if let Ok(mut files) = self.files.lock() {
            files.retain(|_, file| file.path.bind(py).to_str().is_ok_and(|own| own != path));
        }
    }
}

/// Have *scratch* at least as large as *size*; false: there is no memory.
pub fn grow(scratch: &mut Vec<u8>, size: usize) -> bool {
    if let Some(more) = size.checked_sub(scratch.len()) {
        if scratch.try_reserve(more).is_err() {
            return false;
        }
        scratch.resize(size, 0);
    }
    true
}

/// The open files of a store.
#[derive(Clone, Copy)]
pub struct StoreFiles<'a, 'py> {
    /// Descriptors by path.
    pub descriptors: &'a Bound<'py, PyDict>,
    /// `None`: all reads are system calls.
    pub mapped: Option<&'a MappedFiles>,
}

impl<'py> StoreFiles<'_, 'py> {
    /// Return the descriptor of an open file.
    ///
    /// Until other Python code runs, nobody closes the file.
    fn descriptor(&self, path: &Bound<'py, PyString>) -> PyResult<Option<RawFd>> {
        self.descriptors.get_item(path)?.map(|descriptor| descriptor.extract()).transpose()
    }

    /// Fill *target* with the bytes of a file from *at* on; false: it is not open, or they are not all in memory.
    ///
    /// What lies behind the end of a file that was cut short may read as zeros: see `is_whole`.
    pub fn read(&self, path: &Bound<'py, PyString>, target: &mut [u8], at: i64) -> PyResult<bool> {
        if self.read_mapped(path, target, at)? {
            return Ok(true);
        }
        let Some(descriptor) = self.descriptor(path)? else { return Ok(false) };
        Ok(read_cached(descriptor, target, at))
    }

    /// Like `read`, for records of the log. They are as they were written, also if the file was cut short.
    pub fn read_records(&self, path: &Bound<'py, PyString>, target: &mut [u8], at: i64) -> PyResult<bool> {
        if self.read_mapped(path, target, at)? && target.last() != Some(&0) {
            return Ok(true);
        }
        // Hardly any record ends with a zero; one that was cut short does.
        let Some(descriptor) = self.descriptor(path)? else { return Ok(false) };
        Ok(read_cached(descriptor, target, at))
    }

    /// Return *size* bytes of records as `read_records` does; `None`: it is false, or there is no memory.
    pub fn records(&self, path: &Bound<'py, PyString>, at: i64, size: usize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let py = path.py();
        if let Some(found) = self.mapped(path, |mapping, now| mapping.bytes(py, at, size, now))?
            && found.as_bytes().last() != Some(&0)
        {
            return Ok(Some(found));
        }
        let Some(descriptor) = self.descriptor(path)? else { return Ok(None) };
        let mut is_read = false;
        let found = PyBytes::new_with(py, size, |target| {
            is_read = read_cached(descriptor, target, at);
            Ok(())
        });
        Ok(found.ok().filter(|_| is_read))
    }

    /// Read the record that begins at *at*, of *size_max* bytes at most, into *scratch*, and return its size; `None`: it
    /// is larger, or has no size, or is not all in memory.
    pub fn read_record(
        &self,
        path: &Bound<'py, PyString>,
        scratch: &mut Vec<u8>,
        at: i64,
        size_max: usize,
    ) -> PyResult<Option<usize>> {
        let mut word = [0; 4];
        let is_mapped = self.read_mapped(path, &mut word, at)?;
        let mut count = 0;
        if !is_mapped {
            let Some(descriptor) = self.descriptor(path)? else { return Ok(None) };
            if !grow(scratch, FIRST_READ_SIZE) {
                return Ok(None);
            }
            count = read_some_cached(descriptor, &mut scratch[..FIRST_READ_SIZE], at).unwrap_or(0);
            word = field(&scratch[..count], 0).unwrap_or_default();
        }
        let size = usize::try_from(i32::from_be_bytes(word)).ok().filter(|size| (1..=size_max).contains(size));
        let Some(size) = size else { return Ok(None) };
        if size > count {
            if !grow(scratch, size) || !self.read_records(path, &mut scratch[..size], at)? {
                return Ok(None);
            }
        }
        Ok(Some(size))
    }

    /// Like `read`, but only through a mapping.
    fn read_mapped(&self, path: &Bound<'py, PyString>, target: &mut [u8], at: i64) -> PyResult<bool> {
        Ok(self.mapped(path, |mapping, now| mapping.read(target, at, now).then_some(()))?.is_some())
    }

    /// Return what *read* makes of the mapping of a file in this second; `None`: it makes nothing, or there is no mapping
    /// yet. It cannot run Python code.
    fn mapped<R>(
        &self,
        path: &Bound<'py, PyString>,
        read: impl FnOnce(&Mapping, u64) -> Option<R>,
    ) -> PyResult<Option<R>> {
        let Some(mapped) = self.mapped else { return Ok(None) };
        let key = path.as_ptr() as usize;
        let reads = {
            let Ok(mut files) = mapped.files.lock() else { return Ok(None) };
            if files.len() >= COUNTED_MAX && !files.contains_key(&key) {
                // Files that are read often stay mapped.
                files.retain(|_, file| file.mapping.is_some());
            }
            let file =
                files.entry(key).or_insert_with(|| Counted { path: path.clone().unbind(), reads: 0, mapping: None });
            if let Some(mapping) = &file.mapping {
                let found = read(mapping, monotonic_seconds());
                if mapping.is_broken() {
                    (file.mapping, file.reads) = (None, 0);
                }
                return Ok(found);
            }
            file.reads += 1;
            file.reads
        };
        if reads <= mapped.map_after {
            return Ok(None);
        }
        let Some(descriptor) = self.descriptor(path)? else { return Ok(None) };
        let mapping = Mapping::of(descriptor);
        let Ok(mut files) = mapped.files.lock() else { return Ok(None) };
        if mapping.is_none() && files.values().filter(|file| file.mapping.is_some()).count() >= MAPPINGS_MAX / 2 {
            // Others may be read more often now.
            files.clear();
        }
        if let Some(file) = files.get_mut(&key) {
            (file.mapping, file.reads) = (mapping, 0);
        }
        Ok(None)
    }

    /// Tell whether the file has the size that it was mapped with. If it was not mapped, its reads tell it.
    pub fn is_whole(&self, path: &Bound<'py, PyString>) -> PyResult<bool> {
        let Some(mapped) = self.mapped else { return Ok(true) };
        let Some(descriptor) = self.descriptor(path)? else { return Ok(false) };
        let Ok(files) = mapped.files.lock() else { return Ok(false) };
        let mapping = files.get(&(path.as_ptr() as usize)).and_then(|file| file.mapping.as_ref());
        Ok(mapping.is_none_or(|mapping| mapping.has_its_size(descriptor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_leaves_all_as_it_was() {
        let mut scratch = vec![7; 3];
        assert!(!grow(&mut scratch, 1 << 62));
        assert_eq!(scratch, [7; 3]);
        assert!(grow(&mut scratch, 5) && grow(&mut scratch, 2));
        assert_eq!(scratch, [7, 7, 7, 0, 0]);
    }
}
