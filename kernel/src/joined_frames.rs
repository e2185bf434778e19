//! Frames of the ring that were read together, joined: `decode_frames` of `reput/process/frames/joined_frames.py`.
//!
//! `reput/process/frames/frame.py` draws a frame, a MessagePack array. Only what msgspec writes is read; all else is none.

use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

use crate::record::ROW_SIZE;
use crate::room::bytes;

/// The frame has requests.
const BATCH: i64 = 0;
/// Where the index of its queue lies in a row.
const QUEUE_INDEX: std::ops::Range<usize> = 44..48;

/// What is left of MessagePack.
struct Packed<'a>(&'a [u8]);

impl<'a> Packed<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (own, left) = self.0.split_at_checked(size)?;
        self.0 = left;
        Some(own)
    }

    /// Take a number of *SIZE* bytes, which is not negative.
    fn number<const SIZE: usize>(&mut self) -> Option<u64> {
        let own: [u8; SIZE] = self.take(SIZE)?.try_into().ok()?;
        Some(own.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn tag(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    fn int(&mut self) -> Option<i64> {
        match self.tag()? {
            tag @ (0..=0x7F | 0xE0..) => Some(i64::from(tag.cast_signed())),
            0xCC => self.number::<1>()?.try_into().ok(),
            0xCD => self.number::<2>()?.try_into().ok(),
            0xCE => self.number::<4>()?.try_into().ok(),
            0xCF => self.number::<8>()?.try_into().ok(),
            0xD0 => Some(i64::from((self.number::<1>()? as u8).cast_signed())),
            0xD1 => Some(i64::from((self.number::<2>()? as u16).cast_signed())),
            0xD2 => Some(i64::from((self.number::<4>()? as u32).cast_signed())),
            0xD3 => Some(self.number::<8>()?.cast_signed()),
            _ => None,
        }
    }

    /// Take the begin of an array, and return how many elements it has.
    fn array(&mut self) -> Option<usize> {
        match self.tag()? {
            tag @ 0x90..=0x9F => Some(usize::from(tag & 0xF)),
            0xDC => self.number::<2>()?.try_into().ok(),
            0xDD => self.number::<4>()?.try_into().ok(),
            _ => None,
        }
    }

    fn text(&mut self) -> Option<&'a str> {
        let size = match self.tag()? {
            tag @ 0xA0..=0xBF => u64::from(tag & 0x1F),
            0xD9 => self.number::<1>()?,
            0xDA => self.number::<2>()?,
            0xDB => self.number::<4>()?,
            _ => return None,
        };
        std::str::from_utf8(self.take(size.try_into().ok()?)?).ok()
    }

    fn octets(&mut self) -> Option<&'a [u8]> {
        let size = match self.tag()? {
            0xC4 => self.number::<1>()?,
            0xC5 => self.number::<2>()?,
            0xC6 => self.number::<4>()?,
            _ => return None,
        };
        self.take(size.try_into().ok()?)
    }

    fn queue(&mut self) -> Option<(&'a str, i64)> {
        if self.array()? != 2 {
            return None;
        }
        Some((self.text()?, self.int()?))
    }
}

