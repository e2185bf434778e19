//! Columns from JSON objects: for each field of a schema, its values in many bodies.
//!
//! Only what leaves no doubt is decoded: objects as RFC 8259 describes them, in which no field of the schema is twice, with
//! values of the fields' types. At the first other body the call returns None, and Arrow's reader decides about all of them.

use std::collections::TryReserveError;

use jiter::{Jiter, Peek};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::counters::{Way, count};
use crate::json_times::time_of;
use crate::memory::{SharedMemory, with_bytes};
use crate::room::{bytes, vec_of};

/// Bytes of an offset of a body.
const OFFSET_SIZE: usize = 4;
/// The longest number that is taken, and the most digits of an exponent. What Arrow's reader refuses as too large is longer.
const NUMBER_SIZE_MAX: usize = 32;
const EXPONENT_SIZE_MAX: usize = 2;
/// How deep a value without a column may nest.
const DEPTH_MAX: usize = 32;

/// A field of the schema: its name; what its values are; the fields in it, if they are objects.
///
/// `i` a whole number, `f` a number, `b` a truth, `s` a text, `t` a time, `{` an object.
#[derive(Clone, FromPyObject)]
pub struct Field(pub String, pub char, pub Vec<Field>);

/// The values of one field, one for each object so far.
pub struct Column<'a> {
    name: &'a str,
    pub valid: Vec<bool>,
    values: Values<'a>,
}

enum Values<'a> {
    /// Whole numbers, and times in microseconds since 1970.
    Whole(Vec<i64>),
    Times(Vec<i64>),
    Numbers(Vec<f64>),
    Truths(Vec<bool>),
    /// Texts as they stand in the bodies, quotes and escapes included; nothing for a null.
    Texts(Vec<&'a [u8]>),
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
        Some(Column { name: &field.0, valid: vec_of(count).ok()?, values })
    }

    /// Read the next value.
    fn read(&mut self, json: &mut Jiter<'a>) -> Option<()> {
        if json.peek().ok()? == Peek::Null {
            json.known_null().ok()?;
            self.add_null();
            return Some(());
        }
        match &mut self.values {
            // A fraction or an exponent is no part of a whole number.
            Values::Whole(values) => values.push(number_text(json)?.parse().ok()?),
            Values::Times(values) => values.push(time_of(json.next_bytes().ok()?)?),
            Values::Numbers(values) => values.push(number_text(json)?.parse().ok()?),
            Values::Truths(values) => values.push(json.next_bool().ok()?),
            Values::Texts(values) => {
                let begin = json.current_index();
                json.next_bytes().ok()?;
                values.push(json.slice_to_current(begin));
            }
            Values::Objects(columns) => read_object(columns, self.valid.len(), json)?,
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
            Values::Texts(values) => values.push(b""),
            Values::Objects(columns) => columns.iter_mut().for_each(Column::add_null),
        }
        self.valid.push(false);
    }

    /// Return the buffers of an Arrow array, with its texts added to *texts*.
    fn buffers(self, texts: &mut Texts) -> Result<Buffers, TryReserveError> {
        let mut found = Buffers::default();
        if !self.valid.iter().all(|&is| is) {
            found.valid = Some(bits(&self.valid)?);
        }
        match self.values {
            Values::Whole(values) | Values::Times(values) => found.values = joined(values.iter().map(|v| v.to_le_bytes()))?,
            Values::Numbers(values) => found.values = joined(values.iter().map(|v| v.to_le_bytes()))?,
            Values::Truths(values) => found.values = bits(&values)?,
            Values::Texts(values) => {
                found.texts_at = texts.size;
                found.values = texts.add(&values)?;
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
    tape: Vec<u8>,
}

impl Texts<'_> {
    /// Add the texts of a column without quotes and escapes; return where each begins and the last one ends.
    fn add(&mut self, quoted: &[&[u8]]) -> Result<Vec<u8>, TryReserveError> {
        let begin = self.size;
        let mut offsets = vec_of(OFFSET_SIZE * (quoted.len() + 1))?;
        offsets.extend_from_slice(&[0; OFFSET_SIZE]);
        for text in quoted {
            if text.contains(&b'\\') {
                let mut json = Jiter::with_tape(text, std::mem::take(&mut self.tape));
                self.write(json.next_str().expect("it was read before").as_bytes());
                self.tape = json.into_tape();
            } else if let [_, plain @ .., _] = text {
                self.write(plain);
            }
            offsets.extend_from_slice(&((self.size - begin) as i32).to_le_bytes());
        }
        Ok(offsets)
    }

    fn write(&mut self, text: &[u8]) {
        self.memory.write(self.size, text);
        self.size += text.len();
    }
}

/// Return memory for jiter to write a text with escapes to. It has room for any: jiter would end the process if it found none.
fn tape_for(data: &[u8]) -> Option<Vec<u8>> {
    vec_of(data.len()).ok()
}

/// Return a column for each field; None as of `Column::new`.
fn columns_of(fields: &[Field], count: usize) -> Option<Vec<Column<'_>>> {
    let mut columns = vec_of(fields.len()).ok()?;
    for field in fields {
        columns.push(Column::new(field, count)?);
    }
    Some(columns)
}

