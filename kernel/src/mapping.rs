//! Files mapped for reading: reads without system calls. With unsafe code.
//!
//! ```text
//! read ── in memory, as far as the system said within the last second? ──▶ copied
//!                                                                            │ the file was cut short meanwhile
//!                          read by a system call instead ◀── broken ◀── SIGBUS: a page of zeros takes the place
//! ```
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::memory::bytes_at;
use crate::room::vec_of;

/// Files that are mapped at once. It bounds what the handler of SIGBUS looks through.
pub const MAPPINGS_MAX: usize = 64;
/// Files are mapped only on machines with pages of this size.
const PAGE_SIZE: usize = 4096;
/// Pages that one system call is asked for.
const WINDOW_PAGES: usize = 64;
const WINDOW_SIZE: usize = WINDOW_PAGES * PAGE_SIZE;

/// A mapping, as the handler of SIGBUS sees it.
struct Guarded {
    /// 0: the slot is free.
    begin: AtomicUsize,
    end: AtomicUsize,
    is_broken: AtomicBool,
}

static GUARDED: [Guarded; MAPPINGS_MAX] =
    [const { Guarded { begin: AtomicUsize::new(0), end: AtomicUsize::new(0), is_broken: AtomicBool::new(false) } };
        MAPPINGS_MAX];
/// Threads that copy from a mapping now.
static COPYING: AtomicUsize = AtomicUsize::new(0);
/// What the process did with SIGBUS before; `None`: the handler could not be set.
static FORMER: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Which pages of a window were in memory, and when (seconds of the monotonic clock).
#[derive(Clone, Copy, Default)]
struct Window {
    looked_at: u64,
    pages: u64,
}

/// One file, mapped read-only. It is read by one thread at a time.
pub struct Mapping {
    address: usize,
    size: usize,
    slot: usize,
    windows: Vec<Cell<Window>>,
}

impl Mapping {
    /// Map an open file; `None`: it is empty, too many are mapped, or the program handles SIGBUS itself.
    pub fn of(descriptor: RawFd) -> Option<Mapping> {
        let size = size_of(descriptor).filter(|size| *size > 0)?;
        if !is_guarded() {
            return None;
        }
        let window_count = size.div_ceil(WINDOW_SIZE);
        let mut windows = vec_of(window_count).ok()?;
        windows.resize(window_count, Cell::default());
        let slot = GUARDED.iter().position(|guarded| guarded.begin.load(Ordering::Relaxed) == 0)?;
        // SAFETY: a new mapping at an address that the system chooses; an error is looked for below.
        let address = unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_READ, libc::MAP_SHARED, descriptor, 0) };
        if address == libc::MAP_FAILED {
            return None;
        }
        let address = address as usize;
        GUARDED[slot].is_broken.store(false, Ordering::Relaxed);
        GUARDED[slot].end.store(address + size, Ordering::Relaxed);
        GUARDED[slot].begin.store(address, Ordering::Release);
        Some(Mapping { address, size, slot, windows })
    }

    /// Fill *target* with the bytes from *at* on, in the second *now*; false: they are not all in memory or not there, or
    /// the file was cut short.
    ///
    /// The file may have been cut short within the last page that it has left. What lies behind reads as zeros.
    pub fn read(&self, target: &mut [u8], at: i64, now: u64) -> bool {
        self.copied(at, target.len(), now, |source| {
            // SAFETY: the source has as many bytes as the target, which is borrowed mutably.
            unsafe { ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) };
        })
        .is_some()
    }

    /// Return *size* bytes from *at* on, as `read` does; `None`: it is false, or there is no memory.
    pub fn bytes<'py>(&self, py: Python<'py>, at: i64, size: usize, now: u64) -> Option<Bound<'py, PyBytes>> {
        // SAFETY: the source has *size* bytes.
        self.copied(at, size, now, |source| unsafe { bytes_at(py, source, size) })?.ok()
    }

    /// Return what *copy* makes of the address of *size* bytes from *at* on; `None`: as `read`.
    fn copied<R>(&self, at: i64, size: usize, now: u64, copy: impl FnOnce(*const u8) -> R) -> Option<R> {
        let at = usize::try_from(at).ok().filter(|at| *at < self.size)?;
        if size == 0 || size > self.size - at || !self.is_in_memory(at, size, now) {
            return None;
        }
        COPYING.fetch_add(1, Ordering::SeqCst);
        // The source lies in the mapping, which lives as long as this object. No Rust reference to it exists: other
        // processes may write there, but not where a reader is sent. If the file has lost the page, the handler of SIGBUS
        // puts another in its place.
        let copy = copy((self.address + at) as *const u8);
        COPYING.fetch_sub(1, Ordering::SeqCst);
        (!GUARDED[self.slot].is_broken.load(Ordering::SeqCst)).then_some(copy)
    }

    /// Tell whether the file has lost pages that were read here. All later reads fail.
    pub fn is_broken(&self) -> bool {
        GUARDED[self.slot].is_broken.load(Ordering::Relaxed)
    }

    /// Tell whether the file still has the size that was mapped.
    pub fn has_its_size(&self, descriptor: RawFd) -> bool {
        size_of(descriptor).is_some_and(|size| size >= self.size)
    }

    /// Tell whether these bytes were in memory a moment ago. A fault would hold up all threads of the program.
    fn is_in_memory(&self, at: usize, size: usize, now: u64) -> bool {
        let last = (at + size - 1) / PAGE_SIZE;
        (at / PAGE_SIZE..=last).all(|page| {
            let number = page / WINDOW_PAGES;
            let mut window = self.windows[number].get();
            if window.looked_at != now {
                window = Window { looked_at: now, pages: self.pages_in_memory(number * WINDOW_SIZE) };
                self.windows[number].set(window);
            }
            window.pages >> (page % WINDOW_PAGES) & 1 == 1
        })
    }

    /// Ask the system which pages of a window are in memory, one bit each.
    fn pages_in_memory(&self, begin: usize) -> u64 {
        let mut found = [0u8; WINDOW_PAGES];
        let size = WINDOW_SIZE.min(self.size - begin);
        // SAFETY: the range lies in the mapping and begins with a page; the call writes a byte for each of its pages, of
        // which there are at most as many as in *found*.
        let result = unsafe { libc::mincore((self.address + begin) as *mut _, size, found.as_mut_ptr()) };
        if result != 0 {
            return 0;
        }
        found.iter().enumerate().fold(0, |pages, (number, page)| pages | u64::from(page & 1) << number)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        GUARDED[self.slot].begin.store(0, Ordering::Release);
        // SAFETY: the mapping is this object's own, and nobody reads from it any more.
        unsafe { libc::munmap(self.address as *mut _, self.size) };
    }
}

