//! The progress of a producer: its reports, and the one number that subscribers see.

/// An amount of progress, in one of two forms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Measure {
    /// No number. The report counts as one step.
    #[default]
    None,
    /// A percentage from 0 to 100.
    Percentage(f64),
    /// An amount in units of the producer's own.
    Absolute {
        /// The amount that is done.
        current: f64,
        /// The total amount, if known.
        total: Option<f64>,
    },
}

/// A progress report of a producer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProgressReport<'a> {
    /// The progress in numbers.
    pub measure: Measure,
    /// The progress in words; cut after `limits::PROGRESS_MESSAGE_BYTES_MAX` bytes.
    pub message: Option<&'a str>,
    /// A context in JSON, of at most `limits::PROGRESS_CONTEXT_BYTES_MAX` bytes. A longer
    /// one is left out.
    pub context: Option<&'a str>,
}

/// The progress of a producer.
///
/// ```
/// use streamdoor::Progress;
///
/// let progress = Progress { progress: 3.0, total: Some(12.0), report_count: 1 };
/// assert_eq!(progress.percentage(), Some(25.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// The amount that is done. It never goes backwards.
    pub progress: f64,
    /// The total amount, if known.
    pub total: Option<f64>,
    /// Number of reports so far.
    pub report_count: u64,
}

impl Progress {
    /// The progress as a percentage from 0 to 100 with two decimals, if the total is known. Only
    /// the whole is 100.
    pub fn percentage(&self) -> Option<f64> {
        let total = self.total.filter(|&total| total > 0.0)?;
        let percentage = 100.0 * (self.progress / total); // The product might be infinite.
        let bound = if self.progress < total { 99.99 } else { 100.0 };
        let rounded = (percentage * 100.0).round() / 100.0;
        percentage.is_finite().then(|| rounded.clamp(0.0, bound))
    }
}

impl std::hash::Hash for Progress {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.progress.to_bits().hash(hasher);
        self.total.map(f64::to_bits).hash(hasher);
        self.report_count.hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_has_two_decimals_and_is_100_at_the_end_only() {
        let percentage = |progress, total| {
            Progress { progress, total: Some(total), report_count: 1 }.percentage()
        };
        for (progress, total, expected) in [
            (7.0, 50.0, 14.0),
            (1.0, 3.0, 33.33),
            (2.0, 3.0, 66.67),
            (99_999.0, 100_000.0, 99.99),
            (0.1, 100_000.0, 0.0),
            (5.0, 5.0, 100.0),
            (6.0, 5.0, 100.0),
            (f64::MAX, f64::MAX, 100.0),
        ] {
            assert_eq!(percentage(progress, total), Some(expected), "{progress} of {total}");
        }
        assert_eq!(percentage(1.0, 0.0), None);
        assert_eq!(percentage(f64::MAX, f64::MIN_POSITIVE), None);
    }
}
