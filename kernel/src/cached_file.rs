//! Files read from memory alone. With unsafe code.
#![allow(unsafe_code)]

use std::io::{Error, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// Fill *target* with the bytes of an open file from *at* on; false: they are not all in memory, or not there.
///
/// It never waits for a disk, so the interpreter's lock may be held meanwhile. A file system that cannot promise that
/// refuses every read; tmpfs cannot either, and has no disk.
pub fn read_cached(descriptor: RawFd, target: &mut [u8], at: i64) -> bool {
    read_some_cached(descriptor, target, at) == Some(target.len())
}

/// Like `read_cached`, but return how many bytes it got; `None`: the read failed.
pub fn read_some_cached(descriptor: RawFd, target: &mut [u8], at: i64) -> Option<usize> {
    // -1 would mean the descriptor's own position.
    if at < 0 {
        return None;
    }
    let count = match read(descriptor, target, at, libc::RWF_NOWAIT) {
        Err(error) if error.kind() == ErrorKind::Unsupported && is_tmpfs(descriptor) => read(descriptor, target, at, 0),
        result => result,
    };
    count.ok()
}

fn read(descriptor: RawFd, target: &mut [u8], at: i64, flags: i32) -> Result<usize, Error> {
    let part = libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    // SAFETY: the one part is *target*, which is borrowed mutably for as long as the call lasts; the kernel writes at
    // most its length. A descriptor that is not open, or not a file, is an error of the call.
    let count = unsafe { libc::preadv2(descriptor, &part, 1, at, flags) };
    usize::try_from(count).map_err(|_| Error::last_os_error())
}

fn is_tmpfs(descriptor: RawFd) -> bool {
    let mut found = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the call fills the whole structure if it returns 0, and it is only looked at then.
    unsafe { libc::fstatfs(descriptor, found.as_mut_ptr()) == 0 && found.assume_init().f_type == libc::TMPFS_MAGIC }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn bytes_behind_the_end_are_not_there() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let size = file.metadata().unwrap().len() as i64;
        let mut target = [0; 4];
        // The file system may refuse such reads altogether.
        if read_cached(file.as_raw_fd(), &mut target, 0) {
            assert_eq!(&target, b"\x7fELF");
        }
        assert!(!read_cached(file.as_raw_fd(), &mut target, size - 2));
        assert!(!read_cached(file.as_raw_fd(), &mut target, -1));
        assert!(!read_cached(-1, &mut target, 0));
    }
}
