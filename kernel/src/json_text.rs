//! The text of one JSON object, value by value, pure. Each method returns None for what it does not take.

/// The longest number that is taken, and the most digits of an exponent. What Arrow's reader refuses as too large is longer.
const NUMBER_SIZE_MAX: usize = 32;
const EXPONENT_SIZE_MAX: usize = 2;
/// How deep a value without a column may nest.
const DEPTH_MAX: usize = 32;
/// As many bytes of a text are looked at together.
const WORD_SIZE: usize = 8;
/// A word whose bytes are 1.
const EACH: u64 = 0x0101_0101_0101_0101;
const DAY_SIZE: usize = 10;
const MICROSECONDS: i64 = 1_000_000;
const DIGITS_OF_MICROSECONDS: usize = 6;

/// Where the bytes of a text lie: in the bodies, or behind their end, counted on, in the texts that were made.
#[derive(Clone, Copy, Default)]
pub struct Text {
    pub at: u32,
    pub size: u32,
}

/// Reads one object. The bytes must be UTF-8, and not more than an `i32` counts.
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
    end: usize,
    /// Texts that are not in the data as they are, because of escapes.
    made: &'a mut Vec<u8>,
}

impl<'a> Reader<'a> {
    /// Return a reader of the bytes from *begin* to *end*.
    pub fn new(data: &'a [u8], begin: usize, end: usize, made: &'a mut Vec<u8>) -> Reader<'a> {
        Reader { data, at: begin, end, made }
    }

    fn rest(&self) -> &'a [u8] {
        &self.data[self.at..self.end]
    }

    /// Return the next byte that is no white space, without taking it.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.rest().first() {
            self.at += 1;
        }
        self.rest().first().copied()
    }

    /// Take this byte, after white space.
    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Take this word.
    fn take_word(&mut self, word: &[u8]) -> Option<()> {
        self.rest().starts_with(word).then(|| self.at += word.len())
    }

    /// Tell whether only white space follows.
    pub fn is_at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    /// Take the begin of an object; tell whether it has a field.
    pub fn begin_object(&mut self) -> Option<bool> {
        self.take(b'{')?;
        self.begins_with_more(b'}')
    }

    /// Take what follows a value of an object; tell whether that is another field.
    pub fn continue_object(&mut self) -> Option<bool> {
        self.continues(b'}')
    }

    fn begins_with_more(&mut self, end: u8) -> Option<bool> {
        let is_more = self.peek()? != end;
        if !is_more {
            self.at += 1;
        }
        Some(is_more)
    }

    fn continues(&mut self, end: u8) -> Option<bool> {
        let found = self.peek()?;
        self.at += 1;
        (found == b',' || found == end).then_some(found == b',')
    }

    /// Take the name of a field and the colon behind it. A name with escapes is not taken.
    pub fn name(&mut self) -> Option<&'a [u8]> {
        let (begin, end, is_plain) = self.quoted()?;
        is_plain.then_some(())?;
        self.take(b':')?;
        self.peek()?;
        Some(&self.data[begin..end])
    }

    /// Take a null, if that is the next value, and tell whether it is.
    pub fn take_null(&mut self) -> Option<bool> {
        let is_null = self.peek()? == b'n';
        if is_null {
            self.take_word(b"null")?;
        }
        Some(is_null)
    }

    /// Take true or false.
    pub fn truth(&mut self) -> Option<bool> {
        let is_true = self.peek()? == b't';
        self.take_word(if is_true { b"true" } else { b"false" })?;
        Some(is_true)
    }

    /// Take a whole number, which must be written as one.
    pub fn whole_number(&mut self) -> Option<i64> {
        let number = self.number_text()?;
        // Digits and a sign alone: a fraction or an exponent is none.
        number.parse().ok()
    }

    /// Take a number.
    pub fn number(&mut self) -> Option<f64> {
        self.number_text()?.parse().ok()
    }

    fn number_text(&mut self) -> Option<&'a str> {
        self.peek()?;
        let text = self.rest();
        let mut at = usize::from(text.first() == Some(&b'-'));
        let whole = digits(&text[at..]);
        if whole == 0 || whole > 1 && text[at] == b'0' {
            return None;
        }
        at += whole;
        if text.get(at) == Some(&b'.') {
            let fraction = digits(&text[at + 1..]);
            (fraction > 0).then_some(())?;
            at += 1 + fraction;
        }
        if let Some(b'e' | b'E') = text.get(at) {
            at += 1 + usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
            let exponent = digits(&text[at..]);
            (1..=EXPONENT_SIZE_MAX).contains(&exponent).then_some(())?;
            at += exponent;
        }
        (at <= NUMBER_SIZE_MAX).then_some(())?;
        self.at += at;
        std::str::from_utf8(&text[..at]).ok()
    }

    /// Take a text.
    pub fn text(&mut self) -> Option<Text> {
        let (begin, end, is_plain) = self.quoted()?;
        let (at, size) = if is_plain {
            (begin, end - begin)
        } else {
            let made = self.made.len();
            unescape(&self.data[begin..end], self.made)?;
            (self.data.len() + made, self.made.len() - made)
        };
        Some(Text { at: u32::try_from(at).ok()?, size: u32::try_from(size).ok()? })
    }

    /// Take a text in quotes; return where it begins and ends, and whether it is without escapes.
    fn quoted(&mut self) -> Option<(usize, usize, bool)> {
        self.take(b'"')?;
        let begin = self.at;
        let mut is_plain = true;
        loop {
            self.at += plain_size(self.rest());
            match self.rest().first()? {
                b'"' => break,
                b'\\' => {
                    is_plain = false;
                    // A text cannot end with a backslash, so there is a byte behind it.
                    self.at += 2.min(self.end - self.at);
                }
                _ => return None,
            }
        }
        self.at += 1;
        Some((begin, self.at - 1, is_plain))
    }

    /// Take a time in a text, as `2026-01-31T10:00:00.5+01:00`; return its microseconds since 1970. Without a zone it is in UTC.
    pub fn time(&mut self) -> Option<i64> {
        let (begin, end, is_plain) = self.quoted()?;
        is_plain.then_some(())?;
        time_of(&self.data[begin..end])
    }

    /// Take a value of any kind.
    pub fn skip(&mut self, depth: usize) -> Option<()> {
        match self.peek()? {
            b'"' => {
                let made = self.made.len();
                self.text()?;
                self.made.truncate(made);
            }
            b'{' => {
                let mut more = self.begin_object()?;
                while more {
                    self.name()?;
                    self.skip_inner(depth)?;
                    more = self.continues(b'}')?;
                }
            }
            b'[' => {
                self.at += 1;
                let mut more = self.begins_with_more(b']')?;
                while more {
                    self.skip_inner(depth)?;
                    more = self.continues(b']')?;
                }
            }
            b't' | b'f' => {
                self.truth()?;
            }
            b'n' => self.take_word(b"null")?,
            _ => {
                self.number_text()?;
            }
        }
        Some(())
    }

    fn skip_inner(&mut self, depth: usize) -> Option<()> {
        if depth < DEPTH_MAX { self.skip(depth + 1) } else { None }
    }
}