/// Read the text of a number.
fn number_text<'a>(json: &'a mut Jiter) -> Option<&'a str> {
    let text = std::str::from_utf8(json.next_number_bytes().ok()?).ok()?;
    let exponent = text.split_once(['e', 'E']).map_or("", |(_, exponent)| exponent.trim_start_matches(['+', '-']));
    (text.len() <= NUMBER_SIZE_MAX && exponent.len() <= EXPONENT_SIZE_MAX).then_some(text)
}

/// Read an object, the one with the number *row*, whose fields are *columns*.
fn read_object<'a>(columns: &mut [Column<'a>], row: usize, json: &mut Jiter<'a>) -> Option<()> {
    // Senders write their fields in one order, mostly that of the schema.
    let mut expected = 0;
    let mut next = json.next_object().ok()?;
    while let Some(name) = next {
        let found = match columns.get(expected) {
            Some(column) if column.name == name => Some(expected),
            _ => columns.iter().position(|column| column.name == name),
        };
        match found {
            Some(number) if columns[number].valid.len() == row => {
                columns[number].read(json)?;
                expected = number + 1;
            }
            // Twice in one object.
            Some(_) => return None,
            None => skip(json, DEPTH_MAX)?,
        }
        next = json.next_key().ok()?;
    }
    columns.iter_mut().filter(|column| column.valid.len() == row).for_each(Column::add_null);
    Some(())
}

/// Read a value of any kind, with others in it up to *depth*. Jiter's own way takes numbers that Arrow's reader refuses.
fn skip(json: &mut Jiter, depth: usize) -> Option<()> {
    match json.peek().ok()? {
        Peek::Object => {
            let mut more = json.next_object_bytes().ok()?.is_some();
            while more {
                skip(json, depth.checked_sub(1)?)?;
                more = json.next_key_bytes().ok()?.is_some();
            }
        }
        Peek::Array => {
            let mut more = json.known_array().ok()?.is_some();
            while more {
                skip(json, depth.checked_sub(1)?)?;
                more = json.array_step().ok()?.is_some();
            }
        }
        peek if peek.is_num() => {
            number_text(json)?;
        }
        peek => json.known_skip(peek).ok()?,
    }
    Some(())
}

/// Read the bodies between *offsets*, 4 bytes each, little-endian.
pub fn read_bodies<'a>(fields: &'a [Field], data: &'a [u8], offsets: &[u8]) -> Option<Vec<Column<'a>>> {
    let (offsets, _) = offsets.as_chunks::<OFFSET_SIZE>();
    let mut columns = columns_of(fields, offsets.len().checked_sub(1)?)?;
    let mut tape = tape_for(data)?;
    for (row, pair) in offsets.windows(2).enumerate() {
        let begin = usize::try_from(i32::from_le_bytes(pair[0])).ok()?;
        let end = usize::try_from(i32::from_le_bytes(pair[1])).ok()?;
        let body = data.get(begin..end)?;
        // Jiter does not look at the letters of what it skips.
        std::str::from_utf8(body).ok()?;
        let mut json = Jiter::with_tape(body, tape);
        read_object(&mut columns, row, &mut json)?;
        json.finish().ok()?;
        tape = json.into_tape();
    }
    Some(columns)
}

/// Return the buffers of each column.
fn buffers_of(columns: Vec<Column>, texts: &mut Texts) -> Result<Vec<Buffers>, TryReserveError> {
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
            let mut texts = Texts { memory: &memory, size: 0, tape: tape_for(data)? };
            let columns = read_bodies(&fields, data, offsets)?;
            Some((buffers_of(columns, &mut texts).ok()?, texts.size))
        })
    });
    let Some((found, size)) = found else { return Ok(None) };
    count(Way::Json, offsets.len_bytes() / OFFSET_SIZE - 1);
    Ok(Some((tuple_of(py, &found)?, size)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_that_leave_doubt_are_not_taken() {
        let fields = [Field("i".into(), 'i', vec![]), Field("f".into(), 'f', vec![]), Field("s".into(), 's', vec![])];
        let is_taken = |body: &str| {
            let offsets = [0, body.len() as i32].map(i32::to_le_bytes);
            read_bodies(&fields, body.as_bytes(), offsets.as_flattened()).is_some()
        };
        assert!(is_taken(r#" {"i": -9223372036854775808, "f": 1e-05, "s": "\ud83d\ude00", "x": [1, {}, null, {"y": "\n"}]} "#));
        for wrong in ["9223372036854775808", "1.0", "1e3", "01", "true", "1, \"i\": 2"] {
            assert!(!is_taken(&format!("{{\"i\": {wrong}}}")), "{wrong}");
        }
        let (long, deep) = ("1".repeat(33), "[".repeat(40) + &"]".repeat(40));
        for wrong in ["1e100", "[1e400]", "NaN", "-Infinity", "[1,]", "nul", r#""\ud83d""#, r#""\x""#, "\"a\nb\"", &long, &deep] {
            assert!(!is_taken(&format!("{{\"x\": {wrong}}}")), "{wrong}");
        }
    }
}
