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
    /// The progress as a percentage from 0 to 100, if the total is known.
    pub fn percentage(&self) -> Option<f64> {
        let total = self.total.filter(|&total| total > 0.0)?;
        let percentage = 100.0 * (self.progress / total); // The product might be infinite.
        percentage.is_finite().then(|| percentage.clamp(0.0, 100.0))
    }
}

impl std::hash::Hash for Progress {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.progress.to_bits().hash(hasher);
        self.total.map(f64::to_bits).hash(hasher);
        self.report_count.hash(hasher);
    }
}
