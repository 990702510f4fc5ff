//! Memory pressure: from the kernel's readings to one of four states, and from the state to the
//! largest ring.
//!
//! The module is pure: readings go in, a [`Pressure`] comes out. `reactor/watch.rs` takes the
//! readings (in tests and in the simulator they are constructed). One call of [`Gauge::observe`] is
//! one sample.
//!
//! The state rises at once, because memory that is short now is short for the next ring. It falls
//! only after [`limits::PRESSURE_CALM_SAMPLES`] samples that were all better, and then to the worst
//! of these. A value that wavers around a threshold thus does not release and buy arenas each
//! second.
//!
//! The table of thresholds is [`THRESHOLDS`]. Each number is in [`limits`], with its reason.
//! Tests: at the end, one for each row.

use std::fmt;

use crate::limits;

/// The kernel's values at one moment. `None` means that the kernel does not report it: an old
/// kernel, PSI switched off, no cgroup with a limit. The remaining readings then decide.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Readings {
    /// Percent of the last 10 s in which some task waited for memory (`/proc/pressure/memory`).
    pub memory_some_avg10: Option<f32>,
    /// Percent of the last 10 s in which all tasks waited for memory.
    pub memory_full_avg10: Option<f32>,
    /// Percent of the last 10 s in which some task waited for a disk (`/proc/pressure/io`).
    pub io_some_avg10: Option<f32>,
    /// Percent of the last 10 s in which all tasks waited for a disk.
    pub io_full_avg10: Option<f32>,
    /// Size of the machine's swap space (SwapTotal).
    pub swap_total_bytes: Option<u64>,
    /// The unused part of the machine's swap space (SwapFree).
    pub swap_free_bytes: Option<u64>,
    /// Memory that is available without swapping (MemAvailable).
    pub mem_available_bytes: Option<u64>,
    /// Memory of the machine (MemTotal).
    pub mem_total_bytes: Option<u64>,
    /// The smallest limit of our cgroup and those above it; `None` if nothing limits.
    pub cgroup_limit_bytes: Option<u64>,
    /// The part of that limit that is in use, without file cache that can be dropped. In a tree of
    /// cgroups it is that of the one with the least room.
    pub cgroup_used_bytes: Option<u64>,
}

/// The degree to which memory is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Pressure {
    /// Rings of every class are allowed.
    #[default]
    Normal,
    /// Rings of at most 256 KiB are allowed, and idle windows are released.
    Elevated,
    /// Rings of at most 64 KiB are allowed.
    Critical,
    /// Rings of at most 16 KiB are allowed.
    Survival,
}

impl Pressure {
    /// All four states, from calm to worst.
    pub const ALL: [Pressure; 4] =
        [Pressure::Normal, Pressure::Elevated, Pressure::Critical, Pressure::Survival];

    /// The name of the state.
    pub const fn name(self) -> &'static str {
        match self {
            Pressure::Normal => "normal",
            Pressure::Elevated => "elevated",
            Pressure::Critical => "critical",
            Pressure::Survival => "survival",
        }
    }

    /// Size of the largest window that may be leased, in bytes.
    pub const fn largest_class_bytes(self) -> u32 {
        limits::PRESSURE_CLASS_BYTES[self as usize]
    }

    /// Returns the state with this index in [`Pressure::ALL`].
    pub const fn of_index(index: u8) -> Option<Pressure> {
        match index {
            0..=3 => Some(Pressure::ALL[index as usize]),
            _ => None,
        }
    }

    /// The state that these readings alone require (`Diagnosis::of`).
    pub fn of(readings: &Readings) -> Pressure {
        Diagnosis::of(readings).pressure
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// The reading that decided a state: a row of `THRESHOLDS`, and its value at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decisive {
    row: u8,
    percent: u8,
}

impl Decisive {
    /// Makes the reading of this row of `THRESHOLDS`, or `None` without such a row. Percentages
    /// are rounded down, and end at [`Decisive::PERCENT_MAX`].
    pub fn new(row: usize, percent: f32) -> Option<Decisive> {
        let percent = percent.clamp(0.0, f32::from(Decisive::PERCENT_MAX)) as u8;
        (row < THRESHOLDS.len()).then_some(Decisive { row: row as u8, percent })
    }

    /// The largest percentage. It is above 100, because a cgroup whose limit was lowered can use
    /// more than its limit.
    pub const PERCENT_MAX: u8 = 127;

    /// The row of `THRESHOLDS`.
    pub fn row(self) -> usize {
        usize::from(self.row)
    }

