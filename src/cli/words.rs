//! Numbers in texts for people: counts, sizes and times.

use std::time::Duration;

/// Returns a number with its noun: `1 step`, `2,000 steps`.
pub fn counted(number: u64, what: &str) -> String {
    format!("{} {what}{}", with_separators(number), if number == 1 { "" } else { "s" })
}

/// Returns a number such as `1,234,567`.
pub fn with_separators(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns a size such as `3.0 MiB`.
pub fn in_units(bytes: f64) -> String {
    let (mut number, mut unit) = (bytes, "bytes");
    for larger in ["KiB", "MiB", "GiB"] {
        if number < 1_024.0 {
            break;
        }
        (number, unit) = (number / 1_024.0, larger);
    }
    if unit == "bytes" { format!("{number:.0} {unit}") } else { format!("{number:.1} {unit}") }
}

/// Returns a time such as `12.3 µs`, `4.5 ms` or `1.85 s`.
pub fn time(time: Duration) -> String {
    let us = time.as_nanos() as f64 / 1e3;
    match us {
        ..1e3 => format!("{us:.1} µs"),
        1e3..1e6 => format!("{:.1} ms", us / 1e3),
        _ => format!("{:.2} s", us / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_legible() {
        assert_eq!(counted(1, "chunk"), "1 chunk");
        assert_eq!(counted(9_000_000, "byte"), "9,000,000 bytes");
        assert_eq!([0, 999, 1_000].map(with_separators), ["0", "999", "1,000"]);
        assert_eq!([1_023.0, 1_024.0, 3e9].map(in_units), ["1023 bytes", "1.0 KiB", "2.8 GiB"]);
    }

    #[test]
    fn a_time_has_the_unit_of_its_size() {
        for (ns, text) in [
            (0, "0.0 µs"),
            (12_345, "12.3 µs"),
            (1_000_000, "1.0 ms"),
            (431_987_500, "432.0 ms"),
            (1_850_000_000, "1.85 s"),
        ] {
            assert_eq!(time(Duration::from_nanos(ns)), text);
        }
    }
}
