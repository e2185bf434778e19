//! One property of many records, as a column of texts.
//!
//! `PropertyPieces` of `reput/table/property_pieces.py` splits all properties with numpy, and has the rules.

use std::collections::TryReserveError;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::counters::{Way, count};
use crate::memory::with_bytes;
use crate::room::{bytes, vec_of};

const PLACE_SIZE: usize = 8;
const PROPERTY_END: u8 = 2;
const NAME_END: u8 = 1;

/// Return the value of a property; `None`: *properties* have none of this name, or only empty ones.
///
/// *name* ends with the byte that separates it from the value. Of two equal names the later holds.
pub fn value_of<'a>(properties: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let values = properties.split(|byte| *byte == PROPERTY_END).filter_map(|property| property.strip_prefix(name));
    values.filter(|value| !value.is_empty()).next_back()
}

/// Texts as Arrow has them.
#[derive(Default)]
pub struct Texts {
    /// One bit for each text that is there.
    validity: Vec<u8>,
    /// Where each text ends in *data*, behind a zero.
    ends: Vec<u8>,
    data: Vec<u8>,
    null_count: usize,
}

impl Texts {
    /// Gather a property of the records whose properties lie in *log* at *places*, each with a size of *sizes*.
    ///
    /// `None`: they are not all in *log*, or a value is not UTF-8.
    pub fn gather(
        log: &[u8],
        places: &[[u8; PLACE_SIZE]],
        sizes: &[[u8; PLACE_SIZE]],
        name: &[u8],
    ) -> Result<Option<Texts>, TryReserveError> {
        let mut found = Texts { validity: vec_of(places.len().div_ceil(8))?, ..Texts::default() };
        found.validity.resize(places.len().div_ceil(8), 0);
        found.ends = vec_of((places.len() + 1) * size_of::<i32>())?;
        found.ends.extend_from_slice(&[0; size_of::<i32>()]);
        for (number, (place, size)) in places.iter().zip(sizes).enumerate() {
            let Some(properties) = part(log, *place, *size) else { return Ok(None) };
            if let Some(value) = value_of(properties, name) {
                found.data.try_reserve(value.len())?;
                found.data.extend_from_slice(value);
                found.validity[number / 8] |= 1 << (number % 8);
            } else {
                found.null_count += 1;
            }
            let Ok(end) = i32::try_from(found.data.len()) else { return Ok(None) };
            found.ends.extend_from_slice(&end.to_le_bytes());
        }
        // A text that is UTF-8 as a whole may be cut within a letter.
        let (ends, _) = found.ends.as_chunks::<4>();
        let Ok(text) = str::from_utf8(&found.data) else { return Ok(None) };
        let are_whole = text.is_ascii() || ends.iter().all(|end| text.is_char_boundary(u32::from_le_bytes(*end) as usize));
        Ok(are_whole.then_some(found))
    }
}

/// Return *size* bytes of *log* from *place* on, if they are there.
fn part(log: &[u8], place: [u8; PLACE_SIZE], size: [u8; PLACE_SIZE]) -> Option<&[u8]> {
    let place = usize::try_from(i64::from_le_bytes(place)).ok()?;
    let size = usize::try_from(i64::from_le_bytes(size)).ok()?;
    log.get(place..place.checked_add(size)?)
}

/// Validity, offsets and data of an Arrow array of strings, and how many are null.
type Values<'py> = (Option<Bound<'py, PyBytes>>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, usize);

/// Return the values of the property *name* of records in *data*, null where there is none.
///
/// *places* and *sizes* of their properties have 8 bytes each, little-endian. None: take the Python path.
#[pyfunction]
pub fn property_values<'py>(
    py: Python<'py>,
    data: PyBuffer<u8>,
    places: &[u8],
    sizes: &[u8],
    name: &[u8],
) -> Option<Values<'py>> {
    let ((places, _), (sizes, _)) = (places.as_chunks::<PLACE_SIZE>(), sizes.as_chunks::<PLACE_SIZE>());
    let name = [name, &[NAME_END]].concat();
    let found = with_bytes(py, &data, |log| Texts::gather(log, places, sizes, &name)).ok()??;
    let validity = if found.null_count == 0 { None } else { Some(bytes(py, &found.validity).ok()?) };
    let values = (validity, bytes(py, &found.ends).ok()?, bytes(py, &found.data).ok()?, found.null_count);
    count(Way::Property, places.len());
    Some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_later_of_two_properties_holds_and_an_empty_one_does_not_count() {
        let properties = b"TAGS\x01a\x02TAGS\x01b\x01c\x02TAGS\x01\x02XTAGS\x01d\x02TAGSX\x01e\x02\x01TAGS\x01f\x02KEYS\x01k";
        assert_eq!(value_of(properties, b"TAGS\x01"), Some(&b"b\x01c"[..]));
        assert_eq!(value_of(properties, b"KEYS\x01"), Some(&b"k"[..]));
        assert_eq!(value_of(b"", b"TAGS\x01"), None);
        assert_eq!(value_of(b"TAGS\x02TAGS\x01", b"TAGS\x01"), None);
    }

    fn gathered(texts: &[&[u8]]) -> Option<Texts> {
        let log: Vec<u8> = texts.iter().flat_map(|text| [b"T\x01", *text].concat()).collect();
        let sizes: Vec<_> = texts.iter().map(|text| (text.len() as i64 + 2).to_le_bytes()).collect();
        let places: Vec<_> =
            (0..texts.len()).map(|n| texts[..n].iter().map(|text| text.len() as i64 + 2).sum::<i64>().to_le_bytes()).collect();
        assert!(Texts::gather(&log[..log.len() - 1], &places, &sizes, b"T\x01").unwrap().is_none());
        Texts::gather(&log, &places, &sizes, b"T\x01").unwrap()
    }

    #[test]
    fn every_text_is_utf8() {
        let found = gathered(&["ä".as_bytes(), b"", b"c"]).unwrap();
        assert_eq!((found.validity, found.null_count), (vec![0b101], 1));
        assert_eq!((found.ends, found.data), (vec![0, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0], "äc".into()));
        assert!(gathered(&[b"\xff"]).is_none());
        // Half a letter in each.
        assert!(gathered(&[b"\xc3", b"\xa4"]).is_none());
    }
}
