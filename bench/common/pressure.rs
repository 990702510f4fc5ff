//! The pressure at the end of a run. The kernel counts the time in which tasks wait for a resource.
//! streamdoor's server reports its memory pressure level.
//!
//! A figure of a machine under pressure is not comparable with one of a quiet machine.

use std::fs;

use serde_json::{Map, Value, json};

/// The resources for which the kernel counts waits: files of `/proc/pressure`.
const RESOURCES: [&str; 3] = ["cpu", "memory", "io"];

/// The pressure at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// `some avg10` of each of [`RESOURCES`]: the percentage of the last ten seconds in which a
    /// task has waited. `None` if the kernel does not count it.
    some_percent: [Option<f64>; 3],
    /// The level that streamdoor's server reports. `None` if none was asked.
    server_level: Option<u64>,
}

impl Pressure {
    /// Returns the present pressure. `server_level` is the level that streamdoor's server reports,
    /// if it can be asked.
    pub fn now(server_level: Option<u64>) -> Pressure {
        let read = |name| fs::read_to_string(format!("/proc/pressure/{name}")).ok();
        let some_percent = RESOURCES.map(|name| some_percent(&read(name)?));
        Pressure { some_percent, server_level }
    }

    /// Returns the pressure as JSON. Unknown values are null.
    pub fn to_json(self) -> Value {
        let percents = RESOURCES.iter().zip(self.some_percent);
        let percents = percents.map(|(name, value)| (format!("{name}_some_avg10"), json!(value)));
        let mut numbers: Map<String, Value> = percents.collect();
        numbers.insert("server_level".into(), json!(self.server_level));
        Value::Object(numbers)
    }

    /// Returns the pressure as a line of text.
    pub fn to_text(self) -> String {
        let of = |(name, value): (&str, Option<f64>)| match value {
            Some(percent) => format!("{name} {percent:.2} %"),
            None => format!("{name} not counted"),
        };
        let percents: Vec<String> = RESOURCES.into_iter().zip(self.some_percent).map(of).collect();
        let level = self.server_level.map_or("not read".to_owned(), |level| level.to_string());
        format!("pressure    {} (some avg10); server's level {level}\n", percents.join(", "))
    }
}

/// Returns `avg10` of the line `some` of a pressure file.
fn some_percent(text: &str) -> Option<f64> {
    let averages = text.lines().find_map(|line| line.strip_prefix("some "))?;
    averages.split_ascii_whitespace().find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "some avg10=12.50 avg60=1.00 avg300=0.10 total=7\n\
                        full avg10=3.00 avg60=0.00 avg300=0.00 total=5\n";

    #[test]
    fn the_short_average_of_some_is_read_and_nothing_else_is_taken_for_it() {
        assert_eq!(some_percent(FILE), Some(12.5));
        assert_eq!(some_percent("full avg10=3.00\nsome total=1 avg10=0.25\n"), Some(0.25));
        for text in ["", "full avg10=3.00 total=5\n", "some avg60=1.00\n", "some avg10=much\n"] {
            assert_eq!(some_percent(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_unknown_is_said_to_be() {
        let pressure = Pressure { some_percent: [Some(12.5), None, Some(0.0)], server_level: None };
        let line = "pressure    cpu 12.50 %, memory not counted, io 0.00 % (some avg10); \
                    server's level not read\n";
        assert_eq!(pressure.to_text(), line);
        let json = json!({"cpu_some_avg10": 12.5, "memory_some_avg10": null,
            "io_some_avg10": 0.0, "server_level": null});
        assert_eq!(pressure.to_json(), json);
        let pressure = Pressure { server_level: Some(1), ..pressure };
        assert!(pressure.to_text().ends_with("server's level 1\n"));
        assert_eq!(pressure.to_json()["server_level"], 1);
        let _ = Pressure::now(None).to_text(); // A kernel without these files is no failure.
    }
}
