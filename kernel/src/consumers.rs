//! One consumer's next message, and its acknowledgement: `GroupMember.take` and `GroupMember.acknowledge`.
//!
//! Where these are plain, a `ConsumerRun` notes them without the group's lock; else the state is that of
//! `reput/consume/groups/group_member.py` and `shared_queue.py`, under the lock.

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyIterator, PyList, PyTuple};

use crate::counters::{Way, count as tally};
use crate::fetched::FetchedRecords;
use crate::group_lock::{ConsumerRun, GroupLock, SharedRun, add};
use crate::record_maker::RecordMaker;

/// The compiled path of one consumer.
#[pyclass(frozen, module = "reput_kernel")]
pub struct KernelConsumer {
    lock: Py<GroupLock>,
    member: Py<PyAny>,
    maker: Py<RecordMaker>,
    run: SharedRun,
}

/// The group's lock, held; released when this is dropped, also after an error.
struct Held<'py> {
    lock: Bound<'py, GroupLock>,
}

impl<'py> Held<'py> {
    fn enter(lock: &Bound<'py, GroupLock>) -> PyResult<Held<'py>> {
        lock.get().enter(lock.py())?;
        Ok(Held { lock: lock.clone() })
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let py = self.lock.py();
        if let Err(error) = self.lock.get().leave(py) {
            error.write_unraisable(py, None);
        }
    }
}

impl KernelConsumer {
    /// Return the next message of the run; `None`: the run has none to give.
    fn take_of_run<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let lock = self.lock.get();
        let fetched = {
            let Ok(mut run) = self.run.lock() else { return Ok(None) };
            let Some(run) = run.as_mut().filter(|_| lock.is_free()) else { return Ok(None) };
            let fetched = run.fetched.clone_ref(py).into_bound(py);
            match fetched.get().peek() {
                Some((_, record)) if run.has_room_for(py, &record.place)? => fetched,
                _ => return Ok(None),
            }
        };
        let Some((number, record)) = fetched.get().peek() else { return Ok(None) };
        // This may run other code: the garbage collector's. So the run is looked at again.
        let object = fetched.get().object(py, record)?;
        let Ok(mut run) = self.run.lock() else { return Ok(None) };
        let Some(run) = run.as_mut().filter(|_| lock.is_free()) else { return Ok(None) };
        if !run.fetched.is(&fetched) || !run.has_room_for(py, &record.place)? || !fetched.get().take(number) {
            return Ok(None);
        }
        run.give(record.place);
        tally(Way::Receive, 1);
        Ok(Some(object))
    }

    /// Tell whether the run has given the message, and note that it is done.
    fn acknowledge_of_run(&self, commit_log_offset: i64) -> bool {
        let Ok(mut run) = self.run.lock() else { return false };
        match run.as_mut().filter(|_| self.lock.get().is_free()) {
            Some(run) => run.acknowledge(commit_log_offset),
            None => false,
        }
    }

    /// Return the next message of the consumer's queue, with the lock; or begin a run of the queue that gives it.
    fn take_with_lock<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let lock = self.lock.bind(py);
        let member = self.member.bind(py);
        let _held = Held::enter(lock)?;
        let queue = member.getattr(intern!(py, "current"))?;
        let delivered = member.getattr(intern!(py, "delivered"))?.cast_into::<PyDict>()?;
        let in_flight_max: usize = member.getattr(intern!(py, "in_flight_max"))?.extract()?;
        if queue.is_none()
            || member.getattr(intern!(py, "closed"))?.is_truthy()?
            || delivered.len() >= in_flight_max
            || !queue.getattr(intern!(py, "owner"))?.is(member)
            || !queue.getattr(intern!(py, "heir"))?.is_none()
        {
            return Ok(None);
        }
        let fetched = queue.getattr(intern!(py, "fetched"))?;
        let in_flight = queue.getattr(intern!(py, "in_flight"))?.cast_into::<PyDict>()?;
        let queue_in_flight_max: usize = member.getattr(intern!(py, "queue_in_flight_max"))?.extract()?;
        if in_flight.len() >= queue_in_flight_max {
            return Ok(None);
        }
        let statistics = queue.getattr(intern!(py, "statistics"))?;
        let again = member.getattr(intern!(py, "delivered_again"))?.cast_into::<PyDict>()?;
        if let Ok(fetched) = fetched.cast_exact::<FetchedRecords>()
            && again.is_empty()
            && lock.get().is_outermost()
        {
            let room = (in_flight_max - delivered.len()).min(queue_in_flight_max - in_flight.len());
            let fetched = fetched.clone().unbind();
            let (queue, statistics) = (queue.unbind(), statistics.unbind());
            let run = ConsumerRun::new(queue, fetched, in_flight.unbind(), delivered.unbind(), statistics, room);
            lock.get().begin(&self.run, run);
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
            let places = again.call_method1(intern!(py, "setdefault"), (commit_log_offset, PyList::empty(py)))?;
            places.call_method1(intern!(py, "append"), (place,))?;
        } else {
            delivered.set_item(commit_log_offset, place)?;
        }
        add(&statistics, "get_nums", 1)?;
        add(&statistics, "get_size", record.getattr(intern!(py, "record_size"))?.extract()?)?;
        tally(Way::Receive, 1);
        Ok(Some(record))
    }
}

#[pymethods]
impl KernelConsumer {
    /// Receive records of *maker* for *member*, a `GroupMember` of the group with this lock.
    #[new]
    fn new(lock: Py<GroupLock>, member: Py<PyAny>, maker: Py<RecordMaker>) -> KernelConsumer {
        KernelConsumer { lock, member, maker, run: SharedRun::default() }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.member)
    }

    /// Return the next message that was read ahead of the consumer's current queue; None: the Python path finds one.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.lock.get().is_abandoned() {
            return Ok(None);
        }
        if let Some(record) = self.take_of_run(py)? {
            return Ok(Some(record));
        }
        if let Some(record) = self.take_with_lock(py)? {
            return Ok(Some(record));
        }
        self.take_of_run(py)
    }

    /// Mark a message as done, and return True; False: the Python path does it, or says why not.
    ///
    /// It is plain if the message is in flight once, no consumer waits for an acknowledgement, and its queue is not to
    /// go to another consumer.
    fn acknowledge(&self, record: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = record.py();
        if self.lock.get().is_abandoned() {
            return Ok(false);
        }
        let Some(commit_log_offset) = self.maker.get().commit_log_offset(record) else { return Ok(false) };
        if let Ok(number) = commit_log_offset.extract()
            && self.acknowledge_of_run(number)
        {
            tally(Way::Acknowledge, 1);
            return Ok(true);
        }
        let member = self.member.bind(py);
        let _held = Held::enter(self.lock.bind(py))?;
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
        delivered.del_item(&commit_log_offset)?;
        in_flight.del_item(&queue_offset)?;
        tally(Way::Acknowledge, 1);
        Ok(true)
    }
}
