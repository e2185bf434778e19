//! Holding: what `HoldingPublisher.publish` does with most single puts, `reput/process/frames/holding_publisher.py`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyList};

use crate::record::ROW_SIZE;

/// Hold the *records* of one message, stored from *begin* to *end*, while no reader of the ring needs a look; false:
/// nothing has changed, and the publisher is to be called.
pub fn hold(
    publisher: &Bound<'_, PyAny>,
    records: &Bound<'_, PyAny>,
    begin: i64,
    store_timestamp: i64,
    end: &Bound<'_, PyInt>,
) -> PyResult<bool> {
    let py = publisher.py();
    let Ok(held) = publisher.getattr(intern!(py, "held"))?.cast_into_exact::<PyList>() else { return Ok(false) };
    let count = held.len() + 1;
    if count == 1
        || count.is_multiple_of(publisher.getattr(intern!(py, "look_every"))?.extract()?)
        || publisher.getattr(intern!(py, "end"))?.extract::<i64>()? != begin
        || publisher.getattr(intern!(py, "store_timestamp"))?.extract::<i64>()? != store_timestamp
        || publisher.getattr(intern!(py, "size_held"))?.extract::<i64>()? != ROW_SIZE as i64
    {
        return Ok(false);
    }
    held.append(records)?;
    publisher.setattr(intern!(py, "end"), end)?;
    Ok(true)
}
