//! Batches that clients send: reads their messages and properties, without Python.
//!
//! Source: RocketMQ common, MessageDecoder.encodeMessages; `reput/broker/requests/sent_message.py`.

use std::sync::Arc;

use crate::item::{Item, Queue};
use crate::known::KnownTopic;
use crate::record::{Head, string_hash};

/// Total size, magic code, body CRC, flag and body size.
const HEAD_SIZE: usize = 20;
const FLAG_AT: usize = 12;
const BODY_SIZE_AT: usize = 16;
/// Messages of a batch: `BATCH_COUNT_MAX` of `sent_message.py`.
const COUNT_MAX: usize = 65_536;
const NAME_END: u8 = 1;
const PROPERTY_END: u8 = 2;
/// Properties with an effect beyond being stored, and those that the broker sets: `SPECIAL` of `sent_message.py`.
const SPECIAL: [&[u8]; 13] = [
    b"DELAY",
    b"TRAN_MSG",
    b"POP_CK",
    b"INNER_NUM",
    b"INNER_MULTI_DISPATCH",
    b"INNER_MULTI_QUEUE_OFFSET",
    b"TIMER_DELAY_SEC",
    b"TIMER_DELAY_MS",
    b"TIMER_DELIVER_MS",
    b"__CRC32#",
    b"MSG_REGION",
    b"TRACE_ON",
    b"CLUSTER",
];

/// The properties that dispatchers get.
#[derive(Clone, Copy, Default)]
pub struct Named<'a> {
    tags: Option<&'a str>,
    keys: Option<&'a [u8]>,
    /// The message's id, chosen by its client.
    pub uniq_key: Option<&'a str>,
}

impl<'a> Named<'a> {
    /// Return the properties of *later*, completed by those of `self`.
    fn overridden_by(self, later: &Named<'a>) -> Named<'a> {
        Named {
            tags: later.tags.or(self.tags),
            keys: later.keys.or(self.keys),
            uniq_key: later.uniq_key.or(self.uniq_key),
        }
    }
}

/// Return the properties of a batch for dispatchers; `None`: the batch must be decoded in Python.
pub fn added_properties(data: &[u8]) -> Option<Named<'_>> {
    if data.is_empty() { Some(Named::default()) } else { plain_properties(data) }
}

/// Return the properties in *data* for dispatchers; `None`: *data* cannot be stored unchanged.
///
/// It cannot if RocketMQ would ignore a piece, if a name occurs twice, or if a property has an effect of its own.
pub fn plain_properties(data: &[u8]) -> Option<Named<'_>> {
    if data.contains(&0) {
        return None;
    }
    let text = std::str::from_utf8(data).ok()?;
    let mut named = Named::default();
    let mut names: [&[u8]; 32] = [b""; 32];
    let pieces = data.strip_suffix(&[PROPERTY_END]).unwrap_or(data);
    let mut at = 0;
    for (number, piece) in pieces.split(|byte| *byte == PROPERTY_END).enumerate() {
        let name_size = piece.iter().position(|byte| *byte == NAME_END)?;
        let (name, value) = (&piece[..name_size], &piece[name_size + 1..]);
        if name.is_empty() || value.is_empty() || value.contains(&NAME_END) || SPECIAL.contains(&name) {
            return None;
        }
        // Messages with more properties are rare.
        if number == names.len() || names[..number].contains(&name) {
            return None;
        }
        names[number] = name;
        let value_at = at + name_size + 1;
        match name {
            b"TAGS" => named.tags = Some(&text[value_at..value_at + value.len()]),
            b"KEYS" => named.keys = Some(value),
            b"UNIQ_KEY" => named.uniq_key = Some(&text[value_at..value_at + value.len()]),
            _ => {}
        }
        at += piece.len() + 1;
    }
    Some(named)
}

/// A message that a client sent.
pub struct Sent<'a> {
    /// Its topic.
    pub topic: &'a Arc<KnownTopic>,
    /// Its queue.
    pub queue_id: i32,
    /// The fields that do not come from the message.
    pub head: &'a Head,
    /// The user's own number.
    pub flag: i32,
    /// Any bytes.
    pub body: &'a [u8],
    /// The properties string, which is plain.
    pub properties: &'a [u8],
}

