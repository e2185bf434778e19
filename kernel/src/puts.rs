//! KernelPuts: puts that cannot fail, for one `Appender` of `reput/store/writer/appender.py`.
//!
//! The writer's state stays in its Python objects; a put reads the state here, and changes it as a whole. In every other
//! case - a message that breaks a limit, a full segment, a lock that another thread holds - a put returns None before
//! anything has changed. The caller then puts the message in Python ("the Python path"), which raises every error.
//!
//! No Python code runs between the first byte that is written and the last position that changes, so neither Ctrl-C nor
//! another thread sees half a put.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyInt, PyList, PyTuple, PyType};

use crate::counters::{Way, count};
use crate::held_records::{Held, HeldRecords};
use crate::item::{Item, Queue};
use crate::known::{KnownTable, KnownTags, KnownTopic, TopicSlots};
use crate::memory::{SharedMemory, WORD_SIZE};
use crate::message::{AdmittedMessage, MessageSlots, PlainMessage, head_of};
use crate::put_lock::PutLock;
use crate::record::{Head, Header, Host, Numbers};
use crate::room::{bytes, no_memory, vec_of};
use crate::run::Gathering;
use crate::sent::{added_properties, sent_items};
use crate::writer_slots::WriterSlots;

/// Properties of a record: the size field is a signed short.
const PROPERTIES_SIZE_MAX: usize = 32767;

/// The puts of one writer.
#[pyclass(frozen, module = "reput_kernel")]
pub struct KernelPuts {
    appender: Py<PyAny>,
    commit_log: Py<PyAny>,
    preparer: Py<PyAny>,
    statistics: Py<PyAny>,
    topics: Py<PyDict>,
    acquire: Py<PyAny>,
    /// Arguments of `acquire`: it does not wait.
    not_waiting: Py<PyTuple>,
    release: Py<PyAny>,
    message_type: Py<PyType>,
    result_type: Py<PyAny>,
    records_type: Py<PyAny>,
    store_error: Py<PyAny>,
    put_ok: Py<PyAny>,
    /// What a log keeps in memory until it is forced, by commit-log offset; None: the log is a mapped file.
    gathered: Option<Py<PyDict>>,
    /// None: use the system's clock.
    clock: Option<Py<PyAny>>,
    head: Head,
    /// The bytes of the store's host, for results.
    store_host: Py<PyBytes>,
    body_size_max: usize,
    record_size_max: usize,
    known_topics: KnownTable<KnownTopic>,
    known_tags: KnownTable<KnownTags>,
    slots: WriterSlots,
    of_message: MessageSlots,
    of_topic: TopicSlots,
    /// Of the last put, for the next one. Never locked while Python code may run.
    gathering: Mutex<Gathering>,
}

/// The time at which a put was called.
pub enum Called {
    /// By the system's clock.
    At(Instant),
    /// By the store's clock, in seconds.
    Told(f64),
}

/// Where one item is stored.
pub struct Place {
    /// Commit-log offset of its record.
    pub commit_log_offset: i64,
    /// Bytes of its record.
    pub record_size: usize,
    /// Offset in units of the consume queue.
    pub queue_offset: i64,
}

/// The result of one put of one or several items.
pub struct Appended<'py> {
    /// One for each item.
    pub places: Vec<Place>,
    /// Milliseconds since 1970, of all of them.
    pub store_timestamp: i64,
    /// `PutMessageResult` of each item; empty if they were not asked for.
    pub results: Vec<Bound<'py, PyAny>>,
    publication: Publication<'py>,
}

/// What is left to do, after a run was appended, to publish it.
enum Publication<'py> {
    /// The records are to be published.
    Due(Bound<'py, PyAny>),
    /// The record is held, and everything that is held is to be published.
    Release,
    /// The record is held.
    Held,
}

