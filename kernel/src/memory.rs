//! Mapped files and words that several processes use at once: the log's last segment, the index, and what dispatchers
//! tell of themselves. With unsafe code.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::sync::{AtomicU64, Ordering, fence};
use crate::word_order;

/// Bytes of a word.
pub const WORD_SIZE: usize = 4;

/// A word that may lie anywhere.
#[repr(C, packed)]
struct Word(u32);

/// Writable bytes that other processes read, valid for as long as this object lives.
///
/// The object holds an export of the Python object's buffer, so the file cannot be unmapped. The interpreter's lock is
/// held for all of `'py`. Do not release the lock before this object is dropped: another thread might then close the
/// store, and fail because its mapping is in use.
pub struct SharedMemory<'py> {
    /// Keeps the buffer's export alive.
    _buffer: PyBuffer<u8>,
    address: *mut u8,
    size: usize,
    python: PhantomData<Python<'py>>,
}

impl<'py> SharedMemory<'py> {
    /// Return the memory of *object*, a memory view.
    pub fn of(object: &Bound<'py, PyAny>) -> PyResult<SharedMemory<'py>> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            return Err(PyValueError::new_err("the mapped memory is not a writable run of bytes"));
        }
        let address = buffer.buf_ptr().cast::<u8>();
        let size = buffer.len_bytes();
        Ok(SharedMemory { _buffer: buffer, address, size, python: PhantomData })
    }

    /// Tell whether *size* bytes from *at* on lie in this memory.
    pub fn has(&self, at: usize, size: usize) -> bool {
        at.checked_add(size).is_some_and(|end| end <= self.size)
    }

    /// Copy *data* to *at*.
    pub fn write(&self, at: usize, data: &[u8]) {
        assert!(self.has(at, data.len()));
        // SAFETY: the target lies in the exported buffer, as was just checked. *data* belongs to an immutable Python
        // object or to this thread, so it cannot overlap a mapping. No Rust reference to the target exists:
        // other processes may read it meanwhile, and take nothing there for valid before its size word is.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.address.add(at), data.len()) };
    }

    /// Copy *data* to *at*, after everything that was written before.
    pub fn write_next(&self, at: usize, data: &[u8]) {
        fence(Ordering::Release);
        self.write(at, data);
    }

    /// Copy one word to *at*, after everything that was written before.
    ///
    /// The first word of a record is the last one written: a reader that sees it may trust every byte behind it. So is
    /// an index's slot, which leads to an entry.
    pub fn write_word(&self, at: usize, word: [u8; WORD_SIZE]) {
        let word = u32::from_ne_bytes(word);
        assert!(self.has(at, WORD_SIZE));
        fence(Ordering::Release);
        // SAFETY: as in `write`. One store of four bytes: volatile, so that it is neither split nor moved before the fence.
        unsafe { self.address.add(at).cast::<Word>().write_volatile(Word(word)) };
    }

    /// Return the word at *at*.
    pub fn read_word(&self, at: usize) -> [u8; WORD_SIZE] {
        assert!(self.has(at, WORD_SIZE));
        // SAFETY: the word lies in the exported buffer, as was just checked, and any bytes are a word. Volatile, because
        // another process may write it meanwhile.
        unsafe { self.address.add(at).cast::<Word>().read_volatile() }.0.to_ne_bytes()
    }
}

/// Words of 8 bytes that other processes read and write, valid for as long as this object lives.
///
/// Accesses of one thread become visible in their order, as on x86-64, but for a load after a store: `fence(SeqCst)` must
/// stand between these two where it matters. This holds for the bytes between the words as well: bytes written after a
/// word was stored are not visible before it, and bytes read before a word is loaded are not read after it. Acquire and
/// release alone order them the other way round only, hence the fences. On x86-64 they are no instructions.
pub struct SharedWords {
    /// Keeps the buffer's export alive, and so the memory where it is.
    buffer: PyBuffer<u64>,
    /// Words from one to the next.
    step: isize,
}

