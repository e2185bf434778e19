//! Random bytes, and random damage of good ones, for all that reads bytes from disk or wire. None may panic, none may be
//! read beyond its end, and what is taken for a record is one.
//!
//! `PROPTEST_CASES` in the environment says how many; `kernel/README.md` has the commands.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::json_columns::{Field, read_bodies};
use crate::log_rows::RowProperties;
use crate::property_values::value_of;
use crate::query::offsets_in;
use crate::reads::{Place, Wanted};
use crate::record_places::Places;
use crate::sent;
use crate::stored::Stored;

/// Body, topic, properties, and whether the topic's size has two bytes.
type Parts = (Vec<u8>, Vec<u8>, Vec<u8>, bool, u8);

fn parts() -> impl Strategy<Value = Parts> {
    (vec(any::<u8>(), 0..80), vec(any::<u8>(), 0..127), properties(), any::<bool>(), 0..4u8)
}

/// Properties, mostly with the names and separators that count.
fn properties() -> impl Strategy<Value = Vec<u8>> {
    let pieces = [&b"TAGS\x01"[..], b"KEYS\x01", b"UNIQ_KEY\x01", b"__CRC32#\x01", b"\x02", b"a b", b"0123456789", b"\xff"];
    vec(prop::sample::select(pieces.to_vec()), 0..12).prop_map(|pieces| pieces.concat())
}

/// Return the bytes of a record.
fn record((body, topic, properties, is_long, hosts): &Parts) -> Vec<u8> {
    let body_at = [88, 100, 100, 112][usize::from(*hosts)];
    let mut data = vec![0; body_at];
    data[4..8].copy_from_slice(&if *is_long { 0xDAA3_20ABu32 } else { 0xDAA3_20A7 }.to_be_bytes());
    data[8..12].copy_from_slice(&(crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes());
    data[39] = hosts << 4;
    data[body_at - 4..].copy_from_slice(&(body.len() as i32).to_be_bytes());
    data.extend_from_slice(body);
    if *is_long {
        data.push(0);
    }
    data.push(topic.len() as u8);
    data.extend_from_slice(topic);
    data.extend_from_slice(&(properties.len() as i16).to_be_bytes());
    data.extend_from_slice(properties);
    let size = (data.len() as i32).to_be_bytes();
    data[..4].copy_from_slice(&size);
    data
}

/// Read bytes in every way, and return whether they begin with a whole record.
fn read_all(data: &[u8]) -> bool {
    let wanted = Wanted { queue_id: 0, topic_field: b"\x01t" };
    for record_size in [data.len() as i32, 0, -1, i32::MAX] {
        let place = Place { queue_offset: 0, commit_log_offset: 0, record_size };
        if let Some(body_end) = place.body_end(data, &wanted, true) {
            assert!(body_end <= data.len());
        }
    }
    sent::added_properties(data);
    RowProperties::find(data);
    value_of(data, b"TAGS\x01");
    assert!(Places::find(data, 0).unwrap().end <= data.len());
    let Some(stored) = Stored::read(data) else { return false };
    stored.has_its_crc();
    stored.store_timestamp();
    stored.prepared_transaction_offset();
    RowProperties::find(stored.properties);
    assert!(stored.data.len() <= data.len());
    true
}

/// Return how many messages a client's batch begins with.
fn messages_in(data: &[u8]) -> usize {
    let (mut rest, mut count) = (data, 0);
    while let Some(sent) = sent::SentMessage::read(rest) {
        sent::added_properties(sent.properties);
        rest = &rest[sent.size..];
        count += 1;
    }
    count
}

proptest! {
    #[test]
    fn any_bytes_are_read(data in vec(any::<u8>(), 0..300)) {
        read_all(&data);
    }

    #[test]
    fn damaged_records_are_read(
        parts in parts(),
        damages in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        size in any::<prop::sample::Index>(),
    ) {
        let mut data = record(&parts);
        prop_assert!(read_all(&data));
        prop_assert!(!read_all(&data[..size.index(data.len())]));
        for (at, byte) in damages {
            let at = at.index(data.len());
            data[at] = byte;
        }
        read_all(&data);
    }

    #[test]
    fn damaged_batches_are_read(body in vec(any::<u8>(), 0..40), properties in properties(), damage in any::<(prop::sample::Index, u8)>()) {
        let mut data = vec![0; 20];
        data[16..20].copy_from_slice(&(body.len() as i32).to_be_bytes());
        data.extend_from_slice(&body);
        data.extend_from_slice(&(properties.len() as i16).to_be_bytes());
        data.extend_from_slice(&properties);
        let size = (data.len() as i32).to_be_bytes();
        data[..4].copy_from_slice(&size);
        data.extend_from_slice(&data.clone());
        prop_assert_eq!(messages_in(&data), 2);
        let at = damage.0.index(data.len());
        data[at] = damage.1;
        messages_in(&data);
    }

    #[test]
    fn any_json_is_read(
        pieces in vec(prop::sample::select(vec!["{", "}", "[", "]", "\"", "\\", "u", "d83d", ":", ",", "-1.5", "1e9", "null", "true", "é", " "]), 0..40)
    ) {
        let rest = pieces.concat();
        let inner = vec![Field("i".into(), 'i', vec![])];
        for kind in "ifbst{".chars() {
            let fields = [Field(kind.into(), kind, inner.clone())];
            // The last is skipped.
            for begin in [format!("{{\"{kind}\":"), format!("{{\"{kind}\":null,\"x\":")] {
                let text = begin + &rest + "}";
                let offsets = [0, text.len() as i32].map(i32::to_le_bytes);
                if let Some(columns) = read_bodies(&fields, text.as_bytes(), offsets.as_flattened()) {
                    prop_assert_eq!(columns[0].valid.len(), 1);
                }
            }
        }
    }

    #[test]
    fn any_chain_is_followed_to_an_end(
        entries in vec((0..9i32, 0..1200i64, -1..60i32), 0..60),
        damage in any::<(prop::sample::Index, u8)>(),
    ) {
        let mut data = crate::query::index_file(&entries);
        if let Some(offsets) = offsets_in(&data) {
            prop_assert!(offsets.is_sorted_by(|newer, older| newer >= older));
        }
        let at = damage.0.index(data.len());
        data[at] = damage.1;
        offsets_in(&data);
    }
}
