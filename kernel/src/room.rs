//! Memory for what a call gathers. Where a vector finds none, Rust ends the process; here the call takes the Python path,
//! whose error is a `MemoryError`.

use std::collections::TryReserveError;

use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;

pub use crate::memory::{bytes, joined};

/// Return an empty vector with room for *count* elements.
pub fn vec_of<T>(count: usize) -> Result<Vec<T>, TryReserveError> {
    let mut made = Vec::new();
    made.try_reserve_exact(count)?;
    Ok(made)
}

/// Return the error that Python raises where there is no memory.
pub fn no_memory(_: TryReserveError) -> PyErr {
    PyMemoryError::new_err(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn want_of_memory_is_an_error() {
        assert!(vec_of::<u64>(1 << 60).is_err());
        assert_eq!(vec_of::<u64>(3).unwrap().capacity(), 3);
    }
}