/// One frame.
#[derive(Clone, Copy)]
struct Frame<'a> {
    kind: i64,
    epoch: i64,
    begin: i64,
    end: i64,
    end_store_timestamp: i64,
    ordinal: i64,
    /// The queues as they are packed, without the begin of their array, and how many there are.
    queues: (&'a [u8], usize),
    rows: &'a [[u8; ROW_SIZE]],
    texts: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Read a frame; `None`: it is none, or has another form.
    fn read(data: &'a [u8]) -> Option<Frame<'a>> {
        let mut packed = Packed(data);
        if packed.array()? != 7 {
            return None;
        }
        let (kind, epoch, begin, end) = (packed.int()?, packed.int()?, packed.int()?, packed.int()?);
        let (end_store_timestamp, ordinal) = (packed.int()?, packed.int()?);
        if packed.array()? != 3 {
            return None;
        }
        let count = packed.array()?;
        let before = packed.0;
        for _ in 0..count {
            packed.queue()?;
        }
        let queues = (&before[..before.len() - packed.0.len()], count);
        let (rows, rest) = packed.octets()?.as_chunks::<ROW_SIZE>();
        let texts = packed.octets()?;
        (rest.is_empty() && packed.0.is_empty()).then_some(Frame {
            kind,
            epoch,
            begin,
            end,
            end_store_timestamp,
            ordinal,
            queues,
            rows,
            texts,
        })
    }

    fn queues(&self) -> impl Iterator<Item = Option<(&'a str, i64)>> + use<'a> {
        let mut packed = Packed(self.queues.0);
        (0..self.queues.1).map(move |_| packed.queue())
    }
}

/// Adjacent frames that become one.
struct Joined<'a> {
    first: Frame<'a>,
    last: Frame<'a>,
    /// In the order of their appearance.
    queues: Vec<(&'a str, i64)>,
    numbers: HashMap<(&'a str, i64), usize>,
    /// Of the last frame's queues, their numbers here; empty: they are the same.
    renumbered: Vec<usize>,
    rows: Vec<u8>,
    texts: Vec<u8>,
}

/// The fields of a `Frame`, and of its columns.
type Fields<'py> =
    (i64, i64, i64, i64, i64, i64, (Bound<'py, PyList>, Bound<'py, PyBytes>, Bound<'py, PyBytes>));

impl<'a> Joined<'a> {
    /// Begin with a frame; `None`: there is no memory, or the frame contradicts itself.
    fn of(frame: Frame<'a>) -> Option<Joined<'a>> {
        let mut joined = Joined {
            first: frame,
            last: frame,
            queues: Vec::new(),
            numbers: HashMap::new(),
            renumbered: Vec::new(),
            rows: Vec::new(),
            texts: Vec::new(),
        };
        joined.number_queues()?;
        joined.add()?;
        Some(joined)
    }

    /// Tell whether *frame* continues this one, below the commit-log offset *bound*.
    fn goes_on_with(&self, frame: &Frame<'_>, bound: i64, rows_max: i64) -> bool {
        frame.begin == self.last.end
            && frame.end <= bound
            && frame.kind == BATCH
            && self.first.kind == BATCH
            && frame.epoch == self.first.epoch
            && frame.ordinal.checked_sub(self.first.ordinal).is_some_and(|rows| rows < rows_max)
    }

    /// Add the frame that goes on; `None`: as of `of`.
    fn push(&mut self, frame: Frame<'a>) -> Option<()> {
        let is_same = frame.queues == self.last.queues;
        self.last = frame;
        if !is_same {
            self.number_queues()?;
        }
        self.add()
    }

    /// Number the queues of the last frame.
    fn number_queues(&mut self) -> Option<()> {
        self.renumbered.clear();
        let mut is_same = true;
        for (own, queue) in self.last.queues().enumerate() {
            let queue = queue?;
            let next = self.queues.len();
            let number = *self.numbers.entry(queue).or_insert(next);
            if number == next {
                self.queues.push(queue);
            }
            is_same &= number == own;
            self.renumbered.push(number);
        }
        if is_same {
            self.renumbered.clear();
        }
        Some(())
    }

    /// Add the rows and texts of the last frame.
    fn add(&mut self) -> Option<()> {
        let begin = self.rows.len();
        let rows = self.last.rows.as_flattened();
        self.rows.try_reserve(rows.len()).ok()?;
        self.texts.try_reserve(self.last.texts.len()).ok()?;
        self.rows.extend_from_slice(rows);
        self.texts.extend_from_slice(self.last.texts);
        if !self.renumbered.is_empty() {
            for row in self.rows[begin..].as_chunks_mut::<ROW_SIZE>().0 {
                let own = i32::from_le_bytes(row[QUEUE_INDEX].try_into().expect("four bytes"));
                let number = *self.renumbered.get(usize::try_from(own).ok()?)?;
                row[QUEUE_INDEX].copy_from_slice(&i32::try_from(number).ok()?.to_le_bytes());
            }
        }
        Some(())
    }

    fn fields<'py>(&self, py: Python<'py>) -> PyResult<Fields<'py>> {
        let queues = PyList::empty(py);
        for (topic, queue_id) in &self.queues {
            queues.append((PyString::new(py, topic), queue_id))?;
        }
        let (first, last) = (&self.first, &self.last);
        let columns = (queues, bytes(py, &self.rows)?, bytes(py, &self.texts)?);
        Ok((first.kind, first.epoch, first.begin, last.end, last.end_store_timestamp, first.ordinal, columns))
    }
}

/// Return the fields of *frames* decoded; those that end at or below *bound* are joined, until one has *rows_max* rows.
///
/// None: one is of another form, or contradicts itself, and all take the Python path.
#[pyfunction]
pub fn join_frames<'py>(
    frames: &Bound<'py, PyList>,
    bound: i64,
    rows_max: i64,
) -> PyResult<Option<Vec<Fields<'py>>>> {
    let py = frames.py();
    let frames: Vec<Bound<'py, PyBytes>> = frames.extract()?;
    let mut found = Vec::new();
    let mut joined: Option<Joined<'_>> = None;
    for data in &frames {
        let Some(frame) = Frame::read(data.as_bytes()) else { return Ok(None) };
        match &mut joined {
            Some(joined) if joined.goes_on_with(&frame, bound, rows_max) => {
                if joined.push(frame).is_none() {
                    return Ok(None);
                }
            }
            _ => {
                if let Some(joined) = joined.take() {
                    found.push(joined.fields(py)?);
                }
                let Some(begun) = Joined::of(frame) else { return Ok(None) };
                joined = Some(begun);
            }
        }
    }
    if let Some(joined) = joined {
        found.push(joined.fields(py)?);
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of one row of the queue ("t", 0), or of what takes its place.
    fn frame(rows: &[u8]) -> Vec<u8> {
        let mut data = vec![0x97, 0, 1, 0xCD, 1, 0, 0xCF, 0, 0, 0, 0, 0, 0, 2, 0, 0xD3];
        data.extend_from_slice(&7i64.to_be_bytes());
        data.extend_from_slice(&[5, 0x93, 0x91, 0x92, 0xA1, b't', 0, 0xC4, rows.len() as u8]);
        data.extend_from_slice(rows);
        data.extend_from_slice(&[0xC4, 1, b'k']);
        data
    }

    #[test]
    fn a_frame_is_read_whole_or_not_at_all() {
        let data = frame(&[0; ROW_SIZE]);
        let read = Frame::read(&data).unwrap();
        assert_eq!((read.kind, read.epoch, read.begin, read.end), (0, 1, 256, 512));
        assert_eq!((read.end_store_timestamp, read.ordinal, read.rows.len(), read.texts), (7, 5, 1, &b"k"[..]));
        assert_eq!(read.queues().collect::<Vec<_>>(), [Some(("t", 0))]);
        assert!((0..data.len()).all(|size| Frame::read(&data[..size]).is_none()));
        assert!(Frame::read(&[&data[..], &[0]].concat()).is_none());
        assert!(Frame::read(&frame(&[0; ROW_SIZE - 1])).is_none());
    }

    #[test]
    fn no_bytes_make_a_panic() {
        let data = frame(&[0; ROW_SIZE]);
        for at in 0..data.len() {
            for byte in 0..=255 {
                let mut damaged = data.clone();
                damaged[at] = byte;
                if let Some(frame) = Frame::read(&damaged) {
                    let _ = Joined::of(frame).and_then(|mut joined| joined.push(Frame::read(&data)?));
                }
            }
        }
    }
}
