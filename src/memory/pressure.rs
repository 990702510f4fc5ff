//! How short memory is: from what the kernel says to one of four words, and from the word to the
//! largest ring.
//!
//! Pure: readings come in, a [`Pressure`] goes out. Who reads them, and when, is not known here
//! (`reactor/watch.rs`; by hand in tests and in the simulator); one [`Gauge::observe`] is one
//! sample. Up goes at once: memory that is short now is short for the next ring. Down goes only
//! after [`limits::PRESSURE_CALM_SAMPLES`] samples that were all better, and then to the worst of
//! these, so that a value which wavers around a threshold does not turn arenas over each second.
//!
//! The table of thresholds is [`THRESHOLDS`]; each number stands in [`limits`] with its reason.
//! Tests: at the end, one for each row.

use std::fmt;

use crate::limits;

/// What the kernel says at one moment. `None`: it does not say (an old kernel, PSI switched off, no
/// cgroup with a limit), and the rest decides.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Readings {
    /// Percent of the last 10 s in which some task waited for memory: `/proc/pressure/memory`.
    pub memory_some_avg10: Option<f32>,
    /// … in which all of them did.
    pub memory_full_avg10: Option<f32>,
    /// Percent of the last 10 s in which some task waited for a disk: `/proc/pressure/io`.
    pub io_some_avg10: Option<f32>,
    /// … in which all of them did.
    pub io_full_avg10: Option<f32>,
    /// Memory that can be had without swapping: MemAvailable.
    pub mem_available_bytes: Option<u64>,
    /// Memory of the machine.
    pub mem_total_bytes: Option<u64>,
    /// The smallest limit of our cgroup and those above it; `None` where nothing limits.
    pub cgroup_limit_bytes: Option<u64>,
    /// What can not be had of that limit any more, file cache that can be dropped left out. (In a
    /// tree of cgroups: as seen from the one with the least room.)
    pub cgroup_used_bytes: Option<u64>,
}

/// How short memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Pressure {
    /// Rings of every class.
    #[default]
    Normal,
    /// Rings of at most 256 KiB; what is idle is given back.
    Elevated,
    /// Rings of at most 64 KiB.
    Critical,
    /// Rings of at most 16 KiB.
    Survival,
}