fn size_of(descriptor: RawFd) -> Option<usize> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the call fills the whole structure if it returns 0, and it is only looked at then.
    let size = unsafe { (libc::fstat(descriptor, found.as_mut_ptr()) == 0).then(|| found.assume_init().st_size) };
    usize::try_from(size?).ok()
}

/// Set the handler of SIGBUS, once; false: it could not be set, the program has set another since, or this machine's pages
/// have another size, as those of some kernels for ARM.
fn is_guarded() -> bool {
    // SAFETY: the call reads no memory.
    if unsafe { libc::sysconf(libc::_SC_PAGESIZE) } != PAGE_SIZE.cast_signed() as libc::c_long {
        return false;
    }
    let handler = on_lost_page as extern "C" fn(_, _, _) as usize;
    let former = FORMER.get_or_init(|| {
        // SAFETY: both structures are valid, and the handler does only what a signal handler may.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let mut former: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            (libc::sigaction(libc::SIGBUS, &action, &mut former) == 0).then_some(former)
        }
    });
    // SAFETY: the call only fills the structure.
    let present = unsafe {
        let mut present: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, ptr::null(), &mut present);
        present.sa_sigaction
    };
    former.is_some() && present == handler
}

/// Called for SIGBUS. If a copy has met a page that the file has lost, put a page of zeros there, and go on.
///
/// `faulthandler`, if it was enabled later, comes first: it prints the stack, sets this handler again and raises the
/// signal; then the copy is repeated, and comes here.
extern "C" fn on_lost_page(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the system passes a valid structure. Only atomics and system calls are used, as a handler may; the page
    // lies in a mapping of this module, so no other memory is replaced.
    unsafe {
        if COPYING.load(Ordering::SeqCst) > 0 {
            if (*info).si_code <= 0 {
                return;
            }
            let address = (*info).si_addr() as usize;
            for guarded in &GUARDED {
                let begin = guarded.begin.load(Ordering::Acquire);
                if begin != 0 && (begin..guarded.end.load(Ordering::Relaxed)).contains(&address) {
                    guarded.is_broken.store(true, Ordering::SeqCst);
                    let page = (address & !(PAGE_SIZE - 1)) as *mut libc::c_void;
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                    if libc::mmap(page, PAGE_SIZE, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED {
                        return;
                    }
                }
            }
        }
        // As before: the access is repeated, or the signal sent again, and meets what the process did with it.
        if let Some(Some(former)) = FORMER.get() {
            libc::sigaction(libc::SIGBUS, former, ptr::null_mut());
        }
        if (*info).si_code <= 0 {
            libc::raise(libc::SIGBUS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    fn file(name: &str, size: usize) -> (std::path::PathBuf, File) {
        let path = std::env::temp_dir().join(format!("reput-mapping-{}-{name}", std::process::id()));
        File::create(&path).unwrap().write_all(&vec![7; size]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (path, file)
    }

    #[test]
    fn bytes_are_read_up_to_the_end() {
        let (_, file) = file("read", 3 * PAGE_SIZE + 5);
        let mapping = Mapping::of(file.as_raw_fd()).unwrap();
        let mut target = [0; 5];
        assert!(mapping.read(&mut target, 3 * PAGE_SIZE as i64, 1) && target == [7; 5]);
        assert!(!mapping.read(&mut target, 3 * PAGE_SIZE as i64 + 1, 1));
        assert!(!mapping.read(&mut target, -1, 1));
        assert!(!mapping.read(&mut target, i64::MAX, 1));
        assert!(!mapping.read(&mut [], 0, 1));
        assert!(mapping.has_its_size(file.as_raw_fd()) && !mapping.has_its_size(-1));
        assert!(Mapping::of(-1).is_none());
    }

    #[test]
    fn a_file_that_is_cut_short_is_no_crash() {
        let (_, file) = file("cut", 3 * PAGE_SIZE);
        let mapping = Mapping::of(file.as_raw_fd()).unwrap();
        let mut target = [0; 8];
        assert!(mapping.read(&mut target, 2 * PAGE_SIZE as i64, 1));
        file.set_len(PAGE_SIZE as u64).unwrap();
        // In the same second nobody asks the system again, so the read meets the lost page.
        assert!(!mapping.read(&mut target, 2 * PAGE_SIZE as i64 - 4, 1));
        assert!(mapping.is_broken() && !mapping.has_its_size(file.as_raw_fd()));
        assert!(!mapping.read(&mut target, 0, 1));
    }
}
