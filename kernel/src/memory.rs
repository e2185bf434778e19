//! The memory that puts write to: the mapping of the log's last segment. The one module with unsafe code.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::record::SIZE_WORD;

/// A word that may lie anywhere.
#[repr(C, packed)]
struct Word(u32);

/// Writable bytes that other processes read, valid for as long as this object lives.
///
/// The object holds an export of the Python object's buffer, so the file cannot be unmapped. The interpreter's lock is
/// held for all of `'py`. Do not release the lock before this object is dropped: another thread might then close the
/// store, and fail because its mapping is in use.
pub struct LogMemory<'py> {
    /// Keeps the buffer's export alive.
    _buffer: PyBuffer<u8>,
    address: *mut u8,
    size: usize,
    python: PhantomData<Python<'py>>,
}

impl<'py> LogMemory<'py> {
    /// Return the memory of *object*, a memory view.
    pub fn of(object: &Bound<'py, PyAny>) -> PyResult<LogMemory<'py>> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the log's memory is not a writable run of bytes"));
        }
        let address = buffer.buf_ptr().cast::<u8>();
        let size = buffer.len_bytes();
        Ok(LogMemory { _buffer: buffer, address, size, python: PhantomData })
    }

    /// Tell whether *size* bytes from *at* on lie in this memory.
    pub fn has(&self, at: usize, size: usize) -> bool {
        at.checked_add(size).is_some_and(|end| end <= self.size)
    }

    /// Copy *data* to *at*.
    pub fn write(&self, at: usize, data: &[u8]) {
        assert!(self.has(at, data.len()));
        // SAFETY: the target lies in the exported buffer, as was just checked. *data* belongs to an immutable Python
        // object or to this thread, so it cannot overlap a mapping of the log. No Rust reference to the target exists:
        // other processes may read it meanwhile, and take nothing there for valid before its size word is.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.address.add(at), data.len()) };
    }

    /// Copy the first word of a record to *at*, after everything that was written before.
    ///
    /// A reader that sees it may trust every byte behind it.
    pub fn write_size_word(&self, at: usize, word: [u8; SIZE_WORD]) {
        let word = u32::from_ne_bytes(word);
        assert!(self.has(at, SIZE_WORD));
        fence(Ordering::Release);
        // SAFETY: as in `write`. One store of four bytes: volatile, so that it is neither split nor moved before the fence.
        unsafe { self.address.add(at).cast::<Word>().write_volatile(Word(word)) };
    }
}