#[pymethods]
impl KernelPuts {
    /// Put for *appender*, whose log is a mapped file, or gathers records until it is forced.
    ///
    /// The types are those that the Python path uses: `Message`, `Topic`, `PutMessageResult`, `AppendedRecords`; then the
    /// status of a result, and the class of the error for a full or failing disk. *clock* gives the time; None: the
    /// system's clock does.
    #[new]
    #[allow(clippy::too_many_arguments)]
    fn new(
        appender: &Bound<'_, PyAny>,
        message_type: &Bound<'_, PyType>,
        topic_type: &Bound<'_, PyType>,
        result_type: Py<PyAny>,
        records_type: Py<PyAny>,
        put_ok: Py<PyAny>,
        store_error: Py<PyAny>,
        clock: Option<Py<PyAny>>,
    ) -> PyResult<KernelPuts> {
        let py = appender.py();
        let preparer = appender.getattr("preparer")?;
        let put_lock = appender.getattr("put_lock")?;
        let commit_log = appender.getattr("commit_log")?;
        let statistics = appender.getattr("put_statistics")?;
        let gathered = commit_log.getattr_opt("gathered")?;
        let head = head_of(&preparer.getattr("head")?)?;
        Ok(KernelPuts {
            slots: WriterSlots::of(appender, &commit_log, &preparer, &statistics)?,
            of_message: MessageSlots::of(message_type)?,
            of_topic: TopicSlots::of(topic_type)?,
            gathering: Mutex::default(),
            store_host: PyBytes::new(py, head.store_host.stored()).unbind(),
            not_waiting: PyTuple::new(py, [false])?.unbind(),
            gathered: gathered.map(|gathered| gathered.cast_into::<PyDict>()).transpose()?.map(Bound::unbind),
            commit_log: commit_log.unbind(),
            statistics: statistics.unbind(),
            topics: preparer.getattr("topics")?.cast_into::<PyDict>()?.unbind(),
            acquire: put_lock.getattr("acquire")?.unbind(),
            release: put_lock.getattr("release")?.unbind(),
            head,
            body_size_max: preparer.getattr("body_size_max")?.extract()?,
            record_size_max: preparer.getattr("record_size_max")?.extract()?,
            preparer: preparer.unbind(),
            appender: appender.clone().unbind(),
            message_type: message_type.clone().unbind(),
            result_type,
            records_type,
            store_error,
            put_ok,
            clock,
            known_topics: KnownTable::new(),
            known_tags: KnownTable::new(),
        })
    }

