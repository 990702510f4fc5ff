//! Records are one line each, for any content.

use super::*;

fn line(record: &Record, format: LogFormat) -> String {
    let mut out = Vec::new();
    record.write_line(format, &mut out);
    String::from_utf8(out).unwrap()
}

#[test]
fn a_record_is_one_line_in_both_formats() {
    let mut record = Record::new(1_795_324_842_000_123, Level::Warn, "connection_refused");
    record.number("shard", 3).show("peer", &"127.0.0.1:5000").show("why", &"no \"room\"");
    assert_eq!(
        line(&record, LogFormat::Text),
        "2026-11-22T05:20:42.000123Z warn  connection_refused shard=3 peer=127.0.0.1:5000 \
         why=\"no \\\"room\\\"\"\n"
    );
    assert_eq!(
        line(&record, LogFormat::Json),
        "{\"time\":\"2026-11-22T05:20:42.000123Z\",\"level\":\"warn\",\
         \"event\":\"connection_refused\",\"shard\":3,\"peer\":\"127.0.0.1:5000\",\
         \"why\":\"no \\\"room\\\"\"}\n"
    );
}

#[test]
fn every_text_comes_back_from_json_and_none_leaves_its_line() {
    let mut texts = vec!["".to_owned(), "a b".to_owned(), "\\".to_owned(), "é😀".to_owned()];
    texts.extend((0..0x100).chain(0x2000..0x2100).filter_map(char::from_u32).map(String::from));
    for text in &texts {
        let mut record = Record::new(0, Level::Info, "e");
        record.show("text", text);
        let json = line(&record, LogFormat::Json);
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["text"], **text);
        for line in [json, line(&record, LogFormat::Text)] {
            let line = line.strip_suffix('\n').unwrap();
            assert!(!line.chars().any(char::is_control), "{line:?}");
            assert!(!line.contains(['\u{2028}', '\u{2029}', '\u{202E}']), "{line:?}");
        }
    }
}

#[test]
fn a_long_text_is_cut_between_two_characters_and_shows_it() {
    for (text, kept) in [
        ("a".repeat(64), "a".repeat(64)),
        ("a".repeat(65), "a".repeat(61) + "…"),
        ("é".repeat(32), "é".repeat(32)),
        ("é".repeat(33), "é".repeat(30) + "…"),
        ("a".to_owned() + &"😀".repeat(16), "a".to_owned() + &"😀".repeat(15) + "…"),
    ] {
        let mut record = Record::new(0, Level::Info, "e");
        record.show("text", &text).show("whole", &format_args!("{} {}", 1, 2));
        let value: serde_json::Value =
            serde_json::from_str(&line(&record, LogFormat::Json)).unwrap();
        assert_eq!(value["text"], kept, "{text}");
        assert_eq!(value["whole"], "1 2");
    }
    let mut text = ShortText::EMPTY; // Piece by piece, by a writer that ignores the error.
    for _ in 0..100 {
        let _ = text.write_str("12345");
    }
    assert_eq!(text.as_str(), "12345".repeat(13)[..61].to_owned() + "…");
}

#[test]
fn dates_are_those_of_the_calendar() {
    let shown = |seconds: u64| {
        let mut out = Vec::new();
        write_time(&mut out, seconds * 1_000_000);
        String::from_utf8(out).unwrap()
    };
    for (seconds, date) in [
        (0, "1970-01-01T00:00:00"),
        (951_782_399, "2000-02-28T23:59:59"),
        (951_782_400, "2000-02-29T00:00:00"),
        (951_868_800, "2000-03-01T00:00:00"),
        (4_107_542_400, "2100-03-01T00:00:00"),
        (1_735_689_599, "2024-12-31T23:59:59"),
    ] {
        assert_eq!(shown(seconds), format!("{date}.000000Z"));
    }
    let mut last = date_of(0);
    for days in 1..200_000 {
        let date = date_of(days);
        let (year, month, day) = last;
        let expected = [(year, month, day + 1), (year, month + 1, 1), (year + 1, 1, 1)];
        assert!(expected.contains(&date), "{last:?} {date:?}");
        last = date;
    }
}

#[test]
fn levels_and_formats_are_words() {
    assert!(Level::Error < Level::Debug);
    for word in Level::WORDS {
        assert_eq!(word.parse::<Level>().unwrap().to_string(), *word);
    }
    for word in LogFormat::WORDS {
        assert_eq!(word.parse::<LogFormat>().unwrap().to_string(), *word);
    }
    let error = "loud".parse::<Level>().unwrap_err().to_string();
    assert_eq!(error, "must be one of error, warn, info, debug");
}
