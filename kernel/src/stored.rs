//! Whole records as the log has them, taken apart and compared with their CRC. No Python, no memory of others.
//!
//! The rules are those of `reput/store/record/record_columns.py`, which judges thousands of records at once.

/// The record has a topic of at most 127 bytes, or a longer one.
const MAGIC_CODES: (u32, u32) = (0xDAA3_20A7, 0xDAA3_20AB);
/// Bytes before the body by the kind of the hosts: born and store host IPv6.
const BODY_AT: [usize; 4] = [88, 100, 100, 112];
const STORE_TIMESTAMP_AT: [usize; 2] = [56, 68];
const CRC_PROPERTY_NAME: &[u8] = b"__CRC32#\x01";
const CRC_DIGITS: usize = 10;
/// Name, digits and end of the property with the CRC of a whole record.
const CRC_PROPERTY_SIZE: usize = CRC_PROPERTY_NAME.len() + CRC_DIGITS + 1;

/// Return the field of *data* that begins at *at*; `None`: the data ends before.
pub fn field<const SIZE: usize>(data: &[u8], at: usize) -> Option<[u8; SIZE]> {
    data.get(at..at.checked_add(SIZE)?)?.try_into().ok()
}

/// A record whose sizes agree.
pub struct Stored<'a> {
    /// All of its bytes, and no others.
    pub data: &'a [u8],
    /// The message.
    pub body: &'a [u8],
    /// The name of its topic.
    pub topic: &'a [u8],
    /// The properties string.
    pub properties: &'a [u8],
    /// Where it begins in *data*.
    pub body_at: usize,
}