impl SharedWords {
    /// Return the words of *object*, a memory view or an array. Only those that are *writable* may be stored to.
    pub fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<SharedWords> {
        let buffer = PyBuffer::<u64>::get(object)?;
        let size = size_of::<u64>().cast_signed();
        if writable && buffer.readonly() || buffer.dimensions() != 1 || buffer.strides()[0] % size != 0 {
            return Err(PyValueError::new_err("the shared memory is not a row of words, or not a writable one"));
        }
        let step = buffer.strides()[0] / size;
        Ok(SharedWords { buffer, step })
    }

    /// Return how many there are.
    pub fn count(&self) -> usize {
        self.buffer.item_count()
    }

    /// Tell whether they may be stored to.
    pub fn are_writable(&self) -> bool {
        !self.buffer.readonly()
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.count());
        let place = index.cast_signed() * self.step;
        // SAFETY: the word lies in the exported buffer, as was just checked, and is aligned, as `PyBuffer` has checked
        // for the first one. All processes load and store such words as a whole.
        unsafe { AtomicU64::from_ptr(self.buffer.buf_ptr().cast::<u64>().offset(place)) }
    }

    /// Return a word, after everything that was read before, and before everything that is read after it.
    pub fn load(&self, index: usize) -> u64 {
        word_order::load(self.word(index))
    }

    /// Store a word of writable memory, after everything that was written before, and before everything that is written
    /// after it.
    pub fn store(&self, index: usize, value: u64) {
        assert!(self.are_writable());
        word_order::store(self.word(index), value);
    }
}

/// Return a copy of *data*; an error if there is no memory for it, where `PyBytes::new` panics.
pub fn bytes<'py>(py: Python<'py>, data: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    // SAFETY: address and size are those of *data*.
    unsafe { bytes_at(py, data.as_ptr(), data.len()) }
}

/// Return a copy of the *size* bytes at *source*; an error if there is no memory for it. No Python code runs.
///
/// # Safety
///
/// The bytes can be read. Other processes may write to them meanwhile; the copy then has any of their bytes.
pub unsafe fn bytes_at(py: Python<'_>, source: *const u8, size: usize) -> PyResult<Bound<'_, PyBytes>> {
    // SAFETY: as the caller promises. The call returns a new object of bytes, or null and an error.
    unsafe {
        Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(source.cast(), size.cast_signed()))
            .map(|made| made.cast_into_unchecked())
    }
}

/// Return the bytes of all *parts*, one behind the other; an error if there is no memory for them.
pub fn joined<'py>(py: Python<'py>, parts: &[&[u8]]) -> PyResult<Bound<'py, PyBytes>> {
    let size = parts.iter().map(|part| part.len()).sum::<usize>();
    // SAFETY: without a source the call returns a new object of bytes, which are still to be written and nobody else has,
    // or null and an error. The parts are as long as the object together, and none of them lies in it.
    unsafe {
        let made = Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), size.cast_signed()))?;
        let mut target = ffi::PyBytes_AsString(made.as_ptr()).cast::<u8>();
        for part in parts {
            std::ptr::copy_nonoverlapping(part.as_ptr(), target, part.len());
            target = target.add(part.len());
        }
        Ok(made.cast_into_unchecked())
    }
}

/// Return the time of `time.monotonic_ns`.
pub fn monotonic_ns() -> u64 {
    let now = time_of(libc::CLOCK_MONOTONIC);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Return the seconds of that time as of the last tick of the system's clock, which takes a fifth of the time.
pub fn monotonic_seconds() -> u64 {
    time_of(libc::CLOCK_MONOTONIC_COARSE).tv_sec.cast_unsigned()
}

fn time_of(clock: libc::clockid_t) -> libc::timespec {
    let mut now = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the call fills the whole structure; these clocks are there in every Linux.
    unsafe {
        libc::clock_gettime(clock, now.as_mut_ptr());
        now.assume_init()
    }
}

/// Return what *read* makes of the bytes of a buffer. It cannot run Python code, which might change them meanwhile.
pub fn with_bytes<T>(_: Python<'_>, buffer: &PyBuffer<u8>, read: impl FnOnce(&[u8]) -> T) -> T {
    assert!(buffer.is_c_contiguous());
    if buffer.len_bytes() == 0 {
        return read(&[]);
    }
    // SAFETY: the buffer's export keeps the bytes where they are, and they are contiguous. *read* has no token of the
    // interpreter, whose lock is held until it returns, so no Python code writes to them meanwhile.
    read(unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes()) })
}