impl Pressure {
    /// All four, calm ones first.
    pub const ALL: [Pressure; 4] =
        [Pressure::Normal, Pressure::Elevated, Pressure::Critical, Pressure::Survival];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Pressure::Normal => "normal",
            Pressure::Elevated => "elevated",
            Pressure::Critical => "critical",
            Pressure::Survival => "survival",
        }
    }

    /// The largest window that may be leased.
    pub const fn largest_class_bytes(self) -> u32 {
        limits::PRESSURE_CLASS_BYTES[self as usize]
    }

    /// The one of a number from [`Pressure::ALL`].
    pub const fn of_index(index: u8) -> Option<Pressure> {
        match index {
            0..=3 => Some(Pressure::ALL[index as usize]),
            _ => None,
        }
    }

    /// What these readings alone say: the worst of the rows about memory, and of those about disks
    /// where they are one step worse. A disk that is busy while memory is not is somebody's work,
    /// and no smaller ring helps it.
    pub fn of(readings: &Readings) -> Pressure {
        let worst = |is_disk: bool| {
            let rows = THRESHOLDS.iter().filter(|row| row.is_disk == is_disk);
            let words = rows.filter_map(|row| Some(row.pressure((row.value)(readings)?)));
            words.max().unwrap_or_default()
        };
        let (memory, disks) = (worst(false), worst(true));
        let next = Pressure::ALL.into_iter().find(|&pressure| pressure > memory);
        memory.max(disks.min(next.unwrap_or(memory)))
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// One row of the table: what is looked at, and from where on it is elevated, critical, survival.
pub struct Threshold {
    /// What it is called in the report.
    pub name: &'static str,
    /// Percent, if it is known. More is worse.
    value: fn(&Readings) -> Option<f32>,
    /// Percent: elevated, critical, survival, each from here on.
    pub percent: [f32; 3],
    /// It is about disks.
    is_disk: bool,
}

impl Threshold {
    fn pressure(&self, percent: f32) -> Pressure {
        let reached = self.percent.iter().filter(|&&threshold| percent >= threshold).count();
        Pressure::ALL[reached]
    }
}

/// The table. What is left of memory is turned round (100 − available), so that more is worse in
/// every row.
pub const THRESHOLDS: [Threshold; 6] = [
    Threshold {
        name: "memory some avg10",
        value: |readings| readings.memory_some_avg10,
        percent: limits::PRESSURE_MEMORY_SOME_PERCENT,
        is_disk: false,
    },
    Threshold {
        name: "memory full avg10",
        value: |readings| readings.memory_full_avg10,
        percent: limits::PRESSURE_MEMORY_FULL_PERCENT,
        is_disk: false,
    },
    Threshold {
        name: "io some avg10",
        value: |readings| readings.io_some_avg10,
        percent: limits::PRESSURE_IO_SOME_PERCENT,
        is_disk: true,
    },
    Threshold {
        name: "io full avg10",
        value: |readings| readings.io_full_avg10,
        percent: limits::PRESSURE_IO_FULL_PERCENT,
        is_disk: true,
    },
    Threshold {
        name: "memory used of the machine",
        value: |readings| {
            let total_bytes = readings.mem_total_bytes?;
            used_percent(total_bytes.saturating_sub(readings.mem_available_bytes?), total_bytes)
        },
        percent: limits::PRESSURE_USED_PERCENT,
        is_disk: false,
    },
    Threshold {
        name: "memory used of the cgroup",
        value: |readings| used_percent(readings.cgroup_used_bytes?, readings.cgroup_limit_bytes?),
        percent: limits::PRESSURE_USED_PERCENT,
        is_disk: false,
    },
];

/// `None` of nothing: a limit of 0 bytes says nothing that anybody could still follow.
fn used_percent(used_bytes: u64, of_bytes: u64) -> Option<f32> {
    (of_bytes > 0).then(|| (100.0 * used_bytes as f64 / of_bytes as f64) as f32)
}

/// The state, over time.
#[derive(Clone, Debug, Default)]
pub struct Gauge {
    pressure: Pressure,
    /// Samples in a row that were better than the state.
    calm_count: u32,
    /// The worst of these.
    calm_worst: Pressure,
}

impl Gauge {
    /// Takes one sample and says how short memory is.
    pub fn observe(&mut self, readings: &Readings) -> Pressure {
        let sample = Pressure::of(readings);
        if sample >= self.pressure {
            *self = Gauge { pressure: sample, ..Gauge::default() };
            return sample;
        }
        self.calm_count += 1;
        self.calm_worst = self.calm_worst.max(sample);
        assert!(self.calm_worst < self.pressure);
        if self.calm_count >= limits::PRESSURE_CALM_SAMPLES {
            *self = Gauge { pressure: self.calm_worst, ..Gauge::default() };
        }
        self.pressure
    }

    /// What the last sample left.
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }
}