impl<'a> Stored<'a> {
    /// Read the record that *data* begins with; `None`: it begins with none, or ends within one.
    pub fn read(data: &'a [u8]) -> Option<Stored<'a>> {
        let size = usize::try_from(i32::from_be_bytes(field(data, 0)?)).ok()?;
        let data = data.get(..size)?;
        let magic_code = u32::from_be_bytes(field(data, 4)?);
        let body_at = BODY_AT[usize::from(data.get(39)? >> 4 & 3)];
        let body_size = usize::try_from(i32::from_be_bytes(field(data, body_at - 4)?)).ok()?;
        let (body, behind) = data.get(body_at..)?.split_at_checked(body_size)?;
        let (topic_size, behind) = if magic_code == MAGIC_CODES.0 {
            let [size] = field(behind, 0)?;
            (usize::try_from(size.cast_signed()).ok()?, &behind[1..])
        } else if magic_code == MAGIC_CODES.1 {
            (usize::try_from(i16::from_be_bytes(field(behind, 0)?)).ok()?, &behind[2..])
        } else {
            return None;
        };
        let (topic, behind) = behind.split_at_checked(topic_size)?;
        let properties_size = usize::try_from(i16::from_be_bytes(field(behind, 0)?)).unwrap_or(0);
        let properties = &behind[2..];
        if properties.len() != properties_size {
            return None;
        }
        Some(Stored { data, body, topic, properties, body_at })
    }

    fn fixed<const SIZE: usize>(&self, at: usize) -> [u8; SIZE] {
        field(self.data, at).expect("a record has a whole header")
    }

    /// Its queue.
    pub fn queue_id(&self) -> i32 {
        i32::from_be_bytes(self.fixed(12))
    }

    /// Its place in its queue.
    pub fn queue_offset(&self) -> i64 {
        i64::from_be_bytes(self.fixed(20))
    }

    /// Where it says that it lies.
    pub fn commit_log_offset(&self) -> i64 {
        i64::from_be_bytes(self.fixed(28))
    }

    /// Its flags.
    pub fn sys_flag(&self) -> i32 {
        i32::from_be_bytes(self.fixed(36))
    }

    /// Milliseconds.
    pub fn store_timestamp(&self) -> i64 {
        i64::from_be_bytes(self.fixed(STORE_TIMESTAMP_AT[usize::from(self.data[39] >> 4 & 1)]))
    }

    /// Of a transaction, where its half message lies.
    pub fn prepared_transaction_offset(&self) -> i64 {
        i64::from_be_bytes(self.fixed(self.body_at - 12))
    }

    /// Tell whether the body has its CRC, and the whole record, if its properties end with one.
    pub fn has_its_crc(&self) -> bool {
        self.body_has_its_crc() && self.has_whole_crc()
    }

    /// Tell whether the body has its CRC; an empty one always does.
    pub fn body_has_its_crc(&self) -> bool {
        let body_crc = u32::from_be_bytes(self.fixed(8));
        self.body.is_empty() || crc32fast::hash(self.body) & 0x7FFF_FFFF == body_crc
    }

    fn has_whole_crc(&self) -> bool {
        let Some(begin) = self.properties.len().checked_sub(CRC_PROPERTY_SIZE) else { return true };
        let (name, digits) = self.properties[begin..].split_at(CRC_PROPERTY_NAME.len());
        let is_named = name == CRC_PROPERTY_NAME;
        if !is_named && !digits[..CRC_DIGITS].iter().all(u8::is_ascii_digit) {
            return true;
        }
        let mut crc = crc32fast::hash(&self.data[..self.data.len() - CRC_PROPERTY_SIZE]) & 0x7FFF_FFFF;
        let mut expected = [2; CRC_DIGITS + 1];
        for digit in &mut expected[..CRC_DIGITS] {
            *digit = b'0' + (crc % 10) as u8;
            crc /= 10;
        }
        // Digits that fit under another name: the name is not what was written.
        (digits == expected) == is_named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of V1 or V2, with hosts as the flags in *hosts* say.
    fn record(magic_code: u32, hosts: u8, body: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut data = vec![0; BODY_AT[usize::from(hosts)]];
        let body_at = data.len();
        data[4..8].copy_from_slice(&magic_code.to_be_bytes());
        data[8..12].copy_from_slice(&(crc32fast::hash(body) & 0x7FFF_FFFF).to_be_bytes());
        data[39] = hosts << 4;
        data[body_at - 4..].copy_from_slice(&(body.len() as i32).to_be_bytes());
        data.extend_from_slice(body);
        data.extend_from_slice(if magic_code == MAGIC_CODES.0 { b"\x01t" } else { b"\x00\x01t" });
        data.extend_from_slice(&(properties.len() as i16).to_be_bytes());
        data.extend_from_slice(properties);
        let size = (data.len() as i32).to_be_bytes();
        data[..4].copy_from_slice(&size);
        data
    }

    #[test]
    fn records_of_both_versions_and_all_hosts_are_read() {
        for magic_code in [MAGIC_CODES.0, MAGIC_CODES.1] {
            for hosts in 0..4 {
                let data = record(magic_code, hosts, b"body", b"k\x01v");
                let stored = Stored::read(&data).unwrap();
                assert_eq!((stored.body, stored.topic, stored.properties), (&b"body"[..], &b"t"[..], &b"k\x01v"[..]));
                assert!(stored.has_its_crc());
                assert!((0..data.len()).all(|size| Stored::read(&data[..size]).is_none()));
            }
        }
    }

    #[test]
    fn a_damaged_byte_never_makes_a_panic() {
        let data = record(MAGIC_CODES.0, 0, b"body", b"__CRC32#\x010123456789\x02");
        for at in 0..data.len() {
            for byte in 0..=255 {
                let mut damaged = data.clone();
                damaged[at] = byte;
                if let Some(stored) = Stored::read(&damaged) {
                    stored.has_its_crc();
                    stored.store_timestamp();
                    stored.prepared_transaction_offset();
                }
            }
        }
    }

    #[test]
    fn a_whole_record_is_compared_with_its_own_crc() {
        let mut data = record(MAGIC_CODES.0, 0, b"body", b"__CRC32#\x010000000000\x02");
        assert!(!Stored::read(&data).unwrap().has_its_crc());
        let end = data.len() - 1;
        let mut crc = crc32fast::hash(&data[..data.len() - CRC_PROPERTY_SIZE]) & 0x7FFF_FFFF;
        for digit in &mut data[end - CRC_DIGITS..end] {
            *digit = b'0' + (crc % 10) as u8;
            crc /= 10;
        }
        assert!(Stored::read(&data).unwrap().has_its_crc());
        // Its name is damaged.
        data[end - CRC_DIGITS - 2] = b'_';
        assert!(!Stored::read(&data).unwrap().has_its_crc());
    }
}