    /// Put one message and return its result; None: it takes the Python path.
    fn put<'py>(&self, message: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = message.py();
        let called = self.monotonic(py)?;
        if !self.is_plain_writer(py)? {
            return Ok(None);
        }
        let Some(plain) = self.plain(message)? else { return Ok(None) };
        let Some(item) = plain.item(py, &self.head, self.body_size_max)? else { return Ok(None) };
        let Some(Appended { mut results, .. }) = self.append(py, &[item], true, false)? else { return Ok(None) };
        self.note(py, called, 1)?;
        count(Way::Put, 1);
        Ok(results.pop())
    }

    /// Check a message for `append_each`, and choose its queue; None: it takes the Python path.
    fn admit(&self, message: &Bound<'_, PyAny>) -> PyResult<Option<AdmittedMessage>> {
        let py = message.py();
        if !self.is_plain_writer(py)? {
            return Ok(None);
        }
        let Some(mut plain) = self.plain(message)? else { return Ok(None) };
        let (record_size, queue_id) = {
            let Some(item) = plain.item(py, &self.head, self.body_size_max)? else { return Ok(None) };
            let Some(record_size) = self.checked_size(py, &item) else { return Ok(None) };
            (record_size, item.queue_id(py, &self.of_topic)?)
        };
        plain.queue = Queue::Id(queue_id);
        Ok(Some(AdmittedMessage { message: plain, queue_id, record_size }))
    }

    /// Put admitted messages, each as a put of its own, and return their results; None: they take the Python path.
    fn append_each<'py>(&self, batch: &Bound<'py, PyList>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let py = batch.py();
        let (Ok(mut admitted), Ok(mut items)) = (vec_of(batch.len()), vec_of(batch.len())) else { return Ok(None) };
        for prepared in batch.iter() {
            let Ok(prepared) = prepared.cast_into_exact::<AdmittedMessage>() else { return Ok(None) };
            admitted.push(prepared);
        }
        for prepared in &admitted {
            let Some(item) = prepared.get().message.item(py, &self.head, self.body_size_max)? else { return Ok(None) };
            items.push(item);
        }
        let Some(Appended { results, .. }) = self.append(py, &items, true, false)? else { return Ok(None) };
        count(Way::PutEach, results.len());
        Ok(Some(results))
    }

    /// Put a list of messages, all or none, and return their results; None: they take the Python path.
    fn put_batch<'py>(&self, messages: &Bound<'py, PyList>) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let py = messages.py();
        let called = self.monotonic(py)?;
        if messages.is_empty() || !self.is_plain_writer(py)? {
            return Ok(None);
        }
        let (Ok(mut plain), Ok(mut items)) = (vec_of(messages.len()), vec_of(messages.len())) else { return Ok(None) };
        for message in messages.iter() {
            let Some(message) = self.plain(&message)? else { return Ok(None) };
            plain.push(message);
        }
        for message in &plain {
            let Some(item) = message.item(py, &self.head, self.body_size_max)? else { return Ok(None) };
            items.push(item);
        }
        let Some(Appended { results, .. }) = self.append(py, &items, true, true)? else { return Ok(None) };
        self.note(py, called, results.len())?;
        count(Way::PutBatch, results.len());
        Ok(Some(results))
    }

    /// Put the messages of a batch that a client sent, all or none, and return their results; None: the Python path.
    ///
    /// *body* is the body of the request, *of_batch* the properties string of the batch, which every message gets, and
    /// *added* that string with what a broker adds.
    fn put_sent_batch<'py>(
        &self,
        topic: &Bound<'py, PyAny>,
        queue_id: i32,
        body: &Bound<'py, PyBytes>,
        head: &Bound<'py, PyAny>,
        of_batch: &[u8],
        added: &[u8],
    ) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
        let py = topic.py();
        let called = self.monotonic(py)?;
        let Some(topic) = self.topic(topic)? else { return Ok(None) };
        let Some(of_batch) = added_properties(of_batch) else { return Ok(None) };
        let carries = self.carries_properties(py)?;
        let head = head_of(head)?;
        let Some(items) = sent_items(body.as_bytes(), &topic, queue_id, &head, &of_batch, added, carries) else {
            return Ok(None);
        };
        let Some(Appended { results, .. }) = self.append(py, &items, true, true)? else { return Ok(None) };
        self.note(py, called, results.len())?;
        count(Way::SentBatch, results.len());
        Ok(Some(results))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for object in [
            &self.appender,
            &self.commit_log,
            &self.preparer,
            &self.statistics,
            &self.acquire,
            &self.release,
            &self.result_type,
            &self.records_type,
            &self.store_error,
            &self.put_ok,
        ] {
            visit.call(object)?;
        }
        if let Some(clock) = &self.clock {
            visit.call(clock)?;
        }
        if let Some(gathered) = &self.gathered {
            visit.call(gathered)?;
        }
        visit.call(&self.message_type)?;
        visit.call(&self.topics)
    }
}

impl KernelPuts {
    /// Tell whether the writer stores messages without additions.
    fn is_plain_writer(&self, py: Python<'_>) -> PyResult<bool> {
        self.slots.is_plain.get(self.preparer.bind(py))?.is_truthy()
    }

    /// Return the topic of this name; `None`: the writer has not used it yet.
    fn topic(&self, name: &Bound<'_, PyAny>) -> PyResult<Option<Arc<KnownTopic>>> {
        self.known_topics.get(name, |name| KnownTopic::find(self.topics.bind(name.py()), name))
    }

    /// Return the topic of this name, as `topic`, for a name that was just made.
    pub fn topic_named(&self, name: &Bound<'_, PyAny>) -> PyResult<Option<KnownTopic>> {
        KnownTopic::find(self.topics.bind(name.py()), name)
    }

