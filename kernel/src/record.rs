//! Builds the record's header and the dispatch row from plain numbers and bytes, without Python and shared memory.
//!
//! `reput/store/record/layout.py` draws the record, `reput_hooks/dispatch.py` the row.

/// Bytes of a dispatch row.
pub const ROW_SIZE: usize = 64;
/// Bytes of the largest header, in which both hosts are IPv6 addresses.
const HEADER_SIZE_MAX: usize = 112;
const IPV4_HOST_SIZE: usize = 8;
const IPV6_HOST_SIZE: usize = 20;

/// A stored host: address and port.
#[derive(Clone, Copy)]
pub struct Host {
    bytes: [u8; IPV6_HOST_SIZE],
    size: usize,
}

impl Host {
    /// Return the host with this stored form; `None`: no host has such a size.
    pub fn new(data: &[u8]) -> Option<Host> {
        if data.len() != IPV4_HOST_SIZE && data.len() != IPV6_HOST_SIZE {
            return None;
        }
        let mut bytes = [0; IPV6_HOST_SIZE];
        bytes[..data.len()].copy_from_slice(data);
        Some(Host { bytes, size: data.len() })
    }

    /// Return the stored form.
    pub fn stored(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

/// The fields of a record that do not come from its message: `RecordHead` of the encoder.
#[derive(Clone)]
pub struct Head {
    /// Includes the bits for the sizes of the hosts.
    pub sys_flag: i32,
    /// `None` stands for the store time.
    pub born_timestamp: Option<i64>,
    /// Where the message came from.
    pub born_host: Host,
    /// Where it is stored.
    pub store_host: Host,
    /// Deliveries to consumers that sent the message back.
    pub reconsume_times: i32,
    /// In a committed message, the offset of its half message.
    pub prepared_transaction_offset: i64,
}

impl Head {
    /// Bytes of a record up to its body.
    pub fn size(&self) -> usize {
        HEADER_SIZE_MAX - 2 * IPV6_HOST_SIZE + self.born_host.size + self.store_host.size
    }
}

/// The numbers of one record.
pub struct Numbers {
    /// Bytes of the whole record.
    pub record_size: i32,
    /// V1 or V2, by the size of the topic.
    pub magic_code: u32,
    /// CRC-32 of the body without its highest bit.
    pub crc: u32,
    /// The queue of the topic.
    pub queue_id: i32,
    /// A number for the user's own purposes.
    pub flag: i32,
    /// Offset in units of the consume queue.
    pub queue_offset: i64,
    /// Commit-log offset of this record.
    pub commit_log_offset: i64,
    /// Milliseconds since 1970.
    pub store_timestamp: i64,
    /// Bytes of the body.
    pub body_size: i32,
}

/// The header of one record: fields 1 to 15.
pub struct Header {
    bytes: [u8; HEADER_SIZE_MAX],
    size: usize,
}

impl Header {
    /// Pack the header, big-endian.
    pub fn pack(head: &Head, numbers: &Numbers) -> Header {
        let mut header = Header { bytes: [0; HEADER_SIZE_MAX], size: 0 };
        header.add(&numbers.record_size.to_be_bytes());
        header.add(&numbers.magic_code.to_be_bytes());
        header.add(&numbers.crc.to_be_bytes());
        header.add(&numbers.queue_id.to_be_bytes());
        header.add(&numbers.flag.to_be_bytes());
        header.add(&numbers.queue_offset.to_be_bytes());
        header.add(&numbers.commit_log_offset.to_be_bytes());
        header.add(&head.sys_flag.to_be_bytes());
        header.add(&head.born_timestamp.unwrap_or(numbers.store_timestamp).to_be_bytes());
        header.add(head.born_host.stored());
        header.add(&numbers.store_timestamp.to_be_bytes());
        header.add(head.store_host.stored());
        header.add(&head.reconsume_times.to_be_bytes());
        header.add(&head.prepared_transaction_offset.to_be_bytes());
        header.add(&numbers.body_size.to_be_bytes());
        header
    }

    fn add(&mut self, field: &[u8]) {
        self.bytes[self.size..self.size + field.len()].copy_from_slice(field);
        self.size += field.len();
    }

    /// Return the packed bytes.
    pub fn packed(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}

/// Sizes of the texts of a row, in their order; -1: the text is missing.
pub struct TextSizes {
    /// Size of all texts together.
    pub texts: i32,
    /// The unique key.
    pub uniq_key: i16,
    /// The keys.
    pub keys: i16,
    /// The raw properties.
    pub properties: i16,
}

/// Return the dispatch row of a record, little-endian.
pub fn row(head: &Head, numbers: &Numbers, tags_code: i64, queue_index: i32, texts: &TextSizes) -> [u8; ROW_SIZE] {
    let mut row = [0; ROW_SIZE];
    row[0..8].copy_from_slice(&numbers.commit_log_offset.to_le_bytes());
    row[8..16].copy_from_slice(&numbers.queue_offset.to_le_bytes());
    row[16..24].copy_from_slice(&tags_code.to_le_bytes());
    row[24..32].copy_from_slice(&numbers.store_timestamp.to_le_bytes());
    row[32..40].copy_from_slice(&head.prepared_transaction_offset.to_le_bytes());
    row[40..44].copy_from_slice(&numbers.record_size.to_le_bytes());
    row[44..48].copy_from_slice(&queue_index.to_le_bytes());
    row[48..52].copy_from_slice(&head.sys_flag.to_le_bytes());
    row[52..56].copy_from_slice(&texts.texts.to_le_bytes());
    row[56..58].copy_from_slice(&texts.uniq_key.to_le_bytes());
    row[58..60].copy_from_slice(&texts.keys.to_le_bytes());
    // The kernel does not put messages with multi-dispatch.
    row[60..62].copy_from_slice(&(-1i16).to_le_bytes());
    row[62..64].copy_from_slice(&texts.properties.to_le_bytes());
    row
}

/// Return Java's `String.hashCode` of a text: over its UTF-16 units, in wrapping 32 bits.
pub fn string_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(born_host: &[u8], store_host: &[u8]) -> Head {
        Head {
            sys_flag: 0,
            born_timestamp: None,
            born_host: Host::new(born_host).unwrap(),
            store_host: Host::new(store_host).unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
        }
    }

    #[test]
    fn the_header_is_as_large_as_its_hosts_make_it() {
        let numbers = Numbers {
            record_size: 91,
            magic_code: 0xDAA320A7,
            crc: 0,
            queue_id: 1,
            flag: 2,
            queue_offset: 3,
            commit_log_offset: 4,
            store_timestamp: 5,
            body_size: 0,
        };
        for (born, store, size) in [(8, 8, 88), (20, 8, 100), (8, 20, 100), (20, 20, 112)] {
            let head = head(&vec![1; born], &vec![2; store]);
            let header = Header::pack(&head, &numbers);
            assert_eq!(head.size(), size);
            assert_eq!(header.packed().len(), size);
            assert_eq!(&header.packed()[..8], &[0, 0, 0, 91, 0xDA, 0xA3, 0x20, 0xA7]);
        }
    }

    #[test]
    fn a_host_of_another_size_is_none() {
        assert!(Host::new(&[0; 7]).is_none());
    }

    #[test]
    fn the_hash_is_that_of_java() {
        assert_eq!(string_hash("TagA"), 2598919);
        assert_eq!(string_hash(""), 0);
        assert_eq!(string_hash("\u{1F600}"), 0xD83Du32 as i32 * 31 + 0xDE00);
    }
}
