//! Which interpreter of the process has loaded the kernel: only one may, since tables and types are the process's.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicI64, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

const NONE: i64 = -1;
static OWNER: AtomicI64 = AtomicI64::new(NONE);

/// Tell whether the present interpreter is the first that asks.
pub fn is_first(_python: Python<'_>) -> bool {
    // SAFETY: both calls need an attached thread, which the argument proves, and neither keeps anything.
    let own = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    match OWNER.compare_exchange(NONE, own, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => true,
        Err(owner) => owner == own,
    }
}
