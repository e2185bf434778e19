//! Times as JSON bodies write them, pure: those of the years 1000 to 8999 that leave no doubt. None: something else.

const DAY_SIZE: usize = 10;
const MICROSECONDS: i64 = 1_000_000;
const DIGITS_OF_MICROSECONDS: usize = 6;

/// Return the microseconds since 1970 of a day, or of a time, as `2026-01-31T10:00:00.5+01:00`. Without a zone it is in UTC.
pub fn time_of(text: &[u8]) -> Option<i64> {
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
        let size = fraction.iter().take_while(|byte| byte.is_ascii_digit()).count();
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

    #[test]
    fn times_are_taken_in_utc() {
        assert_eq!(time_of(b"1970-01-02"), Some(86_400 * MICROSECONDS));
        assert_eq!(time_of(b"2000-02-29T12:00:00.25+01:30"), Some(951_820_200_250_000));
        assert_eq!(time_of(b"1969-12-31 23:59:59Z"), Some(-MICROSECONDS));
        for wrong in [&b"2001-02-29"[..], b"2000-13-01", b"2000-00-01", b"0999-01-01", b"2000-01-01T24:00:00", b"2000-01-01T"] {
            assert_eq!(time_of(wrong), None);
        }
    }
}
