//! Columns from JSON objects: for each field of a schema, its values in many bodies.
//!
//! Only what leaves no doubt is decoded: objects as RFC 8259 describes them, in which no field of the schema is twice, with
//! values of the fields' types. At the first other body the call returns None, and Arrow's reader decides about all of them.

use std::collections::TryReserveError;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::counters::{Way, count};
use crate::json_text::{Reader, Text};
use crate::memory::{SharedMemory, with_bytes};
use crate::room::{bytes, vec_of};

/// Bytes of an offset of a body.
const OFFSET_SIZE: usize = 4;

/// A field of the schema: its name; what its values are; the fields in it, if they are objects.
///
/// `i` a whole number, `f` a number, `b` a truth, `s` a text, `t` a time, `{` an object.
#[derive(FromPyObject)]
pub struct Field(pub String, pub char, pub Vec<Field>);

/// The values of one field, one for each object so far.
struct Column<'a> {
    name: &'a [u8],
    valid: Vec<bool>,
    values: Values<'a>,
}

enum Values<'a> {
    /// Whole numbers, and times in microseconds since 1970.
    Whole(Vec<i64>),
    Times(Vec<i64>),
    Numbers(Vec<f64>),
    Truths(Vec<bool>),
    /// Where the texts lie; see `Reader`.
    Texts(Vec<Text>),
    Objects(Vec<Column<'a>>),
}

impl<'a> Column<'a> {
    /// Return a column with room for *count* values; None if the field has no such kind, or if there is no memory.
    fn new(field: &'a Field, count: usize) -> Option<Column<'a>> {
        let values = match field.1 {
            'i' => Values::Whole(vec_of(count).ok()?),
            't' => Values::Times(vec_of(count).ok()?),
            'f' => Values::Numbers(vec_of(count).ok()?),
            'b' => Values::Truths(vec_of(count).ok()?),
            's' => Values::Texts(vec_of(count).ok()?),
            '{' => Values::Objects(columns_of(&field.2, count)?),
            _ => return None,
        };
        Some(Column { name: field.0.as_bytes(), valid: vec_of(count).ok()?, values })
    }

    /// Read the next value.
    fn read(&mut self, reader: &mut Reader) -> Option<()> {
        if reader.take_null()? {
            self.add_null();
            return Some(());
        }
        match &mut self.values {
            Values::Whole(values) => values.push(reader.whole_number()?),
            Values::Times(values) => values.push(reader.time()?),
            Values::Numbers(values) => values.push(reader.number()?),
            Values::Truths(values) => values.push(reader.truth()?),
            Values::Texts(values) => values.push(reader.text()?),
            Values::Objects(columns) => read_object(columns, self.valid.len(), reader)?,
        }
        self.valid.push(true);
        Some(())
    }

    /// Add a value that is null or absent.
    fn add_null(&mut self) {
        match &mut self.values {
            Values::Whole(values) | Values::Times(values) => values.push(0),
            Values::Numbers(values) => values.push(0.0),
            Values::Truths(values) => values.push(false),
            Values::Texts(values) => values.push(Text::default()),
            Values::Objects(columns) => columns.iter_mut().for_each(Column::add_null),
        }
        self.valid.push(false);
    }

    /// Return the buffers of an Arrow array, with its texts added to *texts*.
    fn buffers(&self, texts: &mut Texts) -> Result<Buffers, TryReserveError> {
        let mut found = Buffers::default();
        if !self.valid.iter().all(|&is| is) {
            found.valid = Some(bits(&self.valid)?);
        }
        match &self.values {
            Values::Whole(values) | Values::Times(values) => found.values = joined(values.iter().map(|v| v.to_le_bytes()))?,
            Values::Numbers(values) => found.values = joined(values.iter().map(|v| v.to_le_bytes()))?,
            Values::Truths(values) => found.values = bits(values)?,
            Values::Texts(values) => {
                let mut end = 0;
                let ends = values.iter().map(|text| {
                    end += text.size;
                    end.to_le_bytes()
                });
                let mut offsets = vec_of(OFFSET_SIZE * (values.len() + 1))?;
                offsets.extend_from_slice(&[0; OFFSET_SIZE]);
                offsets.extend(ends.flatten());
                found.values = offsets;
                found.texts_at = texts.add(values);
            }
            Values::Objects(columns) => found.inner = buffers_of(columns, texts)?,
        }
        Ok(found)
    }
}

/// The buffers of an Arrow array.
#[derive(Default)]
struct Buffers {
    /// A bit for each value; None: all are valid.
    valid: Option<Vec<u8>>,
    /// The values; of texts, where they begin and where the last one ends.
    values: Vec<u8>,
    /// Where the texts begin in the memory of all texts.
    texts_at: usize,
    /// The arrays in this one.
    inner: Vec<Buffers>,
}

impl Buffers {
    /// Return them as a tuple, in their order.
    fn as_tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let valid = match &self.valid {
            Some(found) => bytes(py, found)?.into_any(),
            None => py.None().into_bound(py),
        };
        let texts_at = self.texts_at.into_pyobject(py)?.into_any();
        PyTuple::new(py, [valid, bytes(py, &self.values)?.into_any(), texts_at, tuple_of(py, &self.inner)?.into_any()])
    }
}