    /// The name of the row.
    pub fn name(self) -> &'static str {
        THRESHOLDS[self.row()].name
    }

    /// The label of the row in metrics.
    pub fn label(self) -> &'static str {
        THRESHOLDS[self.row()].label
    }

    /// The value, in whole percent.
    pub fn percent(self) -> u8 {
        self.percent
    }
}

impl fmt::Display for Decisive {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} %", self.name(), self.percent)
    }
}

/// A state, and the reading that decided it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// The state of memory.
    pub pressure: Pressure,
    /// The reading. In the state `normal` it is the one nearest to its threshold. `None` if the
    /// kernel reports nothing.
    pub decided_by: Option<Decisive>,
    /// The worst row about disks that has reached its first threshold. Disks alone do not change
    /// the state, but an operator wants to know why everything is slow.
    pub busy_disks: Option<Decisive>,
}

impl Diagnosis {
    /// Diagnoses these readings alone: the worst of the rows about memory decides.
    ///
    /// A disk that is busy while memory suffices is under ordinary load, and a smaller ring does
    /// not help. Rows about disks therefore count only under one of two conditions. Either a row
    /// about memory has reached the percentage of its `Row::Memory`, or swap is in use. They raise
    /// the state by at most one step.
    pub fn of(readings: &Readings) -> Diagnosis {
        let disks = Diagnosis::worst(readings, |row| matches!(row, Row::Disk));
        let busy_disks = disks.decided_by.filter(|_| disks.pressure > Pressure::Normal);
        let memory = Diagnosis::worst(readings, |row| matches!(row, Row::Memory { .. }));
        let (memory, disks) =
            (Diagnosis { busy_disks, ..memory }, Diagnosis { busy_disks, ..disks });
        if !can_thrash(readings) {
            return memory;
        }
        let next = Pressure::ALL.into_iter().find(|&pressure| pressure > memory.pressure);
        let lifted = disks.pressure.min(next.unwrap_or(memory.pressure));
        assert!(lifted as usize <= memory.pressure as usize + 1); // One step at most.
        if lifted > memory.pressure { Diagnosis { pressure: lifted, ..disks } } else { memory }
    }

    /// Finds the worst of the wanted rows. Among several rows in one state, the one farthest beyond
    /// its threshold decides.
    fn worst(readings: &Readings, is_wanted: impl Fn(&Row) -> bool) -> Diagnosis {
        let rows = THRESHOLDS.iter().enumerate().filter(|(_, row)| is_wanted(&row.about));
        let found = rows.filter_map(|(index, row)| {
            let percent = (row.value)(readings).filter(|percent| !percent.is_nan())?;
            let pressure = row.pressure(percent);
            let threshold = row.percent[(pressure as usize).saturating_sub(1)];
            let decided_by = Decisive::new(index, percent);
            let diagnosis = Diagnosis { pressure, decided_by, busy_disks: None };
            Some((percent / threshold, diagnosis))
        });
        let order = |(one_ratio, one): &(f32, Diagnosis),
                     (other_ratio, other): &(f32, Diagnosis)| {
            one.pressure.cmp(&other.pressure).then(one_ratio.total_cmp(other_ratio))
        };
        found.max_by(order).map(|(_, diagnosis)| diagnosis).unwrap_or_default()
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.decided_by {
            Some(reading) => write!(out, "{} ({reading})", self.pressure),
            None => write!(out, "{} (the kernel reports nothing)", self.pressure),
        }
    }
}

/// True if a busy disk may be the effect of memory that is too small.
fn can_thrash(readings: &Readings) -> bool {
    let is_on_its_way = |row: &Threshold| match row.about {
        Row::Memory { disks_count_from } => {
            (row.value)(readings).is_some_and(|percent| percent >= disks_count_from)
        }
        Row::Disk => false,
    };
    let swap = readings.swap_total_bytes.zip(readings.swap_free_bytes);
    let swap_percent =
        swap.and_then(|(total, free)| used_percent(total.saturating_sub(free), total));
    let is_swapping = swap_percent >= Some(limits::PRESSURE_SWAP_USED_PERCENT);
    is_swapping || THRESHOLDS.iter().any(is_on_its_way)
}

/// One row of the table: a reading, and its thresholds for elevated, critical and survival.
pub struct Threshold {
    /// The name of the reading in reports.
    pub name: &'static str,
    /// The label of the reading in metrics.
    pub label: &'static str,
    /// The reading in percent, if it is known. More is worse.
    value: fn(&Readings) -> Option<f32>,
    /// The thresholds in percent: elevated, critical, survival, each inclusive.
    pub percent: [f32; 3],
    about: Row,
}