/// Return how many digits *text* begins with.
fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Return how many bytes stand before the first that cannot be part of a text as it is: a quote, a backslash, a control.
fn plain_size(text: &[u8]) -> usize {
    let mut size = 0;
    while let Some(word) = text[size..].first_chunk::<WORD_SIZE>() {
        let word = u64::from_le_bytes(*word);
        // The top bit of each byte that is looked for, and perhaps of bytes behind it.
        let found = zeros(word ^ EACH * u64::from(b'"')) | zeros(word ^ EACH * u64::from(b'\\')) | below_blank(word);
        if found != 0 {
            return size + (found.trailing_zeros() / u8::BITS) as usize;
        }
        size += WORD_SIZE;
    }
    size + text[size..].iter().take_while(|&&byte| byte != b'"' && byte != b'\\' && byte >= b' ').count()
}

/// Return the top bits of the bytes that are zero.
fn zeros(word: u64) -> u64 {
    word.wrapping_sub(EACH) & !word & EACH << 7
}

/// Return the top bits of the bytes below a blank.
fn below_blank(word: u64) -> u64 {
    word.wrapping_sub(EACH * u64::from(b' ')) & !word & EACH << 7
}

/// Add a text to *made* without its escapes.
fn unescape(mut text: &[u8], made: &mut Vec<u8>) -> Option<()> {
    made.try_reserve(text.len()).ok()?;
    while let Some(at) = text.iter().position(|&byte| byte == b'\\') {
        made.extend_from_slice(&text[..at]);
        let plain = match text.get(at + 1)? {
            b'b' => b'\x08',
            b'f' => b'\x0c',
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => {
                let (letter, size) = escaped_letter(&text[at..])?;
                made.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                text = &text[at + size..];
                continue;
            }
            same @ (b'"' | b'\\' | b'/') => *same,
            _ => return None,
        };
        made.push(plain);
        text = &text[at + 2..];
    }
    made.extend_from_slice(text);
    Some(())
}

/// Return the letter of one `\uXXXX`, or of two for a letter beyond 65,535, and how many bytes that are.
fn escaped_letter(text: &[u8]) -> Option<(char, usize)> {
    let unit = |at: usize| -> Option<u16> {
        let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
        digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let first = unit(0)?;
    if let Some(letter) = char::from_u32(u32::from(first)) {
        return Some((letter, 6));
    }
    let letter = char::decode_utf16([first, unit(6)?]).next()?.ok()?;
    Some((letter, 12))
}

/// Return the microseconds since 1970 of a day, or of a time of one of the years 1000 to 8999.
fn time_of(text: &[u8]) -> Option<i64> {
    let (day, time) = text.split_at_checked(DAY_SIZE)?;
    let mut at = seconds_of_day(day)? * MICROSECONDS;
    if time.is_empty() {
        return Some(at);
    }
    let [b'T' | b' ', h1, h2, b':', m1, m2, b':', s1, s2, rest @ ..] = time else { return None };
    let (hours, minutes, seconds) = (two(*h1, *h2, 23)?, two(*m1, *m2, 59)?, two(*s1, *s2, 59)?);
    at += (3600 * hours + 60 * minutes + seconds) * MICROSECONDS;
    let mut rest = rest;
    if let [b'.', fraction @ ..] = rest {
        let size = digits(fraction);
        (1..=DIGITS_OF_MICROSECONDS).contains(&size).then_some(())?;
        let number = fraction[..size].iter().fold(0, |number, byte| 10 * number + i64::from(byte - b'0'));
        at += number * 10_i64.pow((DIGITS_OF_MICROSECONDS - size) as u32);
        rest = &fraction[size..];
    }
    match rest {
        [] | [b'Z'] => Some(at),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let ahead = (3600 * two(*h1, *h2, 23)? + 60 * two(*m1, *m2, 59)?) * MICROSECONDS;
            Some(if *sign == b'+' { at - ahead } else { at + ahead })
        }
        _ => None,
    }
}

