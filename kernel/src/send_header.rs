//! Frames of remoting that ask to store messages: finds their parts, without Python.
//!
//! ```text
//! length (4) | form (1), header length (3) | header, JSON | body
//! ```
//!
//! Only what clients usually send is read. `None` stands for everything else, broken frames too: Python reads these.
//!
//! Source: RocketMQ remoting, RemotingCommand, SendMessageRequestHeader and SendMessageRequestHeaderV2.

use std::borrow::Cow;

/// Bytes of a frame before its header.
const LENGTHS_SIZE: usize = 8;
/// The largest frame, with its length: `FRAME_SIZE_MAX` of `remoting_command.py`.
const FRAME_SIZE_MAX: usize = 16 << 20;
const SEND_MESSAGE: i64 = 10;
const SEND_MESSAGE_V2: i64 = 310;
const SEND_BATCH_MESSAGE: i64 = 320;
const RESPONSE_FLAG: i64 = 1;
const ONEWAY_FLAG: i64 = 2;
/// Fields of the header of a send, in the first form and in the second.
const FIELDS: [(&str, &str); 13] = [
    ("producerGroup", "a"),
    ("topic", "b"),
    ("defaultTopic", "c"),
    ("defaultTopicQueueNums", "d"),
    ("queueId", "e"),
    ("sysFlag", "f"),
    ("bornTimestamp", "g"),
    ("flag", "h"),
    ("properties", "i"),
    ("reconsumeTimes", "j"),
    ("unitMode", "k"),
    ("maxReconsumeTimes", "l"),
    ("batch", "m"),
];
/// The first of them are never missing.
const REQUIRED: usize = 8;

/// A request to store messages, as it was received.
pub struct SendRequest<'a> {
    /// Bytes of the whole frame.
    pub size: usize,
    /// Copied into the answer.
    pub opaque: i32,
    /// Must not be answered.
    pub is_oneway: bool,
    /// What the client is written in.
    pub language: &'a str,
    /// The body holds several messages.
    pub is_batch: bool,
    /// The name.
    pub topic: Cow<'a, str>,
    /// Negative: the broker chooses.
    pub queue_id: i32,
    /// How the body is stored, and of which kind the message is.
    pub sys_flag: i32,
    /// Milliseconds.
    pub born_timestamp: i64,
    /// The user's own number.
    pub flag: i32,
    /// The properties string.
    pub properties: Cow<'a, str>,
    /// Deliveries so far.
    pub reconsume_times: i32,
    /// One message, or several.
    pub body: &'a [u8],
}

