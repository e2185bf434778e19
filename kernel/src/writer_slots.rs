//! WriterSlots: what a put reads of the writer's objects each time, and changes.

use pyo3::prelude::*;

use crate::slots::Slot;

/// Attributes of a writer's objects.
#[allow(missing_docs)]
pub struct WriterSlots {
    // Of the appender.
    pub closed: Slot,
    pub disk_full_reason: Slot,
    pub ordinal: Slot,
    pub origin_head: Slot,
    pub publisher: Slot,
    pub read_only_reason: Slot,
    pub store_timestamp: Slot,
    // Of the commit log.
    pub appended: Slot,
    pub begin: Slot,
    pub limit: Slot,
    pub memory: Slot,
    pub safe_until: Slot,
    // Of the preparer and of the statistics.
    pub is_plain: Slot,
    pub known_tags: Slot,
    pub needs_properties: Slot,
    pub threshold: Slot,
}

impl WriterSlots {
    /// Find them in the classes of these objects.
    pub fn of(
        appender: &Bound<'_, PyAny>,
        commit_log: &Bound<'_, PyAny>,
        preparer: &Bound<'_, PyAny>,
        statistics: &Bound<'_, PyAny>,
    ) -> PyResult<WriterSlots> {
        let of_appender = |name| Slot::of(&appender.get_type(), name);
        let of_log = |name| Slot::of(&commit_log.get_type(), name);
        let of_preparer = |name| Slot::of(&preparer.get_type(), name);
        Ok(WriterSlots {
            closed: of_appender(c"closed")?,
            disk_full_reason: of_appender(c"disk_full_reason")?,
            ordinal: of_appender(c"ordinal")?,
            origin_head: of_appender(c"origin_head")?,
            publisher: of_appender(c"publisher")?,
            read_only_reason: of_appender(c"read_only_reason")?,
            store_timestamp: of_appender(c"store_timestamp")?,
            appended: of_log(c"appended")?,
            begin: of_log(c"begin")?,
            limit: of_log(c"limit")?,
            memory: of_log(c"memory")?,
            safe_until: of_log(c"safe_until")?,
            is_plain: of_preparer(c"is_plain")?,
            known_tags: of_preparer(c"known_tags")?,
            needs_properties: of_preparer(c"needs_properties")?,
            threshold: Slot::of(&statistics.get_type(), c"threshold")?,
        })
    }
}
