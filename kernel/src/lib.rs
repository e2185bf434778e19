//! reput's kernel: the compiled path of what costs most, on the boundary of the encoder and the record layout.
//!
//! `reput/kernel.py` decides whether it is used. Each function returns None for a case that it does not handle; Python
//! then does the work, so there is one store with one set of errors.

mod cached_file;
mod consumers;
mod counters;
mod fetched;
#[cfg(test)]
mod fuzz;
mod gets;
mod group_lock;
mod held_records;
mod index;
mod interpreter;
mod item;
mod joined_frames;
mod json_columns;
mod json_times;
mod known;
mod log_rows;
mod mapping;
mod memory;
mod message;
mod property_values;
mod put_lock;
mod puts;
mod query;
mod reads;
mod record;
mod record_maker;
mod record_places;
mod ring_words;
mod room;
mod rows;
mod run;
mod send_header;
mod sends;
mod sent;
mod slots;
mod store_files;
mod stored;
mod units;
mod view_words;
mod word_order;
mod writer_slots;

/// What `word_order` is made of; loom has its own.
mod sync {
    pub use std::sync::atomic::{AtomicU64, Ordering, fence};
}

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// What the Python side and this one have agreed upon: names of attributes, arguments, results. Both count it up.
const PROTOCOL: u32 = 15;

/// The compiled path of what costs reput most.
#[pymodule]
fn reput_kernel(module: &Bound<'_, PyModule>) -> PyResult<()> {
    if !interpreter::is_first(module.py()) {
        return Err(PyImportError::new_err("another interpreter of this process has loaded it"));
    }
    module.add("PROTOCOL", PROTOCOL)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<puts::KernelPuts>()?;
    module.add_class::<message::AdmittedMessage>()?;
    module.add_class::<sends::KernelSends>()?;
    module.add_class::<sends::SendRequests>()?;
    module.add_function(wrap_pyfunction!(index::index_keys, module)?)?;
    module.add_function(wrap_pyfunction!(index::put_index_keys, module)?)?;
    module.add_function(wrap_pyfunction!(units::queue_units, module)?)?;
    module.add_function(wrap_pyfunction!(joined_frames::join_frames, module)?)?;
    module.add_class::<reads::ReadRecords>()?;
    module.add_class::<record_maker::RecordMaker>()?;
    module.add_class::<fetched::FetchedRecords>()?;
    module.add_class::<gets::KernelReads>()?;
    module.add_class::<group_lock::GroupLock>()?;
    module.add_class::<held_records::HeldRecords>()?;
    module.add_class::<view_words::ViewWords>()?;
    module.add_class::<ring_words::RingWords>()?;
    module.add_class::<ring_words::RingBarrier>()?;
    module.add_class::<consumers::KernelConsumer>()?;
    module.add_function(wrap_pyfunction!(reads::read_queue, module)?)?;
    module.add_function(wrap_pyfunction!(log_rows::log_rows, module)?)?;
    module.add_function(wrap_pyfunction!(record_places::locate_records, module)?)?;
    module.add_function(wrap_pyfunction!(record_places::first_bad_record, module)?)?;
    module.add_function(wrap_pyfunction!(property_values::property_values, module)?)?;
    module.add_function(wrap_pyfunction!(json_columns::json_columns, module)?)?;
    module.add_function(wrap_pyfunction!(counters::counts, module)?)?;
    module.add_function(wrap_pyfunction!(ids::message_ids, module)?)
}

mod ids {
    //! Ids of stored messages.

    use pyo3::intern;
    use pyo3::prelude::*;
    use pyo3::types::{PyBytes, PyList};
    use std::fmt::Write;

    /// Return the ids of these results, joined by commas. An id is address and place in upper-case hex.
    #[pyfunction]
    pub fn message_ids(results: &Bound<'_, PyList>) -> PyResult<String> {
        let py = results.py();
        let mut ids = String::with_capacity(results.len() * 33);
        for result in results.iter() {
            if !ids.is_empty() {
                ids.push(',');
            }
            let host = result.getattr(intern!(py, "store_host"))?;
            for byte in host.cast::<PyBytes>()?.as_bytes() {
                write!(ids, "{byte:02X}").expect("memory takes it");
            }
            let offset: i64 = result.getattr(intern!(py, "commit_log_offset"))?.extract()?;
            write!(ids, "{offset:016X}").expect("memory takes it");
        }
        Ok(ids)
    }
}