/// The subject of a row.
enum Row {
    /// Memory. From this percentage on, rows about disks count.
    Memory { disks_count_from: f32 },
    /// Disks.
    Disk,
}

impl Threshold {
    fn pressure(&self, percent: f32) -> Pressure {
        assert!(!percent.is_nan()); // The caller leaves those out.
        let reached = self.percent.iter().filter(|&&threshold| percent >= threshold).count();
        Pressure::ALL[reached]
    }
}

/// The table of thresholds. Available memory is inverted (100 − available), so that more is worse
/// in every row.
pub const THRESHOLDS: [Threshold; 6] = [
    Threshold {
        name: "memory some avg10",
        label: "memory_some",
        value: |readings| readings.memory_some_avg10,
        percent: limits::PRESSURE_MEMORY_SOME_PERCENT,
        about: Row::Memory { disks_count_from: limits::PRESSURE_MEMORY_SOME_DISKS_PERCENT },
    },
    Threshold {
        name: "memory full avg10",
        label: "memory_full",
        value: |readings| readings.memory_full_avg10,
        percent: limits::PRESSURE_MEMORY_FULL_PERCENT,
        about: Row::Memory { disks_count_from: limits::PRESSURE_MEMORY_FULL_DISKS_PERCENT },
    },
    Threshold {
        name: "io some avg10",
        label: "io_some",
        value: |readings| readings.io_some_avg10,
        percent: limits::PRESSURE_IO_SOME_PERCENT,
        about: Row::Disk,
    },
    Threshold {
        name: "io full avg10",
        label: "io_full",
        value: |readings| readings.io_full_avg10,
        percent: limits::PRESSURE_IO_FULL_PERCENT,
        about: Row::Disk,
    },
    Threshold {
        name: "memory used of the machine",
        label: "machine_used",
        value: |readings| {
            let total_bytes = readings.mem_total_bytes?;
            used_percent(total_bytes.saturating_sub(readings.mem_available_bytes?), total_bytes)
        },
        percent: limits::PRESSURE_USED_PERCENT,
        about: Row::Memory { disks_count_from: limits::PRESSURE_USED_DISKS_PERCENT },
    },
    Threshold {
        name: "memory used of the cgroup",
        label: "cgroup_used",
        value: |readings| used_percent(readings.cgroup_used_bytes?, readings.cgroup_limit_bytes?),
        percent: limits::PRESSURE_USED_PERCENT,
        about: Row::Memory { disks_count_from: limits::PRESSURE_USED_DISKS_PERCENT },
    },
];

/// The labels of the rows about disks.
pub const DISK_LABELS: [&str; 2] = [THRESHOLDS[2].label, THRESHOLDS[3].label];

const _: () = {
    assert!(matches!(THRESHOLDS[2].about, Row::Disk));
    assert!(matches!(THRESHOLDS[3].about, Row::Disk));
    assert!(THRESHOLDS.len() <= u8::MAX as usize); // `Decisive` holds the row in a byte.
    assert!(Pressure::ALL.len() == limits::PRESSURE_CLASS_BYTES.len());
    assert!(Decisive::PERCENT_MAX > 100);
    assert!(limits::PRESSURE_CALM_SAMPLES > 0);
    assert!(limits::RINGS_CGROUP_FRACTION > 0);
    let mut index = 0;
    while index < Pressure::ALL.len() {
        assert!(Pressure::ALL[index] as usize == index); // A state is the index of its class.
        index += 1;
    }
    let mut row = 0;
    while row < THRESHOLDS.len() {
        let percent = &THRESHOLDS[row].percent;
        assert!(percent.len() + 1 == Pressure::ALL.len()); // Each state but the first has one.
        assert!(percent[0] > 0.0); // A machine at rest is normal.
        assert!(percent[0] < percent[1]);
        assert!(percent[1] < percent[2]);
        assert!(percent[2] <= 100.0);
        if let Row::Memory { disks_count_from } = THRESHOLDS[row].about {
            assert!(disks_count_from > 0.0);
            assert!(disks_count_from < percent[0]); // Memory is on its way before it is short.
        }
        row += 1;
    }
};

/// Returns the used percentage. `None` if `of_bytes` is 0, as nobody could keep within such a
/// limit.
fn used_percent(used_bytes: u64, of_bytes: u64) -> Option<f32> {
    (of_bytes > 0).then(|| (100.0 * used_bytes as f64 / of_bytes as f64) as f32)
}