impl<'a> Sent<'a> {
    /// Return what is stored: the properties are followed by *added*. `None`: it breaks a limit.
    pub fn item(&self, named: &Named<'a>, added: &'a [u8], carries_properties: bool) -> Option<Item<'a>> {
        if added.contains(&0) {
            return None;
        }
        let is_ended = self.properties.last() == Some(&PROPERTY_END);
        let keys = named.keys.unwrap_or(b"");
        let tags = named.tags.unwrap_or("");
        Some(Item {
            head: self.head,
            topic: Arc::clone(self.topic),
            queue: Queue::Id(self.queue_id),
            flag: self.flag,
            body: self.body,
            properties: [self.properties, if is_ended { b"" } else { &[PROPERTY_END] }, added, b""],
            uniq_key: named.uniq_key.map(str::as_bytes),
            keys,
            keys_size: if keys.is_empty() { -1 } else { i16::try_from(keys.len()).ok()? },
            carries_properties,
            tags: tags.as_bytes(),
            tags_code: i64::from(string_hash(tags)),
        })
    }
}

/// Return the items of a batch for one queue; `None`: the batch is broken, or one of its messages is not plain.
pub fn sent_items<'a>(
    body: &'a [u8],
    topic: &'a Arc<KnownTopic>,
    queue_id: i32,
    head: &'a Head,
    of_batch: &Named<'a>,
    added: &'a [u8],
    carries_properties: bool,
) -> Option<Vec<Item<'a>>> {
    let mut items = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        if items.len() == COUNT_MAX {
            return None;
        }
        let sent = SentMessage::read(rest)?;
        rest = &rest[sent.size..];
        let named = plain_properties(sent.properties)?.overridden_by(of_batch);
        let message = Sent { topic, queue_id, head, flag: sent.flag, body: sent.body, properties: sent.properties };
        items.try_reserve(1).ok()?;
        items.push(message.item(&named, added, carries_properties)?);
    }
    Some(items)
}

/// One message of a batch.
pub struct SentMessage<'a> {
    /// Bytes of all of it.
    pub size: usize,
    flag: i32,
    body: &'a [u8],
    /// The properties string.
    pub properties: &'a [u8],
}

impl SentMessage<'_> {
    /// Read the first message of *data*; `None`: it is broken.
    pub fn read(data: &[u8]) -> Option<SentMessage<'_>> {
        let size = usize::try_from(int_at(data, 0)?).ok()?;
        let flag = int_at(data, FLAG_AT)?;
        let body_size = usize::try_from(int_at(data, BODY_SIZE_AT)?).ok()?;
        let body_end = HEAD_SIZE.checked_add(body_size)?;
        let body = data.get(HEAD_SIZE..body_end)?;
        let properties_size = i16::from_be_bytes(*data.get(body_end..)?.first_chunk()?);
        let properties_at = body_end + 2;
        let end = properties_at + usize::try_from(properties_size).ok()?;
        let properties = data.get(properties_at..end)?;
        (size == end).then_some(SentMessage { size, flag, body, properties })
    }
}

/// Return the big-endian number at *at*.
fn int_at(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &[u8], properties: &[u8]) -> Vec<u8> {
        let size = (HEAD_SIZE + body.len() + 2 + properties.len()) as i32;
        let mut data = Vec::new();
        for word in [size, 0, 0, 7, body.len() as i32] {
            data.extend(word.to_be_bytes());
        }
        data.extend(body);
        data.extend((properties.len() as i16).to_be_bytes());
        data.extend(properties);
        data
    }

    #[test]
    fn a_message_is_read_and_any_cut_of_it_is_refused() {
        let data = message(b"body", b"TAGS\x01a\x02");
        let sent = SentMessage::read(&data).unwrap();
        assert_eq!((sent.size, sent.flag, sent.body, sent.properties), (data.len(), 7, &b"body"[..], &b"TAGS\x01a\x02"[..]));
        for size in 0..data.len() {
            assert!(SentMessage::read(&data[..size]).is_none());
        }
    }

    #[test]
    fn sizes_that_are_negative_or_huge_are_refused() {
        for word in [0, BODY_SIZE_AT] {
            for number in [-1, i32::MIN, i32::MAX] {
                let mut data = message(b"body", b"TAGS\x01a\x02");
                data[word..word + 4].copy_from_slice(&number.to_be_bytes());
                assert!(SentMessage::read(&data).is_none());
            }
        }
    }

    #[test]
    fn properties_are_plain_only_if_they_are_stored_as_they_are() {
        let named = plain_properties(b"TAGS\x01a\x02KEYS\x01k 1\x02UNIQ_KEY\x01u").unwrap();
        assert_eq!((named.tags, named.keys, named.uniq_key), (Some("a"), Some(&b"k 1"[..]), Some("u")));
        for data in [
            &b""[..], b"\x02", b"a", b"\x01b\x02", b"a\x01\x02", b"a\x01b\x01c\x02", b"a\x01b\x02a\x01c\x02",
            b"DELAY\x013\x02", b"a\x01b\x02\x02", b"a\x01\xff\x02", b"a\x01\x00\x02",
        ] {
            assert!(plain_properties(data).is_none(), "{data:?}");
        }
    }
}
