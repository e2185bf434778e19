//! PutLock: the writer's put lock while a put holds it.

use pyo3::prelude::*;

/// The held put lock; released when this is dropped, also after an error.
pub struct PutLock<'a, 'py> {
    /// The method that releases it.
    pub release: &'a Bound<'py, PyAny>,
}

impl Drop for PutLock<'_, '_> {
    fn drop(&mut self) {
        if let Err(error) = self.release.call0() {
            error.write_unraisable(self.release.py(), None);
        }
    }
}