/// The disks over time: busy at once, and calm after [`limits::PRESSURE_CALM_SAMPLES`] samples.
#[derive(Clone, Debug, Default)]
struct DiskGauge {
    /// The reading that began it.
    busy: Option<Decisive>,
    calm_count: u32,
}

impl DiskGauge {
    fn observe(&mut self, sample: Option<Decisive>) {
        self.calm_count = if sample.is_some() { 0 } else { self.calm_count.saturating_add(1) };
        if self.calm_count >= limits::PRESSURE_CALM_SAMPLES {
            self.busy = None;
        }
        self.busy = self.busy.or(sample);
    }
}

/// The state over time.
#[derive(Clone, Debug, Default)]
pub struct Gauge {
    disks: DiskGauge,
    /// The diagnosis that last changed the state.
    diagnosis: Diagnosis,
    /// Number of consecutive samples that were better than the state.
    calm_count: u32,
    /// The worst of these samples.
    calm_worst: Diagnosis,
}

impl Gauge {
    /// Takes one sample and returns the resulting state.
    pub fn observe(&mut self, readings: &Readings) -> Pressure {
        let sample = Diagnosis::of(readings);
        self.disks.observe(sample.busy_disks);
        if sample.pressure >= self.diagnosis.pressure {
            let is_same = sample.pressure == self.diagnosis.pressure;
            let diagnosis = if is_same { self.diagnosis } else { sample };
            assert!(diagnosis.pressure == sample.pressure); // It rises at once.
            self.change(diagnosis);
            return diagnosis.pressure;
        }
        assert!(self.calm_count < limits::PRESSURE_CALM_SAMPLES);
        self.calm_count += 1;
        if sample.pressure >= self.calm_worst.pressure {
            self.calm_worst = sample;
        }
        assert!(self.calm_worst.pressure < self.diagnosis.pressure);
        if self.calm_count >= limits::PRESSURE_CALM_SAMPLES {
            self.change(self.calm_worst);
        }
        self.diagnosis.pressure
    }

    fn change(&mut self, diagnosis: Diagnosis) {
        *self = Gauge { diagnosis, disks: std::mem::take(&mut self.disks), ..Gauge::default() };
    }

    /// The state after the last sample.
    pub fn pressure(&self) -> Pressure {
        self.diagnosis.pressure
    }

    /// The state with the reading that caused it.
    pub fn diagnosis(&self) -> Diagnosis {
        Diagnosis { busy_disks: self.disks.busy, ..self.diagnosis }
    }
}

