//! One consumer's next message, and its acknowledgement: `GroupMember.take` and `GroupMember.acknowledge`.
//!
//! The state is that of `reput/consume/groups/group_member.py` and `shared_queue.py`, under the same lock.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PySet, PyString, PyTuple, PyType};

use crate::counters::{Way, count as tally};

/// The compiled path of one consumer.
#[pyclass(frozen, module = "reput_kernel")]
pub struct KernelConsumer {
    shared: Py<PyAny>,
    member: Py<PyAny>,
    record_type: Py<PyType>,
}

/// The group's lock, held; released when this is dropped, also after an error.
struct GroupLock<'py> {
    lock: Bound<'py, PyAny>,
}

impl<'py> GroupLock<'py> {
    /// Wait for the lock. Nothing is borrowed meanwhile: other threads run.
    fn acquire(shared: &Bound<'py, PyAny>) -> PyResult<GroupLock<'py>> {
        let lock = shared.getattr(intern!(shared.py(), "lock"))?;
        lock.call_method0(intern!(shared.py(), "acquire"))?;
        Ok(GroupLock { lock })
    }
}

impl Drop for GroupLock<'_> {
    fn drop(&mut self) {
        let py = self.lock.py();
        if let Err(error) = self.lock.call_method0(intern!(py, "release")) {
            error.write_unraisable(py, None);
        }
    }
}

/// Add *more* to a number of *object*.
fn add(object: &Bound<'_, PyAny>, name: &Bound<'_, PyString>, more: i64) -> PyResult<()> {
    let before: i64 = object.getattr(name)?.extract()?;
    object.setattr(name, before + more)
}

#[pymethods]
impl KernelConsumer {
    /// Receive for *member*, a `GroupMember` of the group *shared*.
    #[new]
    fn new(shared: Py<PyAny>, member: Py<PyAny>, record_type: Py<PyType>) -> KernelConsumer {
        KernelConsumer { shared, member, record_type }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.shared)?;
        visit.call(&self.member)
    }

    /// Return the next message that was read ahead of the consumer's current queue; None: the Python path finds one.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (shared, member) = (self.shared.bind(py), self.member.bind(py));
        let _lock = GroupLock::acquire(shared)?;
        let queue = member.getattr(intern!(py, "current"))?;
        let delivered = member.getattr(intern!(py, "delivered"))?.cast_into::<PyDict>()?;
        if queue.is_none()
            || member.getattr(intern!(py, "closed"))?.is_truthy()?
            || delivered.len() >= member.getattr(intern!(py, "in_flight_max"))?.extract::<usize>()?
            || !queue.getattr(intern!(py, "owner"))?.is(member)
            || !queue.getattr(intern!(py, "heir"))?.is_none()
        {
            return Ok(None);
        }
        let fetched = queue.getattr(intern!(py, "fetched"))?;
        let in_flight = queue.getattr(intern!(py, "in_flight"))?.cast_into::<PyDict>()?;
        if in_flight.len() >= member.getattr(intern!(py, "queue_in_flight_max"))?.extract::<usize>()? {
            return Ok(None);
        }
        // None is no iterator. An error is that of a damaged record, which the Python path would raise here, too.
        let Ok(mut fetched) = fetched.cast_into::<PyIterator>() else { return Ok(None) };
        let Some(item) = fetched.next().transpose()? else { return Ok(None) };
        let item = item.cast_into::<PyTuple>()?;
        let (queue_offset, record) = (item.get_item(0)?, item.get_item(1)?);
        let position: i64 = queue_offset.extract()?;
        queue.setattr(intern!(py, "position"), position + 1)?;
        in_flight.set_item(&queue_offset, py.None())?;
        let place = PyTuple::new(py, [&queue, &queue_offset])?;
        let commit_log_offset = record.getattr(intern!(py, "commit_log_offset"))?;
        if delivered.contains(&commit_log_offset)? {
            let again = member.getattr(intern!(py, "delivered_again"))?.cast_into::<PyDict>()?;
            let places = again.call_method1(intern!(py, "setdefault"), (commit_log_offset, PyList::empty(py)))?;
            places.call_method1(intern!(py, "append"), (place,))?;
        } else {
            delivered.set_item(commit_log_offset, place)?;
        }
        let statistics = queue.getattr(intern!(py, "statistics"))?;
        add(&statistics, intern!(py, "get_nums"), 1)?;
        add(&statistics, intern!(py, "get_size"), record.getattr(intern!(py, "record_size"))?.extract()?)?;
        tally(Way::Receive, 1);
        Ok(Some(record))
    }

    /// Mark a message as done, and return True; False: the Python path does it, or says why not.
    ///
    /// It is plain if the message is in flight once, no consumer waits for an acknowledgement, and its queue is not to
    /// go to another consumer.
    fn acknowledge(&self, record: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = record.py();
        if !record.get_type().is(&self.record_type) {
            return Ok(false);
        }
        let commit_log_offset = record.getattr(intern!(py, "commit_log_offset"))?;
        let (shared, member) = (self.shared.bind(py), self.member.bind(py));
        let _lock = GroupLock::acquire(shared)?;
        let delivered = member.getattr(intern!(py, "delivered"))?.cast_into::<PyDict>()?;
        let Some(place) = delivered.get_item(&commit_log_offset)? else { return Ok(false) };
        if delivered.len() >= member.getattr(intern!(py, "in_flight_max"))?.extract::<usize>()?
            || !member.getattr(intern!(py, "delivered_again"))?.cast_into::<PyDict>()?.is_empty()
        {
            return Ok(false);
        }
        let place = place.cast_into::<PyTuple>()?;
        let (queue, queue_offset) = (place.get_item(0)?, place.get_item(1)?);
        let in_flight = queue.getattr(intern!(py, "in_flight"))?.cast_into::<PyDict>()?;
        if !queue.getattr(intern!(py, "heir"))?.is_none()
            || in_flight.len() == member.getattr(intern!(py, "queue_in_flight_max"))?.extract::<usize>()?
            || !in_flight.contains(&queue_offset)?
        {
            return Ok(false);
        }
        let is_first = match in_flight.iter().next() {
            Some((first, _)) => first.eq(&queue_offset)?,
            None => false,
        };
        if !is_first {
            queue.getattr(intern!(py, "done"))?.cast_into::<PySet>()?.add(&queue_offset)?;
        }
        delivered.del_item(&commit_log_offset)?;
        in_flight.del_item(&queue_offset)?;
        tally(Way::Acknowledge, 1);
        Ok(true)
    }
}
