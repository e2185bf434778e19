//! The lock of a consumer group, and the messages that the kernel has given without it.
//!
//! ```text
//! take, acknowledge of the kernel ──▶ ConsumerRun ── settle ──▶ SharedQueue, GroupMember, statistics
//!                                                      ▲
//!                     any code that acquires the lock ─┘
//! ```
//!
//! While nobody holds the lock, and the interpreter's lock is not released meanwhile, the kernel may give and
//! acknowledge messages without it. It notes them in a run of its own. Whoever acquires the lock finds everything in the
//! group's Python objects: acquiring it settles the run first.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::fetched::FetchedRecords;
use crate::reads::Place;

/// Messages of one queue that a consumer was given since its group's lock was held last.
pub struct ConsumerRun {
    pub queue: Py<PyAny>,
    pub fetched: Py<FetchedRecords>,
    pub in_flight: Py<PyDict>,
    pub delivered: Py<PyDict>,
    pub statistics: Py<PyAny>,
    /// How many of the run's messages may be in flight at once.
    pub room: usize,
    given: VecDeque<Place>,
    count: i64,
    size: i64,
    /// Queue offset behind the last message given.
    position: i64,
}

impl ConsumerRun {
    pub fn new(
        queue: Py<PyAny>,
        fetched: Py<FetchedRecords>,
        in_flight: Py<PyDict>,
        delivered: Py<PyDict>,
        statistics: Py<PyAny>,
        room: usize,
    ) -> ConsumerRun {
        ConsumerRun {
            queue,
            fetched,
            in_flight,
            delivered,
            statistics,
            room,
            given: VecDeque::new(),
            count: 0,
            size: 0,
            position: 0,
        }
    }

    /// Tell whether the message at *place* may be given: there is room, and it is not in flight from another queue.
    pub fn has_room_for(&mut self, py: Python<'_>, place: &Place) -> PyResult<bool> {
        let delivered = self.delivered.bind(py);
        Ok(self.given.len() < self.room
            && self.given.try_reserve(1).is_ok()
            && self.given.back().is_none_or(|last| last.commit_log_offset < place.commit_log_offset)
            && (delivered.is_empty() || !delivered.contains(place.commit_log_offset)?))
    }

    /// Note that the message at *place* is in flight.
    pub fn give(&mut self, place: Place) {
        self.count += 1;
        self.size += i64::from(place.record_size);
        self.position = place.queue_offset + 1;
        self.given.push_back(place);
    }

    /// Note that a message is done; false: the run has not given it.
    pub fn acknowledge(&mut self, commit_log_offset: i64) -> bool {
        let Ok(number) = self.given.binary_search_by_key(&commit_log_offset, |place| place.commit_log_offset) else {
            return false;
        };
        self.given.remove(number);
        true
    }

    /// Write what the run has noted into the group's objects.
    fn settle(&mut self, py: Python<'_>) -> PyResult<()> {
        if self.count == 0 {
            return Ok(());
        }
        let queue = self.queue.bind(py);
        queue.setattr(intern!(py, "position"), self.position)?;
        for place in &self.given {
            let queue_offset = place.queue_offset.into_pyobject(py)?;
            self.in_flight.bind(py).set_item(&queue_offset, py.None())?;
            let value = PyTuple::new(py, [queue, queue_offset.as_any()])?;
            self.delivered.bind(py).set_item(place.commit_log_offset, value)?;
        }
        // Last, and each once: after an error the run is settled again.
        let statistics = self.statistics.bind(py);
        add(statistics, "get_size", self.size)?;
        self.size = 0;
        add(statistics, "get_nums", self.count)
    }
}

/// Add *more* to a number of *object*.
pub fn add(object: &Bound<'_, PyAny>, name: &str, more: i64) -> PyResult<()> {
    let before: i64 = object.getattr(name)?.extract()?;
    object.setattr(name, before + more)
}

/// The run of one consumer; `None`: it has none.
pub type SharedRun = Arc<Mutex<Option<ConsumerRun>>>;

/// A reentrant lock, as `threading.RLock`, whose holder sees what the kernel has given.
#[pyclass(frozen, module = "reput_kernel")]
pub struct GroupLock {
    inner: Py<PyAny>,
    /// How often the thread that holds it has acquired it.
    depth: AtomicUsize,
    /// The run that is not settled: one at most, because it begins under the lock. Neither it nor this is locked while
    /// Python code may run.
    unsettled: Mutex<Option<SharedRun>>,
    abandoned: AtomicBool,
}