/// Number of bytes that all rings of a process may take under a cgroup limit. It is never less than
/// one window of the smallest class.
pub fn rings_bytes_under(cgroup_limit_bytes: u64) -> u64 {
    let share_bytes = cgroup_limit_bytes / limits::RINGS_CGROUP_FRACTION;
    assert!(share_bytes <= cgroup_limit_bytes);
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
        swap_total_bytes: None,
        swap_free_bytes: None,
        cgroup_limit_bytes: None,
        cgroup_used_bytes: None,
    };

    /// Returns readings in which only the given row of the table reads `percent`.
    fn reading(row: usize, percent: f32) -> Readings {
        let mut readings = NOTHING;
        // Of 2^30 bytes, so that a percentage is preserved, except for rounding up.
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
            let is_disk = matches!(threshold.about, Row::Disk);
            for (level, percent) in threshold.percent.into_iter().enumerate() {
                // Rows about disks reach one step beyond memory, once memory has reached its
                // percentage.
                let of = |percent| {
                    let mut readings = reading(row, percent);
                    if is_disk {
                        let of_memory = match level {
                            0 => limits::PRESSURE_MEMORY_SOME_DISKS_PERCENT,
                            _ => limits::PRESSURE_MEMORY_SOME_PERCENT[level - 1],
                        };
                        readings.memory_some_avg10 = Some(of_memory);
                    }
                    Pressure::of(&readings)
                };
                let (below, at) = (of(percent - 0.01), of(percent));
                assert_eq!(below, Pressure::ALL[level], "{} {percent}", threshold.name);
                assert_eq!(at, Pressure::ALL[level + 1], "{} {percent}", threshold.name);
            }
            let all_used = Pressure::of(&reading(row, 100.0));
            let worst = if is_disk { Pressure::Normal } else { Pressure::Survival };
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
            // All other rows say "elevated".
            for row in (0..THRESHOLDS.len()).filter(|row| *row != worst) {
                let other = reading(row, THRESHOLDS[row].percent[0]);
                readings = Readings {
                    memory_some_avg10: readings.memory_some_avg10.or(other.memory_some_avg10),
                    memory_full_avg10: readings.memory_full_avg10.or(other.memory_full_avg10),
                    io_some_avg10: readings.io_some_avg10.or(other.io_some_avg10),
                    io_full_avg10: readings.io_full_avg10.or(other.io_full_avg10),
                    swap_total_bytes: None,
                    swap_free_bytes: None,
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
    fn disks_alone_never_lift_the_state() {
        let disks = Readings { io_some_avg10: Some(100.0), io_full_avg10: Some(100.0), ..NOTHING };
        let calm = Readings {
            memory_some_avg10: Some(limits::PRESSURE_MEMORY_SOME_DISKS_PERCENT - 0.1),
            memory_full_avg10: Some(0.0),
            mem_total_bytes: Some(100 << 20),
            mem_available_bytes: Some(40 << 20),
            swap_total_bytes: Some(100 << 20),
            swap_free_bytes: Some(95 << 20),
            ..disks
        };
        for readings in [disks, calm] {
            assert_eq!(Pressure::of(&readings), Pressure::Normal, "{readings:?}");
        }
        let of_memory = limits::PRESSURE_MEMORY_SOME_DISKS_PERCENT;
        for beside in [
            Readings { memory_some_avg10: Some(of_memory), ..calm },
            Readings { mem_available_bytes: Some(30 << 20), ..calm },
            Readings { swap_free_bytes: Some(90 << 20), ..calm },
        ] {
            let diagnosis = Diagnosis::of(&beside);
            assert_eq!(diagnosis.pressure, Pressure::Elevated, "{beside:?}");
            assert!(diagnosis.decided_by.unwrap().name().starts_with("io "), "{diagnosis}");
        }
    }

    #[test]
    fn a_diagnosis_names_the_reading_that_has_gone_farthest() {
        let readings = Readings {
            memory_some_avg10: Some(31.0),
            memory_full_avg10: Some(29.0),
            io_some_avg10: Some(100.0),
            ..NOTHING
        };
        // Two rows are critical; "full" is nearer to the next state. The disk raises it further.
        assert_eq!(Diagnosis::of(&readings).to_string(), "survival (io some avg10 100 %)");
        let without_disk = Readings { io_some_avg10: None, ..readings };
        assert_eq!(Diagnosis::of(&without_disk).to_string(), "critical (memory full avg10 29 %)");
        let calm = Readings { memory_some_avg10: Some(1.0), ..NOTHING };
        assert_eq!(Diagnosis::of(&calm).to_string(), "normal (memory some avg10 1 %)");
        assert_eq!(Diagnosis::of(&NOTHING), Diagnosis::default());
    }

    #[test]
    fn a_state_keeps_the_reading_that_brought_it_about() {
        let mut gauge = Gauge::default();
        gauge.observe(&reading(0, 12.0));
        gauge.observe(&reading(1, 6.0)); // Equally bad, for another reason.
        assert_eq!(gauge.diagnosis().to_string(), "elevated (memory some avg10 12 %)");
        for _ in 0..limits::PRESSURE_CALM_SAMPLES {
            gauge.observe(&reading(4, 50.0));
        }
        assert_eq!(gauge.diagnosis().to_string(), "normal (memory used of the machine 50 %)");
    }

    #[test]
    fn disks_are_busy_at_once_and_calm_after_calm_samples() {
        let mut gauge = Gauge::default();
        let told = |gauge: &Gauge| gauge.diagnosis().busy_disks.map(|reading| reading.to_string());
        let threshold = limits::PRESSURE_IO_SOME_PERCENT[0];
        gauge.observe(&reading(2, threshold - 0.1));
        assert_eq!(told(&gauge), None);
        gauge.observe(&reading(2, threshold));
        assert_eq!(told(&gauge).unwrap(), "io some avg10 80 %");
        gauge.observe(&reading(2, 100.0)); // The reading that began it stays.
        for sample in 1..=limits::PRESSURE_CALM_SAMPLES {
            assert_eq!(told(&gauge).unwrap(), "io some avg10 80 %", "{sample}");
            // A change of memory leaves the disks alone.
            let pressure = gauge.observe(&reading(0, if sample == 1 { 12.0 } else { 0.0 }));
            assert_eq!(pressure, Pressure::Elevated, "{sample}");
        }
        assert_eq!(told(&gauge), None);
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
        // Without PSI the remaining rows decide.
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
        // After one bad sample the calm begins anew.
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
