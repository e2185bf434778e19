//! Dispatch rows as dispatchers get them: `DispatchColumns` of `reput_hooks/dispatch.py`, which draws them.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};

use crate::record::ROW_SIZE;

/// The requests of one frame, as columns.
pub struct Columns<'py> {
    queues: Bound<'py, PyList>,
    rows: Bound<'py, PyBytes>,
    texts: Bound<'py, PyBytes>,
}

/// One row, with its texts.
pub struct Row<'a> {
    data: &'a [u8; ROW_SIZE],
    /// The texts of this record, behind each other.
    pub texts: &'a [u8],
}

/// What the texts of a row hold. `None`: the record has none of it.
pub struct Texts<'a> {
    /// The unique key.
    pub uniq_key: Option<&'a [u8]>,
    /// The keys, which blanks separate.
    pub keys: Option<&'a [u8]>,
    /// The tags.
    pub tags: Option<&'a [u8]>,
}

impl<'py> Columns<'py> {
    /// Read *parts*, each a `DispatchColumns`; `None`: one is of another form, or its rows do not fit its texts.
    pub fn read_all(parts: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Columns<'py>>>> {
        let py = parts.py();
        let mut all = Vec::new();
        for part in parts.try_iter()? {
            let part = part?;
            let Ok(queues) = part.getattr(intern!(py, "queues"))?.cast_into_exact::<PyList>() else { return Ok(None) };
            let Ok(rows) = part.getattr(intern!(py, "rows"))?.cast_into_exact::<PyBytes>() else { return Ok(None) };
            let Ok(texts) = part.getattr(intern!(py, "texts"))?.cast_into_exact::<PyBytes>() else { return Ok(None) };
            let columns = Columns { queues, rows, texts };
            if !columns.fits() {
                return Ok(None);
            }
            all.push(columns);
        }
        Ok(Some(all))
    }

    /// Tell whether all rows are whole, and their queues and texts are there.
    fn fits(&self) -> bool {
        let (chunks, rest) = self.rows.as_bytes().as_chunks::<ROW_SIZE>();
        let mut left = self.texts.as_bytes().len();
        let queue_count = self.queues.len();
        rest.is_empty()
            && chunks.iter().all(|data| {
                let row = Row { data, texts: b"" };
                let fits = row.queue_index() < queue_count && row.texts_size().is_some_and(|size| size <= left);
                if fits {
                    left -= row.texts_size().unwrap_or(0);
                }
                fits
            })
    }

    /// How many rows there are.
    pub fn row_count(&self) -> usize {
        self.rows.as_bytes().len() / ROW_SIZE
    }

    /// The queues, each (topic, queue id); `None`: one is of another form.
    pub fn queues(&self) -> Option<Vec<Bound<'py, PyTuple>>> {
        self.queues.iter().map(|queue| queue.cast_into_exact::<PyTuple>().ok().filter(is_queue)).collect()
    }

    /// The rows, in their order.
    pub fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let mut texts = self.texts.as_bytes();
        let (chunks, _) = self.rows.as_bytes().as_chunks::<ROW_SIZE>();
        chunks.iter().map(move |data| {
            let row = Row { data, texts: b"" };
            let own;
            (own, texts) = texts.split_at(row.texts_size().expect("they fit"));
            Row { data, texts: own }
        })
    }
}

/// Tell whether *queue* is a topic and a queue id.
fn is_queue(queue: &Bound<'_, PyTuple>) -> bool {
    queue.len() == 2
        && queue.get_borrowed_item(0).is_ok_and(|topic| topic.is_exact_instance_of::<PyString>())
        && queue.get_borrowed_item(1).is_ok_and(|queue_id| queue_id.is_exact_instance_of::<PyInt>())
}

impl<'a> Row<'a> {
    fn field<const SIZE: usize>(&self, at: usize) -> [u8; SIZE] {
        self.data[at..at + SIZE].try_into().expect("the size is the same")
    }

    /// Where the record lies.
    pub fn commit_log_offset(&self) -> i64 {
        i64::from_le_bytes(self.field(0))
    }

    /// Its place in its queue.
    pub fn queue_offset(&self) -> i64 {
        i64::from_le_bytes(self.field(8))
    }

    /// Of its tags, or the time of its delivery.
    pub fn tags_code(&self) -> i64 {
        i64::from_le_bytes(self.field(16))
    }

    /// Milliseconds.
    pub fn store_timestamp(&self) -> i64 {
        i64::from_le_bytes(self.field(24))
    }

    /// Bytes.
    pub fn record_size(&self) -> i32 {
        i32::from_le_bytes(self.field(40))
    }

    /// Which of the queues it is in; beyond all of them if it is negative.
    pub fn queue_index(&self) -> usize {
        usize::try_from(i32::from_le_bytes(self.field(44))).unwrap_or(usize::MAX)
    }

    /// Its flags.
    pub fn sys_flag(&self) -> i32 {
        i32::from_le_bytes(self.field(48))
    }

    fn texts_size(&self) -> Option<usize> {
        usize::try_from(i32::from_le_bytes(self.field(52))).ok()
    }

    /// Tell whether the record stands in further queues.
    pub fn is_multi_dispatch(&self) -> bool {
        i16::from_le_bytes(self.field(60)) >= 0
    }

    /// Take the texts apart; `None`: they are shorter than the row says.
    pub fn split_texts(&self) -> Option<Texts<'a>> {
        let mut left = self.texts;
        let mut found = [None; 4];
        for (number, text) in found.iter_mut().enumerate() {
            if let Ok(size) = usize::try_from(i16::from_le_bytes(self.field(56 + 2 * number))) {
                let own;
                (own, left) = left.split_at_checked(size)?;
                *text = Some(own);
            }
        }
        let [uniq_key, keys, ..] = found;
        Some(Texts { uniq_key, keys, tags: if left.is_empty() { None } else { Some(left) } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_are_too_short_are_none() {
        let mut data = [0xFF; ROW_SIZE];
        assert!(Row { data: &data, texts: b"" }.split_texts().unwrap().keys.is_none());
        data[56..58].copy_from_slice(&2i16.to_le_bytes());
        data[58..60].copy_from_slice(&3i16.to_le_bytes());
        assert!(Row { data: &data, texts: b"uukk" }.split_texts().is_none());
        let row = Row { data: &data, texts: b"uukkktag" };
        let texts = row.split_texts().unwrap();
        assert_eq!(texts.uniq_key, Some(&b"uu"[..]));
        assert_eq!(texts.keys, Some(&b"kkk"[..]));
        assert_eq!(texts.tags, Some(&b"tag"[..]));
    }
}
