//! The protocols of `core/reput/ring` under the memory model of C, C++ and Rust.
//!
//! loom gives each load every value that it may see, but for those of stores that have not run yet: that a store overtakes
//! an earlier load is not shown. `store` releases, which forbids that. Frames are copied as relaxed words; `memcpy` may
//! copy in any order, too.
//!
//! Each protocol runs with the order of `word_order.rs`, which the kernel is built with, and must hold; and with a weaker
//! one, in which loom must find the fault.
#![cfg(test)]

#[path = "../../src/word_order.rs"]
mod word_order;

mod sync {
    pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
}

use std::sync::Arc;

use loom::thread;

use sync::{AtomicU64, Ordering};

/// How words are loaded and stored, and a full barrier.
#[derive(Clone, Copy)]
struct Order {
    load: fn(&AtomicU64) -> u64,
    store: fn(&AtomicU64, u64),
    barrier: fn(),
}

/// The kernel's.
const KERNEL: Order = Order { load: word_order::load, store: word_order::store, barrier: word_order::barrier };
/// Loads acquire and stores release, and no more.
const ACQUIRE_RELEASE: Order = Order {
    load: |word| word.load(Ordering::Acquire),
    store: |word, value| word.store(value, Ordering::Release),
    barrier: word_order::barrier,
};
/// As if the locks of an interpreter on aarch64 were a full barrier: what acquires and releases is none.
const NO_BARRIER: Order = Order { barrier: || {}, ..KERNEL };

/// Bytes that are copied without order.
type Octets = [AtomicU64; 2];

fn words<const COUNT: usize>() -> Arc<[AtomicU64; COUNT]> {
    Arc::new(std::array::from_fn(|_| AtomicU64::new(0)))
}

fn write(octets: &Octets, value: u64) {
    octets.iter().for_each(|octet| octet.store(value, Ordering::Relaxed));
}

fn read(octets: &Octets) -> [u64; 2] {
    [octets[0].load(Ordering::Relaxed), octets[1].load(Ordering::Relaxed)]
}

/// A writer laps its reader: frame by frame, each into the same place. `RingWriter.publish`, `RingReader.read`.
fn no_frame_is_torn(order: Order) {
    loom::model(move || {
        let (ring, data) = (words::<2>(), words::<2>());
        let (rings, datas) = (ring.clone(), data.clone());
        let writer = thread::spawn(move || {
            let [tail, intent] = &*rings;
            for number in 1..=2 {
                (order.store)(intent, number);
                write(&datas, number);
                (order.store)(tail, number);
            }
        });
        let [tail, intent] = &*ring;
        if (order.load)(tail) > 0 {
            let copy = read(&data);
            // One frame fits; from its position, 0, on nothing was overwritten up to this intent.
            if (order.load)(intent) <= 1 {
                assert_eq!(copy, [1, 1]);
            }
        }
        writer.join().unwrap();
    });
}

/// A seqlock's reader gets the bytes of one write, whatever its writer does. `Seqlock.write`, `Seqlock.read`.
fn no_seqlock_is_torn(order: Order) {
    loom::model(move || {
        let (sequence, even, odd) = (words::<1>(), words::<2>(), words::<2>());
        let (sequences, evens, odds) = (sequence.clone(), even.clone(), odd.clone());
        let writer = thread::spawn(move || {
            for number in 1..=3 {
                write(if number % 2 == 0 { &evens } else { &odds }, number);
                (order.store)(&sequences[0], number);
            }
        });
        let seen = (order.load)(&sequence[0]);
        if seen > 0 {
            let copy = read(if seen % 2 == 0 { &even } else { &odd });
            if (order.load)(&sequence[0]) == seen {
                assert_eq!(copy, [seen, seen]);
            }
        }
        writer.join().unwrap();
    });
}

/// One stores what it did and looks whether the other waits; the other stores that it waits, and looks once more. One of
/// the two must see the other's store, or the wake-up is lost. So do tail and parked flag (`RingWriter.publish`,
/// `RingReader.park`), held flag and parked flag (`begin_hold`, `park`), progress and awaited progress
/// (`Cell.set_progress`, `ProgressWaiter`), awaited progress and resting flag (`ProgressWaiter`, `RingReader.rest`).
fn no_wake_up_is_lost(order: Order) {
    loom::model(move || {
        let shared = words::<2>();
        let others = shared.clone();
        let doing = thread::spawn(move || {
            let [done, waits] = &*others;
            (order.store)(done, 1);
            (order.barrier)();
            (order.load)(waits) == 1
        });
        let [done, waits] = &*shared;
        (order.store)(waits, 1);
        (order.barrier)();
        let sleeps = (order.load)(done) == 0;
        let woke = doing.join().unwrap();
        assert!(!sleeps || woke, "the wake-up was lost");
    });
}

/// Whoever sees the tail sees what was stored before it. `RingReader.join` and the records of the log below `appended`.
fn what_comes_first_is_seen_first(order: Order) {
    loom::model(move || {
        let (ring, log) = (words::<2>(), words::<2>());
        let (rings, logs) = (ring.clone(), log.clone());
        let writer = thread::spawn(move || {
            let [tail, appended] = &*rings;
            write(&logs, 1);
            (order.store)(appended, 1);
            (order.store)(tail, 1);
        });
        let [tail, appended] = &*ring;
        if (order.load)(tail) == 1 {
            assert_eq!((order.load)(appended), 1);
            assert_eq!(read(&log), [1, 1]);
        }
        writer.join().unwrap();
    });
}

#[test]
fn a_reader_that_was_lapped_accepts_no_torn_frame() {
    no_frame_is_torn(KERNEL);
}

#[test]
#[should_panic(expected = "left == right")]
fn acquire_and_release_alone_would_tear_frames() {
    no_frame_is_torn(ACQUIRE_RELEASE);
}

#[test]
fn a_seqlock_is_read_whole() {
    no_seqlock_is_torn(KERNEL);
}

#[test]
#[should_panic(expected = "left == right")]
fn acquire_and_release_alone_would_tear_a_seqlock() {
    no_seqlock_is_torn(ACQUIRE_RELEASE);
}

#[test]
fn who_waits_is_woken() {
    no_wake_up_is_lost(KERNEL);
}

#[test]
#[should_panic(expected = "the wake-up was lost")]
fn without_the_barrier_a_wake_up_would_be_lost() {
    no_wake_up_is_lost(NO_BARRIER);
}

#[test]
fn a_tail_brings_what_was_stored_before_it() {
    what_comes_first_is_seen_first(KERNEL);
}

#[test]
#[should_panic(expected = "left == right")]
fn loads_and_stores_without_order_would_not_bring_it() {
    what_comes_first_is_seen_first(Order {
        load: |word| word.load(Ordering::Relaxed),
        store: |word, value| word.store(value, Ordering::Relaxed),
        ..KERNEL
    });
}