impl GroupLock {
    /// Tell whether no thread holds the lock, so that a run may grow.
    pub fn is_free(&self) -> bool {
        self.depth.load(Ordering::Relaxed) == 0 && !self.is_abandoned()
    }

    /// Tell whether this is a forked child, where nobody may wait for the lock.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Tell whether the calling thread, which holds the lock, has acquired it just once, so that a run may begin.
    pub fn is_outermost(&self) -> bool {
        self.depth.load(Ordering::Relaxed) == 1 && !self.is_abandoned()
    }

    /// Begin a run, which is settled as soon as the lock is acquired again. The caller holds it outermost, so there is none.
    pub fn begin(&self, shared: &SharedRun, run: ConsumerRun) {
        if let (Ok(mut unsettled), Ok(mut own)) = (self.unsettled.lock(), shared.lock()) {
            *own = Some(run);
            *unsettled = Some(Arc::clone(shared));
        }
    }

    /// Note that the calling thread has acquired the lock *depth* times more, and settle the run.
    ///
    /// After an error the lock is acquired, and the run is left to the next one who acquires it.
    fn entered(&self, py: Python<'_>, depth: usize) -> PyResult<()> {
        if self.depth.fetch_add(depth, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let Some(shared) = self.unsettled.lock().ok().and_then(|mut unsettled| unsettled.take()) else { return Ok(()) };
        let run = shared.lock().ok().and_then(|mut run| run.take());
        if let Some(mut run) = run
            && !self.is_abandoned()
            && let Err(error) = run.settle(py)
        {
            self.begin(&shared, run);
            return Err(error);
        }
        Ok(())
    }

    /// As `entered` once more; an error releases the lock.
    fn entered_or_left(&self, py: Python<'_>) -> PyResult<()> {
        let entered = self.entered(py, 1);
        if entered.is_err() {
            self.leave(py)?;
        }
        entered
    }

    /// Release the lock.
    pub fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.bind(py).call_method0(intern!(py, "release"))?;
        // It did not run Python code, so no other thread has come in between.
        self.depth.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// Wait for the lock. Nothing is borrowed meanwhile: other threads run.
    pub fn enter(&self, py: Python<'_>) -> PyResult<()> {
        self.inner.bind(py).call_method0(intern!(py, "acquire"))?;
        self.entered_or_left(py)
    }
}

#[pymethods]
impl GroupLock {
    /// Wrap *inner*, a `threading.RLock`.
    #[new]
    fn new(inner: Py<PyAny>) -> GroupLock {
        GroupLock { inner, depth: AtomicUsize::new(0), unsettled: Mutex::default(), abandoned: AtomicBool::new(false) }
    }

    #[pyo3(signature = (blocking = true, timeout = -1.0))]
    fn acquire(&self, py: Python<'_>, blocking: bool, timeout: f64) -> PyResult<bool> {
        let is_acquired = self.inner.bind(py).call_method1(intern!(py, "acquire"), (blocking, timeout))?.is_truthy()?;
        if is_acquired {
            self.entered_or_left(py)?;
        }
        Ok(is_acquired)
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.leave(py)
    }

    fn __enter__(&self, py: Python<'_>) -> PyResult<bool> {
        self.enter(py)?;
        Ok(true)
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> PyResult<()> {
        self.leave(py)
    }

    /// For `threading.Condition`.
    fn _is_owned<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.inner.bind(py).call_method0(intern!(py, "_is_owned"))
    }

    /// For `threading.Condition`: release the lock, however often it was acquired.
    fn _release_save<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, usize)> {
        let state = self.inner.bind(py).call_method0(intern!(py, "_release_save"))?;
        Ok((state, self.depth.swap(0, Ordering::Relaxed)))
    }

    /// For `threading.Condition`: acquire it as often again, also if this raises: whoever waited releases it.
    fn _acquire_restore(&self, py: Python<'_>, state: (Bound<'_, PyAny>, usize)) -> PyResult<()> {
        self.inner.bind(py).call_method1(intern!(py, "_acquire_restore"), (state.0,))?;
        self.entered(py, state.1)
    }

    /// Called in a forked child, where another thread of the parent may hold it: give and settle nothing any more, and never
    /// wait for it.
    fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}