/// Return a number of two digits.
fn two(tens: u8, ones: u8, max: i64) -> Option<i64> {
    (tens.is_ascii_digit() && ones.is_ascii_digit()).then_some(())?;
    let number = i64::from(10 * (tens - b'0') + (ones - b'0'));
    (number <= max).then_some(number)
}

/// Return the seconds from 1970 to a day of the years 1000 to 8999.
fn seconds_of_day(day: &[u8]) -> Option<i64> {
    let [y1 @ b'1'..=b'8', y2, y3, y4, b'-', m1, m2, b'-', d1, d2] = day else { return None };
    let year = 100 * two(*y1, *y2, 99)? + two(*y3, *y4, 99)?;
    let (month, day) = (two(*m1, *m2, 12)?, two(*d1, *d2, 31)?);
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    (month >= 1 && (1..=last).contains(&day)).then_some(())?;
    // A year that begins in March ends with the day that not every year has. Source: Hinnant, days_from_civil.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (century, of_century) = (year / 400, year % 400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = 146_097 * century + 365 * of_century + of_century / 4 - of_century / 100 + of_year;
    Some((days - 719_468) * 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(json: &str) -> Option<String> {
        let mut made = Vec::new();
        let mut reader = Reader::new(json.as_bytes(), 0, json.len(), &mut made);
        let text = reader.text()?;
        let all = [json.as_bytes(), &made].concat();
        let at = text.at as usize;
        String::from_utf8(all[at..at + text.size as usize].to_vec()).ok()
    }

    #[test]
    fn texts_are_taken_with_their_escapes() {
        assert_eq!(text_of(r#""plain, of more than sixteen bytes é""#).unwrap(), "plain, of more than sixteen bytes é");
        assert_eq!(text_of(r#""a\n\"\\\/\u00e9\ud83d\ude00b""#).unwrap(), "a\n\"\\/é😀b");
        for wrong in [r#""open"#, r#""open\"#, r#""\x""#, r#""\u12""#, r#""\ud83d""#, r#""\u+123""#, "\"a\nb\"", r#""\"#] {
            assert_eq!(text_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn numbers_are_taken_as_json_writes_them() {
        let number = |text: &str| Reader::new(text.as_bytes(), 0, text.len(), &mut Vec::new()).number();
        assert_eq!((number("-0.5e3"), number("12"), number("0")), (Some(-500.0), Some(12.0), Some(0.0)));
        for wrong in ["", "-", "01", ".5", "1.", "1e", "1e+", "1e100", "+1", "NaN", &"1".repeat(33)] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
        let whole = |text: &str| Reader::new(text.as_bytes(), 0, text.len(), &mut Vec::new()).whole_number();
        assert_eq!((whole("-9223372036854775808"), whole("9223372036854775808")), (Some(i64::MIN), None));
        assert_eq!((whole("1.0"), whole("1e3"), whole("-0")), (None, None, Some(0)));
    }

    #[test]
    fn times_are_taken_in_utc() {
        assert_eq!(time_of(b"1970-01-02"), Some(86_400 * MICROSECONDS));
        assert_eq!(time_of(b"2000-02-29T12:00:00.25+01:30"), Some(951_820_200_250_000));
        assert_eq!(time_of(b"1969-12-31 23:59:59Z"), Some(-MICROSECONDS));
        for wrong in [&b"2001-02-29"[..], b"2000-13-01", b"2000-00-01", b"0999-01-01", b"2000-01-01T24:00:00", b"2000-01-01T"] {
            assert_eq!(time_of(wrong), None);
        }
    }

    #[test]
    fn values_without_a_column_are_skipped_up_to_a_depth() {
        let skipped = |text: &str| {
            let mut made = Vec::new();
            let mut reader = Reader::new(text.as_bytes(), 0, text.len(), &mut made);
            reader.skip(0).is_some() && reader.is_at_end()
        };
        assert!(skipped(r#" {"a": [1, "\n", {}, [], null, true], "b": {"c": -1.5}} "#));
        assert!(!skipped("[1,]") && !skipped(r#"{"a"}"#) && !skipped("[1") && !skipped("nul"));
        assert!(!skipped(&("[".repeat(40) + &"]".repeat(40))));
    }
}