impl<'a> SendRequest<'a> {
    /// Read the request that *data* begins with; `None`: it begins with something else, or ends within it.
    pub fn read(data: &'a [u8]) -> Option<SendRequest<'a>> {
        let size = 4 + word(data, 0)? as usize;
        let header_word = word(data, 4)?;
        let header_end = LENGTHS_SIZE + (header_word & 0xFF_FFFF) as usize;
        if header_word >> 24 != 0 || header_end > size || size > FRAME_SIZE_MAX {
            return None;
        }
        let frame = data.get(..size)?;
        let mut header = Header::default();
        let mut json = Json { text: std::str::from_utf8(&frame[LENGTHS_SIZE..header_end]).ok()?, at: 0 };
        json.members(|json, name| header.read_member(json, name))?;
        json.is_at_end().then_some(())?;
        header.request(size, &frame[header_end..])
    }
}

fn word(data: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

/// The members of a header that matter here; `None`: a member is missing.
#[derive(Default)]
struct Header<'a> {
    code: Option<i64>,
    flag: Option<i64>,
    opaque: Option<i64>,
    version: Option<i64>,
    language: Option<Cow<'a, str>>,
    remark: Option<()>,
    fields: Option<()>,
    /// By their first names and by their second.
    named: [[Option<Cow<'a, str>>; FIELDS.len()]; 2],
}

impl<'a> Header<'a> {
    fn read_member(&mut self, json: &mut Json<'a>, name: &str) -> Option<()> {
        match name {
            "code" => once(&mut self.code, json.int()?),
            "flag" => once(&mut self.flag, json.int()?),
            "opaque" => once(&mut self.opaque, json.int()?),
            "version" => once(&mut self.version, json.int()?),
            "language" => once(&mut self.language, json.string()?),
            "remark" => once(&mut self.remark, json.null()?),
            "serializeTypeCurrentRPC" => json.string().map(|_| ()),
            "extFields" => {
                once(&mut self.fields, ())?;
                json.members(|json, name| {
                    let value = json.string()?;
                    let found = FIELDS.iter().position(|(long, short)| name == *long || name == *short);
                    // Others are ignored.
                    let Some(number) = found else { return Some(()) };
                    once(&mut self.named[usize::from(name.len() == 1)][number], value)
                })
            }
            _ => None,
        }
    }

    fn request(self, size: usize, body: &'a [u8]) -> Option<SendRequest<'a>> {
        let code = self.code?;
        let is_short = match code {
            SEND_MESSAGE => false,
            SEND_MESSAGE_V2 | SEND_BATCH_MESSAGE => true,
            _ => return None,
        };
        let flag = self.flag.unwrap_or(0);
        if flag & RESPONSE_FLAG != 0 || body.is_empty() {
            return None;
        }
        let [long, short] = self.named;
        let fields = if is_short { short } else { long };
        if fields[..REQUIRED].iter().any(Option::is_none) {
            return None;
        }
        let [_, topic, _, queue_nums, queue_id, sys_flag, born, user_flag, properties, times, unit, times_max, batch] = fields;
        int(queue_nums.as_deref()?)?;
        is_true(unit)?;
        times_max.map_or(Some(0), |text| int(&text))?;
        let Cow::Borrowed(language) = self.language? else { return None };
        Some(SendRequest {
            size,
            opaque: self.opaque.unwrap_or(0) as i32,
            is_oneway: flag & ONEWAY_FLAG != 0,
            language,
            is_batch: is_true(batch)? || code == SEND_BATCH_MESSAGE,
            topic: topic?,
            queue_id: int(&queue_id?)?,
            sys_flag: int(&sys_flag?)?,
            born_timestamp: long_int(&born?)?,
            flag: int(&user_flag?)?,
            properties: properties.unwrap_or_default(),
            reconsume_times: times.map_or(Some(0), |text| int(&text))?,
            body,
        })
    }
}

/// Set a member that was not set before; `None`: it was.
fn once<T>(member: &mut Option<T>, value: T) -> Option<()> {
    member.replace(value).is_none().then_some(())
}

/// Return the value of a field; a missing one is false.
fn is_true(text: Option<Cow<'_, str>>) -> Option<bool> {
    match text.as_deref() {
        None | Some("false") => Some(false),
        Some("true") => Some(true),
        Some(_) => None,
    }
}

fn int(text: &str) -> Option<i32> {
    long_int(text).and_then(|number| number.try_into().ok())
}

/// Return a number that is written as Java writes it.
fn long_int(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_usual = match digits.as_bytes() {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if is_usual { text.parse().ok() } else { None }
}

/// Reads the forms of JSON that headers have.
struct Json<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Json<'a> {
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Read a byte and the blanks around it.
    fn take(&mut self, byte: u8) -> Option<()> {
        self.skip_blanks();
        (self.byte()? == byte).then(|| self.at += 1)?;
        self.skip_blanks();
        Some(())
    }

    fn skip_blanks(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }

    /// Read an object: *member* reads each value.
    fn members(&mut self, mut member: impl FnMut(&mut Json<'a>, &str) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let name = self.string()?;
            self.take(b':')?;
            member(self, &name)?;
            if self.take(b'}').is_some() {
                return Some(());
            }
            self.take(b',')?;
        }
    }

    fn null(&mut self) -> Option<()> {
        self.text[self.at..].starts_with("null").then(|| self.at += 4)
    }

    /// Read a whole number of 32 bits.
    fn int(&mut self) -> Option<i64> {
        let rest = &self.text[self.at..];
        let size = rest.bytes().position(|byte| byte != b'-' && !byte.is_ascii_digit())?;
        // What follows is a comma or the end of an object, or else the object is not read.
        let number = int(&rest[..size])?;
        self.at += size;
        Some(i64::from(number))
    }

    fn string(&mut self) -> Option<Cow<'a, str>> {
        (self.byte()? == b'"').then(|| self.at += 1)?;
        let begin = self.at;
        loop {
            match self.byte()? {
                b'"' => {
                    self.at += 1;
                    return Some(Cow::Borrowed(&self.text[begin..self.at - 1]));
                }
                b'\\' => return self.escaped(begin),
                0..0x20 => return None,
                _ => self.at += 1,
            }
        }
    }

    /// Read the rest of a text that has escapes.
    fn escaped(&mut self, begin: usize) -> Option<Cow<'a, str>> {
        let mut text = String::from(&self.text[begin..self.at]);
        loop {
            let from = self.at;
            while !matches!(self.byte()?, b'"' | b'\\' | 0..0x20) {
                self.at += 1;
            }
            text.push_str(&self.text[from..self.at]);
            let byte = self.byte()?;
            self.at += 1;
            match byte {
                b'"' => return Some(Cow::Owned(text)),
                b'\\' => text.push(self.escape()?),
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<char> {
        let byte = self.byte()?;
        self.at += 1;
        Some(match byte {
            b'"' | b'\\' | b'/' => char::from(byte),
            b'b' => '\x08',
            b'f' => '\x0C',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let digits = self.text.get(self.at..self.at + 4)?;
                if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                    return None;
                }
                self.at += 4;
                // A half of a pair of surrogates is no character.
                char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS_TEXT: &str = r#""a":"g","b":"orders","c":"TBW102","d":"4","e":"3","f":"0","g":"1600","h":"7","i":"TAGS\u0001a\u0002"#;

    fn frame(header: &str, body: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend(((4 + header.len() + body.len()) as u32).to_be_bytes());
        data.extend((header.len() as u32).to_be_bytes());
        data.extend(header.as_bytes());
        data.extend(body);
        data
    }

    fn header(fields: &str) -> String {
        format!(r#"{{"code":310,"extFields":{{{fields}"}},"flag":0,"language":"JAVA","opaque":9,"version":479}}"#)
    }

    #[test]
    fn a_send_is_read_and_any_cut_of_it_is_not() {
        let data = frame(&header(FIELDS_TEXT), b"body");
        let sent = SendRequest::read(&data).unwrap();
        assert_eq!((sent.size, sent.opaque, sent.is_oneway, sent.language), (data.len(), 9, false, "JAVA"));
        assert_eq!((&*sent.topic, sent.queue_id, sent.flag, sent.born_timestamp), ("orders", 3, 7, 1600));
        assert_eq!((&*sent.properties, sent.body, sent.is_batch), ("TAGS\x01a\x02", &b"body"[..], false));
        for size in 0..data.len() {
            assert!(SendRequest::read(&data[..size]).is_none());
        }
    }

    #[test]
    fn a_changed_byte_never_makes_a_panic() {
        let data = frame(&header(FIELDS_TEXT), b"body");
        for at in 0..data.len() {
            for byte in 0..=255 {
                let mut changed = data.clone();
                changed[at] = byte;
                if let Some(sent) = SendRequest::read(&changed) {
                    assert!(sent.size <= changed.len());
                }
            }
        }
    }

    #[test]
    fn what_is_unusual_is_left_to_python() {
        for (from, to) in [
            (r#""e":"3""#, r#""e":"03""#), (r#""e":"3""#, r#""e":3"#), (r#""e":"3""#, r#""e":"3","e":"3""#),
            (r#""e":"3","#, ""), (r#""opaque":9"#, r#""opaque":9.0"#), (r#""opaque":9"#, r#""opaque":2147483648"#),
            (r#""opaque":9"#, r#""opaque":9,"remark":"x""#), (r#""opaque":9"#, r#""opaque":9,"other":1"#),
            ("310", "11"), (r#""flag":0"#, r#""flag":1"#), (r"\u0001", r"\ud800"), (r"\u0001", r"\x"),
            (r#""e":"3""#, r#""e":"3","m":"yes""#), (r#""e":"3""#, r#""e":"3" "j":"0""#),
        ] {
            let changed = header(FIELDS_TEXT).replacen(from, to, 1);
            assert_ne!(changed, header(FIELDS_TEXT));
            assert!(SendRequest::read(&frame(&changed, b"body")).is_none(), "{changed}");
        }
        assert!(SendRequest::read(&frame(&header(FIELDS_TEXT), b"")).is_none());
        assert!(SendRequest::read(&frame(&(header(FIELDS_TEXT) + "x"), b"body")).is_none());
    }

    #[test]
    fn blanks_may_stand_between_the_parts_of_the_header() {
        let blank = header(FIELDS_TEXT).replace(':', " : ").replace(',', "\t,\r\n").replace('}', " } ");
        assert!(SendRequest::read(&frame(&blank, b"body")).is_some());
    }

    #[test]
    fn texts_may_have_any_escape_of_json() {
        let mut json = Json { text: r#""a\"\\\/\b\f\n\r\t\u00e9ü""#, at: 0 };
        assert_eq!(json.string().unwrap(), "a\"\\/\x08\x0C\n\r\téü");
        assert!(json.is_at_end());
    }

    #[test]
    fn numbers_are_read_as_java_writes_them() {
        assert_eq!((int("0"), int("-2147483648"), long_int("9223372036854775807")), (Some(0), Some(i32::MIN), Some(i64::MAX)));
        for text in ["", "-", "-0", "01", "+1", "1 ", "1_0", "2147483648", "٣"] {
            assert!(int(text).is_none(), "{text}");
        }
    }
}
