//! How a word is loaded and stored, and what a full barrier is. `model/` runs this file with loom.

use crate::sync::{AtomicU64, Ordering, fence};

/// Return a word, after everything that was read before, and before everything that is read after it.
pub fn load(word: &AtomicU64) -> u64 {
    fence(Ordering::Acquire);
    word.load(Ordering::Acquire)
}

/// Store a word, after everything that was written before, and before everything that is written after it.
pub fn store(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Release);
    fence(Ordering::Release);
}

/// Make all stores of this thread visible before its next load.
pub fn barrier() {
    fence(Ordering::SeqCst);
}
