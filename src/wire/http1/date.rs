//! Times in the format of HTTP (RFC 9110, section 5.6.7), and times of RFC 3339 in UTC.

const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";

/// Formats a time in seconds since 1970 as the header `date`: `Sun, 06 Nov 1994 08:49:37 GMT`. Call
/// it once a second, not once a response. Times after the year 9999 become its last second.
pub fn http_date(unix_s: u64) -> [u8; 29] {
    const LAST_S: u64 = 253_402_300_799;
    const DAYS: &[u8; 21] = b"ThuFriSatSunMonTueWed"; // 1970 began on a Thursday.
    let unix_s = unix_s.min(LAST_S);
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = civil_date(days);
    let mut text = *b"Ddd, 00 Mmm 0000 00:00:00 GMT";
    let week_day = 3 * (days % 7) as usize;
    text[..3].copy_from_slice(&DAYS[week_day..week_day + 3]);
    text[8..11].copy_from_slice(&MONTHS[3 * month..3 * month + 3]);
    let pairs = [
        (5, day),
        (12, year / 100),
        (14, year % 100),
        (17, second / 3_600),
        (20, second / 60 % 60),
        (23, second % 60),
    ];
    for (at, number) in pairs {
        text[at] = b'0' + (number / 10) as u8;
        text[at + 1] = b'0' + (number % 10) as u8;
    }
    text
}

/// Returns year, month (0-based) and day of a day since 1970. Years begin in March here. The extra
/// day of a leap year is then the last one, and a division yields the month.
fn civil_date(days: u64) -> (u64, usize, u64) {
    const DAYS_400_YEARS: u64 = 146_097;
    let days = days + 719_468; // From 0000-03-01.
    let (era, day) = (days / DAYS_400_YEARS, days % DAYS_400_YEARS);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100); // Day of that year.
    let month = (5 * day + 2) / 153; // Months since March.
    let day = day - (153 * month + 2) / 5 + 1;
    let month = (month + 2) % 12;
    (400 * era + year + u64::from(month < 2), month as usize, day)
}

/// Returns the seconds since 1970 of a date in the form of [`http_date`], which is the only one
/// that may still be sent. `None` for any other form.
pub fn parse_http_date(text: &str) -> Option<u64> {
    let number = |at: std::ops::Range<usize>| text.get(at)?.parse::<u64>().ok();
    let month = MONTHS.as_chunks::<3>().0.iter().position(|month| {
        text.as_bytes().get(8..11).is_some_and(|name| name == month.as_slice())
    })?;
    let (year, day) = (number(12..16)?, number(5..7)?);
    let days = days_until(year.checked_sub(1970)? + 1970, month, day)?;
    let second = number(17..19)? * 3_600 + number(20..22)? * 60 + number(23..25)?;
    let unix_s = days * 86_400 + second;
    // A date in another form, or with 61 minutes, does not format back to itself.
    (http_date(unix_s).as_slice() == text.as_bytes()).then_some(unix_s)
}

/// Returns the microseconds since 1970 of a time of RFC 3339 in UTC, as
/// `2026-11-30T09:26:01.311417913Z`. `None` for any other text.
pub fn parse_rfc3339(text: &str) -> Option<u64> {
    let text = text.strip_suffix('Z')?;
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let number = |at: std::ops::Range<usize>| {
        text.get(at).filter(|digits| digits.as_bytes().iter().all(is_digit))?.parse::<u64>().ok()
    };
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    let has_marks = marks.iter().all(|(at, mark)| text.as_bytes().get(*at) == Some(mark));
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let is_time = hour < 24 && minute < 60 && second < 61;
    let is_right = has_marks && is_time && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_right || year < 1_970 {
        return None;
    }
    let fraction = match text.get(19..)? {
        "" => "",
        rest => rest.strip_prefix('.').filter(|digits| digits.bytes().all(|b| is_digit(&b)))?,
    };
    let us: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    let days = days_until(year, month as usize - 1, day)?;
    Some((days * 86_400 + hour * 3_600 + minute * 60 + second) * 1_000_000 + us)
}

/// Returns the days from 1970 to a day, or `None` if the day is earlier.
fn days_until(year: u64, month: usize, day: u64) -> Option<u64> {
    let month_from_march = (month as u64 + 10) % 12;
    let year = if month < 2 { year - 1 } else { year };
    let days = 365 * year + year / 4 - year / 100 + year / 400;
    (days + (153 * month_from_march + 2) / 5 + day).checked_sub(719_468 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_utc_are_read_and_nothing_else_is() {
        for us in (0..253_402_300_799_999_999).step_by(86_399_123_457 * 37) {
            assert_eq!(parse_rfc3339(&crate::trace::rfc3339(us)), Some(us));
        }
        let long = "2026-11-30T09:26:01.311417913Z";
        assert_eq!(parse_rfc3339(long), parse_rfc3339("2026-11-30T09:26:01.311417Z"));
        assert_eq!(parse_rfc3339("1970-01-01T00:00:01Z"), Some(1_000_000));
        for wrong in [
            "",
            "Z",
            "1970-01-01T00:00:01",
            "1970-01-01 00:00:01Z",
            "1970-13-01T00:00:01Z",
            "1970-01-00T00:00:01Z",
            "1969-01-01T00:00:01Z",
            "1970-01-01T00:00:01.x1Z",
            "1970-01-01T00:00:01+01:00",
            "1970-01-01T24:00:01Z",
            "+970-01-01T00:00:01Z",
            "1970-01-01T00:00:0éZ",
        ] {
            assert_eq!(parse_rfc3339(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn dates_are_read_as_they_are_written_and_no_other() {
        for unix_s in (0..253_402_300_799).step_by(86_399 * 37).chain([253_402_300_799]) {
            let date = http_date(unix_s);
            assert_eq!(parse_http_date(std::str::from_utf8(&date).unwrap()), Some(unix_s));
        }
        for text in [
            "",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 GMT ",
            "Sun, 06 Nov 1994 08:49:37 UTC",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Sun, 06 nov 1994 08:49:37 GMT",
            "Sun, +6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:61:37 GMT",
            "Wed, 31 Dec 1969 23:59:59 GMT",
            "Sun, 00 Jan 1970 00:00:00 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun, ä6 Nov 1994 08:49:37 GMT",
        ] {
            assert_eq!(parse_http_date(text), None, "{text:?}");
        }
    }

    #[test]
    fn dates_are_right_from_1970_to_9999() {
        let table = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ];
        for (unix_s, expected) in table {
            assert_eq!(std::str::from_utf8(&http_date(unix_s)), Ok(expected));
        }
        // Day by day, unlike the code under test.
        let (mut year, mut month, mut day) = (1970, 0, 1);
        for days in 0..200_000 {
            assert_eq!(civil_date(days), (year, month, day));
            let is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
            let lengths = [31, 28 + u64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            day += 1;
            if day > lengths[month] {
                (day, month) = (1, (month + 1) % 12);
                year += u64::from(month == 0);
            }
        }
    }
}