/// What all rings of a process may take together under a cgroup limit, and never less than one
/// window of the smallest class.
pub fn rings_bytes_under(cgroup_limit_bytes: u64) -> u64 {
    let share_bytes = cgroup_limit_bytes / limits::RINGS_CGROUP_FRACTION;
    share_bytes.max(u64::from(limits::RING_CLASS_BYTES[0]))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NOTHING: Readings = Readings {
        memory_some_avg10: None,
        memory_full_avg10: None,
        io_some_avg10: None,
        io_full_avg10: None,
        mem_available_bytes: None,
        mem_total_bytes: None,
        cgroup_limit_bytes: None,
        cgroup_used_bytes: None,
    };

    /// Readings of which one row of the table, and no other, says `percent`.
    fn reading(row: usize, percent: f32) -> Readings {
        let mut readings = NOTHING;
        // Of 2^30 bytes, so that a percentage comes out as it went in, but for a rounding up.
        let used_bytes = (f64::from(percent) / 100.0 * f64::from(1 << 30)).ceil() as u64;
        match row {
            0 => readings.memory_some_avg10 = Some(percent),
            1 => readings.memory_full_avg10 = Some(percent),
            2 => readings.io_some_avg10 = Some(percent),
            3 => readings.io_full_avg10 = Some(percent),
            4 => {
                readings.mem_total_bytes = Some(1 << 30);
                readings.mem_available_bytes = Some((1 << 30) - used_bytes);
            }
            _ => {
                readings.cgroup_limit_bytes = Some(1 << 30);
                readings.cgroup_used_bytes = Some(used_bytes);
            }
        }
        readings
    }

    #[test]
    fn each_row_of_the_table_decides_where_its_numbers_say() {
        for (row, threshold) in THRESHOLDS.iter().enumerate() {
            assert_eq!(Pressure::of(&reading(row, 0.0)), Pressure::Normal, "{}", threshold.name);
            for (level, percent) in threshold.percent.into_iter().enumerate() {
                // Disks are believed one step further than memory.
                let of = |percent| {
                    let mut readings = reading(row, percent);
                    if threshold.is_disk && level > 0 {
                        let of_memory = limits::PRESSURE_MEMORY_SOME_PERCENT[level - 1];
                        readings.memory_some_avg10 = Some(of_memory);
                    }
                    Pressure::of(&readings)
                };
                let (below, at) = (of(percent - 0.01), of(percent));
                assert_eq!(below, Pressure::ALL[level], "{} {percent}", threshold.name);
                assert_eq!(at, Pressure::ALL[level + 1], "{} {percent}", threshold.name);
            }
            let all_used = Pressure::of(&reading(row, 100.0));
            let worst = if threshold.is_disk { Pressure::Elevated } else { Pressure::Survival };
            assert_eq!(all_used, worst, "{}", threshold.name);
        }
    }

    #[test]
    fn each_state_has_the_largest_ring_of_the_seed() {
        let classes = Pressure::ALL.map(Pressure::largest_class_bytes);
        assert_eq!(classes, [1 << 20, 256 << 10, 64 << 10, 16 << 10]);
        for (index, pressure) in Pressure::ALL.into_iter().enumerate() {
            assert_eq!(Pressure::of_index(index as u8), Some(pressure));
        }
        assert_eq!(Pressure::of_index(4), None);
    }

    #[test]
    fn the_worst_of_memory_and_io_decides() {
        for (worst, threshold) in THRESHOLDS.iter().enumerate() {
            let mut readings = reading(worst, threshold.percent[1]);
            // All others say "elevated".
            for row in (0..THRESHOLDS.len()).filter(|row| *row != worst) {
                let other = reading(row, THRESHOLDS[row].percent[0]);
                readings = Readings {
                    memory_some_avg10: readings.memory_some_avg10.or(other.memory_some_avg10),
                    memory_full_avg10: readings.memory_full_avg10.or(other.memory_full_avg10),
                    io_some_avg10: readings.io_some_avg10.or(other.io_some_avg10),
                    io_full_avg10: readings.io_full_avg10.or(other.io_full_avg10),
                    mem_available_bytes: readings.mem_available_bytes.or(other.mem_available_bytes),
                    mem_total_bytes: readings.mem_total_bytes.or(other.mem_total_bytes),
                    cgroup_limit_bytes: readings.cgroup_limit_bytes.or(other.cgroup_limit_bytes),
                    cgroup_used_bytes: readings.cgroup_used_bytes.or(other.cgroup_used_bytes),
                };
            }
            assert_eq!(Pressure::of(&readings), Pressure::Critical, "{}", threshold.name);
        }
    }

    #[test]
    fn what_the_kernel_does_not_say_decides_nothing() {
        assert_eq!(Pressure::of(&NOTHING), Pressure::Normal);
        let halves = [
            Readings { mem_available_bytes: Some(0), ..NOTHING },
            Readings { mem_total_bytes: Some(1), ..NOTHING },
            Readings { cgroup_limit_bytes: Some(1), ..NOTHING },
            Readings { cgroup_used_bytes: Some(1), ..NOTHING },
            Readings { cgroup_limit_bytes: Some(0), cgroup_used_bytes: Some(0), ..NOTHING },
            Readings { memory_some_avg10: Some(f32::NAN), ..NOTHING },
        ];
        for readings in halves {
            assert_eq!(Pressure::of(&readings), Pressure::Normal, "{readings:?}");
        }
        // Without PSI the rest still does.
        assert_eq!(Pressure::of(&reading(4, 96.0)), Pressure::Survival);
        let more_than_all = Readings {
            mem_available_bytes: Some(u64::MAX),
            cgroup_used_bytes: Some(u64::MAX),
            cgroup_limit_bytes: Some(1),
            ..NOTHING
        };
        assert_eq!(Pressure::of(&more_than_all), Pressure::Survival);
    }

    #[test]
    fn up_goes_at_once_and_down_only_after_calm_samples() {
        let mut gauge = Gauge::default();
        let calm = reading(0, 0.0);
        assert_eq!(gauge.observe(&reading(0, 100.0)), Pressure::Survival);
        for _ in 1..limits::PRESSURE_CALM_SAMPLES {
            assert_eq!(gauge.observe(&calm), Pressure::Survival);
        }
        // One bad sample, and the calm begins anew.
        assert_eq!(gauge.observe(&reading(0, 100.0)), Pressure::Survival);
        for _ in 1..limits::PRESSURE_CALM_SAMPLES {
            assert_eq!(gauge.observe(&calm), Pressure::Survival);
        }
        assert_eq!(gauge.observe(&calm), Pressure::Normal);
        assert_eq!(gauge.pressure(), Pressure::Normal);
    }

    #[test]
    fn down_goes_to_the_worst_of_the_calm_samples() {
        let mut gauge = Gauge::default();
        gauge.observe(&reading(0, 100.0));
        gauge.observe(&reading(0, THRESHOLDS[0].percent[0])); // Elevated, once.
        for _ in 2..limits::PRESSURE_CALM_SAMPLES {
            assert_eq!(gauge.observe(&NOTHING), Pressure::Survival);
        }
        assert_eq!(gauge.observe(&NOTHING), Pressure::Elevated);
        for _ in 1..limits::PRESSURE_CALM_SAMPLES {
            assert_eq!(gauge.observe(&NOTHING), Pressure::Elevated);
        }
        assert_eq!(gauge.observe(&NOTHING), Pressure::Normal);
    }

    #[test]
    fn a_value_that_wavers_around_a_threshold_does_not_flap() {
        let mut gauge = Gauge::default();
        let threshold = THRESHOLDS[0].percent[0];
        let mut changes = 0;
        let mut before = gauge.pressure();
        for sample in 0..1_000 {
            let percent = if sample % 2 == 0 { threshold } else { threshold - 1.0 };
            let now = gauge.observe(&reading(0, percent));
            changes += u32::from(now != before);
            before = now;
        }
        assert_eq!(changes, 1);
    }

    #[test]
    fn rings_get_a_tenth_of_the_cgroup() {
        assert_eq!(rings_bytes_under(64 << 20), (64 << 20) / 10);
        assert_eq!(rings_bytes_under(4 << 20), (4 << 20) / 10);
        assert_eq!(rings_bytes_under(0), 4 << 10);
    }
}