    /// Tell whether the records of *items* together are not larger than one record may be.
    pub fn takes_together(&self, py: Python<'_>, items: &[Item<'_>]) -> bool {
        items.iter().map(|item| item.record_size(py)).sum::<usize>() <= self.record_size_max
    }

    /// Return where records of this writer are stored.
    pub fn store_host(&self) -> Host {
        self.head.store_host
    }

    /// Tell whether the rows of messages carry their properties.
    pub fn carries_properties(&self, py: Python<'_>) -> PyResult<bool> {
        self.slots.needs_properties.get(self.preparer.bind(py))?.is_truthy()
    }

    /// Read a message of the program; `None`: it is not plain.
    fn plain(&self, message: &Bound<'_, PyAny>) -> PyResult<Option<PlainMessage>> {
        let py = message.py();
        if !message.get_type().is(&self.message_type) {
            return Ok(None);
        }
        PlainMessage::read(
            message,
            &self.of_message,
            &self.of_topic,
            |topic| self.topic(topic),
            |tags| {
                self.known_tags.get(tags, |tags| {
                    KnownTags::find(&self.slots.known_tags.get(self.preparer.bind(py))?, tags)
                })
            },
        )
    }

    /// Return the time at which a put was called.
    pub fn monotonic(&self, py: Python<'_>) -> PyResult<Called> {
        if self.clock.is_none() { Ok(Called::At(Instant::now())) } else { Ok(Called::Told(self.told_monotonic(py)?)) }
    }

    /// Return the time of the appender's clock, in seconds.
    fn told_monotonic(&self, py: Python<'_>) -> PyResult<f64> {
        self.appender.bind(py).call_method0(intern!(py, "monotonic"))?.extract()
    }

    /// Count a put that took long, as the Python path does: not one that waits for the disk, which is counted later.
    pub fn note(&self, py: Python<'_>, called: Called, count: usize) -> PyResult<()> {
        if self.gathered.is_some() {
            return Ok(());
        }
        let taken = match called {
            Called::At(called) => called.elapsed().as_secs_f64(),
            Called::Told(called) => self.told_monotonic(py)? - called,
        };
        let statistics = self.statistics.bind(py);
        if taken > self.slots.threshold.get(statistics)?.extract::<f64>()? {
            statistics.call_method1(intern!(py, "note"), (taken, count))?;
        }
        Ok(())
    }

    /// Return the bytes of an item's record; `None`: it breaks a limit.
    fn checked_size(&self, py: Python<'_>, item: &Item<'_>) -> Option<usize> {
        if item.properties_size() > PROPERTIES_SIZE_MAX || item.body.len() > self.body_size_max {
            return None;
        }
        Some(item.record_size(py)).filter(|size| *size <= self.record_size_max)
    }

    /// Append *items* as one run and publish them; `None`: nothing has changed, and they take the Python path.
    ///
    /// *makes_results*: make the results for Python. *is_batch*: return `None` if the whole run is larger than a record
    /// may be, because Python then splits it.
    pub fn append<'py>(
        &self,
        py: Python<'py>,
        items: &[Item<'_>],
        makes_results: bool,
        is_batch: bool,
    ) -> PyResult<Option<Appended<'py>>> {
        let mut size = 0;
        for item in items {
            let Some(record_size) = self.checked_size(py, item) else { return Ok(None) };
            size += record_size;
        }
        if items.is_empty() || is_batch && size > self.record_size_max {
            return Ok(None);
        }
        if !self.acquire.bind(py).call1(self.not_waiting.bind(py))?.is_truthy()? {
            return Ok(None);
        }
        let release = self.release.bind(py);
        let lock = PutLock { release };
        let publisher = self.slots.publisher.get(self.appender.bind(py))?;
        let Some(appended) = self.append_run(py, items, size, makes_results, &publisher)? else { return Ok(None) };
        // Python code runs here, so Ctrl-C may come, as it may between record and publication in the Python path.
        match &appended.publication {
            Publication::Due(records) => drop(publisher.call_method1(intern!(py, "publish"), (records,))?),
            Publication::Release => drop(publisher.call_method0(intern!(py, "release"))?),
            Publication::Held => {}
        }
        drop(lock);
        Ok(Some(appended))
    }

    /// Write *items*, which take *size* bytes, and move the writer's positions; `None`: nothing has changed.
    ///
    /// Under the put lock.
    fn append_run<'py>(
        &self,
        py: Python<'py>,
        items: &[Item<'_>],
        size: usize,
        makes_results: bool,
        publisher: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Appended<'py>>> {
        let appender = self.appender.bind(py);
        let log = self.commit_log.bind(py);
        let slots = &self.slots;
        if slots.closed.get(appender)?.is_truthy()?
            || !slots.read_only_reason.get(appender)?.is_none()
            || !slots.disk_full_reason.get(appender)?.is_none()
        {
            return Ok(None);
        }
        let before = slots.appended.get(log)?;
        let begin: i64 = before.extract()?;
        let end = begin + size as i64;
        if end > slots.safe_until.get(log)?.extract()? && !self.made_safe(log, end)? {
            return Ok(None);
        }
        let timestamp = self.next_timestamp(appender)?;
        // Taken out meanwhile: Python code runs here. A put that fails leaves an empty one behind.
        let mut gathering = mem::take(&mut *self.gathering()?);
        gathering.make_room(items).map_err(no_memory)?;
        let Gathering { run, queue_ids, size_words } = &mut gathering;
        for item in items {
            queue_ids.push(item.queue_id(py, &self.of_topic)?);
        }

        let (target, at) = match &self.gathered {
            None => (slots.memory.get(log)?, begin - slots.begin.get(log)?.extract::<i64>()?),
            Some(_) => (PyByteArray::new_with(py, size, |_| Ok(()))?.into_any(), 0),
        };
        let (memory, at) = (SharedMemory::of(&target)?, at as usize);
        if !memory.has(at, size) {
            return Err(PyValueError::new_err(format!(
                "the record does not fit its segment: record_size={size} position={at}"
            )));
        }
        let mut places = vec_of(if makes_results { 0 } else { items.len() }).map_err(no_memory)?;
        let mut results = vec_of(if makes_results { items.len() } else { 0 }).map_err(no_memory)?;
        let store_host = self.store_host.bind(py);
        let time = PyInt::new(py, timestamp);
        // Until the end no record of the run has its size: if the process is killed meanwhile, nothing behind the log's
        // end looks like a record, and the next opening finds no damage.
        let mut record_at = at;
        let mut offset = before.clone();
        for (item, &queue_id) in items.iter().zip(&*queue_ids) {
            let index = run.queue_index(py, &item.topic, queue_id)?;
            let queue = &mut run.queues[index];
            let field = item.topic.field.bind(py).as_bytes();
            let record_size = item.record_size(py);
            let numbers = Numbers {
                record_size: record_size as i32,
                magic_code: item.topic.magic_code,
                crc: crc32fast::hash(item.body) & 0x7FFF_FFFF,
                queue_id,
                flag: item.flag,
                queue_offset: queue.next_offset,
                commit_log_offset: begin + (record_at - at) as i64,
                store_timestamp: timestamp,
                body_size: item.body.len() as i32,
            };
            let header = Header::pack(item.head, &numbers);
            size_words.push((record_at, numbers.record_size.to_be_bytes()));
            memory.write(record_at + WORD_SIZE, &header.packed()[WORD_SIZE..]);
            let properties_size = (item.properties_size() as i16).to_be_bytes();
            let mut piece_at = record_at + header.packed().len();
            for piece in [item.body, field, &properties_size].iter().chain(&item.properties) {
                memory.write(piece_at, piece);
                piece_at += piece.len();
            }
            debug_assert_eq!(piece_at, record_at + record_size);
            record_at = piece_at;
            run.add_row(item, &numbers, index as i32);
            if makes_results {
                let record_end = (begin + (record_at - at) as i64).into_pyobject(py)?.into_any();
                results.push(self.result_type.bind(py).call1((
                    &self.put_ok,
                    &offset,
                    &record_end,
                    numbers.record_size,
                    queue_id,
                    numbers.queue_offset,
                    &time,
                    store_host,
                ))?);
                offset = record_end;
            } else {
                places.push(Place {
                    commit_log_offset: numbers.commit_log_offset,
                    record_size,
                    queue_offset: numbers.queue_offset,
                });
            }
            let queue = &mut run.queues[index];
            queue.next_offset += 1;
            queue.size += record_size as i64;
        }

        let end_object = if makes_results { offset } else { end.into_pyobject(py)?.into_any() };
        let ordinal = slots.ordinal.get(appender)?.extract::<i64>()? + items.len() as i64;
        let ordinal_object = ordinal.into_pyobject(py)?.into_any();
        let names = run.names(py)?;
        let held = Held { begin, end, store_timestamp: timestamp, ordinal, row: &run.rows, texts: &run.texts };
        let holder = match publisher.getattr(intern!(py, "held"))?.cast_into::<HeldRecords>() {
            Ok(holder) if items.len() == 1 && holder.get().make_room(&held)? => Some(holder),
            _ => None,
        };
        let records = match &holder {
            Some(_) => None,
            None => Some(self.records_type.bind(py).call1((
                &before,
                &end_object,
                &time,
                &ordinal_object,
                &names,
                bytes(py, &run.rows)?,
                bytes(py, &run.texts)?,
            ))?),
        };
        if let Some(gathered) = &self.gathered {
            // The entry counts once the log's end lies behind it.
            gathered.bind(py).set_item(&before, &target)?;
        }
        run.move_offsets(py)?;
        // From here on nothing can fail: attributes that exist get other values.
        for (at, word) in &*size_words {
            memory.write_word(*at, *word);
        }
        drop(memory);
        slots.appended.set(log, end_object)?;
        run.add_put_sizes(py, &self.of_topic)?;
        slots.ordinal.set(appender, ordinal_object)?;
        let publication = match (holder, records) {
            (_, Some(records)) => Publication::Due(records),
            (Some(holder), None) if holder.get().hold(&held, &names)? => Publication::Release,
            (_, None) => Publication::Held,
        };
        gathering.clear();
        *self.gathering()? = gathering;
        Ok(Some(Appended { places, store_timestamp: timestamp, results, publication }))
    }

    fn gathering(&self) -> PyResult<MutexGuard<'_, Gathering>> {
        self.gathering.lock().map_err(|_| PyRuntimeError::new_err("what a put gathers is broken"))
    }

    /// Make room up to *end* in the present segment; false: the segment ends before, or the disk has no room.
    fn made_safe(&self, log: &Bound<'_, PyAny>, end: i64) -> PyResult<bool> {
        let py = log.py();
        if end > self.slots.limit.get(log)?.extract()? {
            return Ok(false);
        }
        match log.call_method1(intern!(py, "make_safe"), (end,)) {
            Ok(_) => Ok(true),
            // The Python path asks again, and raises the error.
            Err(error) if error.is_instance(py, self.store_error.bind(py)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Return the store time of the next record, which never goes back within a log.
    fn next_timestamp(&self, appender: &Bound<'_, PyAny>) -> PyResult<i64> {
        let py = appender.py();
        let before: i64 = self.slots.store_timestamp.get(appender)?.extract()?;
        let now = match &self.clock {
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64),
            Some(clock) => clock.bind(py).call_method0(intern!(py, "now_ms"))?.extract()?,
        };
        if now <= before {
            return Ok(before);
        }
        // The head that the Python path caches has the former time.
        self.slots.origin_head.set(appender, py.None().into_bound(py))?;
        self.slots.store_timestamp.set(appender, now.into_pyobject(py)?.into_any())?;
        Ok(now)
    }
}