/// The memory of all texts, those of one column after the other.
struct Texts<'a> {
    memory: &'a SharedMemory<'a>,
    size: usize,
    data: &'a [u8],
    made: &'a [u8],
}

impl Texts<'_> {
    /// Add texts, and return where they begin.
    fn add(&mut self, places: &[Text]) -> usize {
        let begin = self.size;
        for place in places {
            let (at, size) = (place.at as usize, place.size as usize);
            let text = match at.checked_sub(self.data.len()) {
                Some(at) => &self.made[at..at + size],
                None => &self.data[at..at + size],
            };
            self.memory.write(self.size, text);
            self.size += size;
        }
        begin
    }
}

/// Return a column for each field; None as of `Column::new`.
fn columns_of(fields: &[Field], count: usize) -> Option<Vec<Column<'_>>> {
    let mut columns = vec_of(fields.len()).ok()?;
    for field in fields {
        columns.push(Column::new(field, count)?);
    }
    Some(columns)
}

/// Read an object, the one with the number *row*, whose fields are *columns*.
fn read_object(columns: &mut [Column], row: usize, reader: &mut Reader) -> Option<()> {
    // Senders write their fields in one order, mostly that of the schema.
    let mut expected = 0;
    let mut more = reader.begin_object()?;
    while more {
        let name = reader.name()?;
        let found = match columns.get(expected) {
            Some(column) if column.name == name => Some(expected),
            _ => columns.iter().position(|column| column.name == name),
        };
        match found {
            Some(number) if columns[number].valid.len() == row => {
                columns[number].read(reader)?;
                expected = number + 1;
            }
            // Twice in one object.
            Some(_) => return None,
            None => reader.skip(0)?,
        }
        more = reader.continue_object()?;
    }
    for column in columns.iter_mut().filter(|column| column.valid.len() == row) {
        column.add_null();
    }
    Some(())
}

/// Read the bodies between *offsets*, 4 bytes each, little-endian; return the columns, and the texts that are not in *data*.
fn read_bodies<'a>(fields: &'a [Field], data: &[u8], offsets: &[u8]) -> Option<(Vec<Column<'a>>, Vec<u8>)> {
    let (offsets, _) = offsets.as_chunks::<OFFSET_SIZE>();
    let mut columns = columns_of(fields, offsets.len().checked_sub(1)?)?;
    let mut made = Vec::new();
    for (row, pair) in offsets.windows(2).enumerate() {
        let begin = usize::try_from(i32::from_le_bytes(pair[0])).ok()?;
        let end = usize::try_from(i32::from_le_bytes(pair[1])).ok()?;
        std::str::from_utf8(data.get(begin..end)?).ok()?;
        let mut reader = Reader::new(data, begin, end, &mut made);
        read_object(&mut columns, row, &mut reader)?;
        reader.is_at_end().then_some(())?;
    }
    Some((columns, made))
}

/// Return the buffers of each column.
fn buffers_of(columns: &[Column], texts: &mut Texts) -> Result<Vec<Buffers>, TryReserveError> {
    let mut found = vec_of(columns.len())?;
    for column in columns {
        found.push(column.buffers(texts)?);
    }
    Ok(found)
}

/// Return a tuple for each of *buffers*.
fn tuple_of<'py>(py: Python<'py>, buffers: &[Buffers]) -> PyResult<Bound<'py, PyTuple>> {
    let found: PyResult<Vec<_>> = buffers.iter().map(|one| one.as_tuple(py)).collect();
    PyTuple::new(py, found?)
}

/// Return values of 8 bytes behind one another.
fn joined(values: impl ExactSizeIterator<Item = [u8; 8]>) -> Result<Vec<u8>, TryReserveError> {
    let mut found = vec_of(8 * values.len())?;
    found.extend(values.flatten());
    Ok(found)
}

/// Return a bit for each value, the first in the lowest bit of the first byte.
fn bits(values: &[bool]) -> Result<Vec<u8>, TryReserveError> {
    let mut found = vec_of(values.len().div_ceil(8))?;
    found.extend(values.chunks(8).map(|eight| eight.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit))));
    Ok(found)
}

/// The columns, a tuple each, as `Buffers`, and how many bytes of texts they have.
type Found<'py> = (Bound<'py, PyTuple>, usize);

/// Return the columns of JSON bodies. None: a body leaves doubt, or there is no memory.
///
/// *data*: the bodies, which lie behind one another; *offsets*: where each begins and the last one ends, 4 bytes each;
/// *texts*: memory of the size of the bodies, for their texts.
#[pyfunction]
pub fn json_columns<'py>(
    py: Python<'py>,
    fields: Vec<Field>,
    data: PyBuffer<u8>,
    offsets: PyBuffer<u8>,
    texts: &Bound<'py, PyAny>,
) -> PyResult<Option<Found<'py>>> {
    let memory = SharedMemory::of(texts)?;
    let found = with_bytes(py, &offsets, |offsets| {
        with_bytes(py, &data, |data| {
            let (columns, made) = read_bodies(&fields, data, offsets)?;
            let mut texts = Texts { memory: &memory, size: 0, data, made: &made };
            Some((buffers_of(&columns, &mut texts).ok()?, texts.size))
        })
    });
    let Some((found, size)) = found else { return Ok(None) };
    count(Way::Json, offsets.len_bytes() / OFFSET_SIZE - 1);
    Ok(Some((tuple_of(py, &found)?, size)))
}
