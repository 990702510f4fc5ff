//! The progress of a producer: four forms of reports on one axis that never runs backwards.
//!
//! A producer reports a percentage, an amount (of a total, if that is known), words, or a context
//! in a format of its own. If it reports nothing, its progress is derived from what it publishes. A
//! subscriber sees one number. The rules, from the architecture:
//!
//! - The first report fixes the axis. Later ones of another form are converted where that can be
//!   done, else they count as the smallest step.
//! - Words and contexts alone are the smallest step, never past the total.
//! - A report that would go backwards keeps the old number, and is counted.
//! - Reports that are numbers only are conflated to one per [`limits::PROGRESS_INTERVAL`]. Words
//!   and contexts are reported at once.

use crate::base::Instant;
use crate::base::planted::{Planted, planted};
use crate::limits;
use crate::stream::{Measure, Progress, ProgressReport, Totals};

/// The source of an execution's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProgressSource {
    /// Reports of the tool only.
    #[default]
    Tool,
    /// The number of published chunks of those expected, until the tool reports something itself.
    Chunks,
    /// The number of published bytes of those expected, until the tool reports something itself.
    Bytes,
}

/// The form of the first report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Axis {
    Percentage,
    Absolute,
    /// No number: each report is one step.
    Steps,
}

/// The progress of one execution.
#[derive(Debug, Default)]
struct Tracker {
    axis: Option<Axis>,
    progress: f64,
    total: Option<f64>,
    report_count: u64,
    /// The message of the last report.
    message: String,
    context: String,
    /// True if the tool itself has reported something.
    by_tool: bool,
}

/// The news in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportNews {
    /// Nothing new.
    Nothing,
    /// A new number.
    Number,
    /// Words, which are reported at once.
    Words,
}

/// One part in 2^40. No total has units this small.
const SMALLEST_STEP: f64 = 1.0 / (1u64 << 40) as f64;

const _: () = {
    assert!(SMALLEST_STEP > f64::EPSILON); // A step of a whole is a different number.
    assert!(!limits::PROGRESS_INTERVAL.is_zero());
    // Silence is noticed later than a report that waits for its interval.
    assert!(limits::PROGRESS_INTERVAL.as_nanos() < limits::TIMEOUT_INACTIVITY.as_nanos());
};

impl Tracker {
    /// The newest progress, if there is any.
    fn progress(&self) -> Option<Progress> {
        let Tracker { progress, total, report_count, .. } = *self;
        assert!((report_count > 0) == self.axis.is_some()); // The first report fixes the axis.
        (report_count > 0).then_some(Progress { progress, total, report_count })
    }

    /// The message and the context of the last report.
    fn texts(&self) -> (Option<&str>, Option<&str>) {
        (shown_text(&self.message), shown_text(&self.context))
    }

    /// Takes a report. Returns the news in it, and true if its number would have gone backwards.
    fn take(&mut self, report: &ProgressReport) -> (ReportNews, bool) {
        let measure = sound(report.measure);
        let context = report.context.filter(|c| c.len() <= limits::PROGRESS_CONTEXT_BYTES_MAX);
        let has_words = report.message.is_some() || context.is_some();
        if measure == Measure::None && !has_words {
            return (ReportNews::Nothing, false);
        }
        let first = self.axis.is_none();
        let wanted = self.place(measure);
        let is_converted = matches!(
            (self.axis, measure),
            (Some(Axis::Percentage), Measure::Absolute { .. })
                | (Some(Axis::Absolute), Measure::Percentage(_))
        );
        let is_trusted = planted(Planted::ProgressBackwards) && is_converted;
        let is_backward = !is_trusted && wanted.is_some_and(|wanted| wanted < self.progress);
        let next = match wanted {
            Some(_) if is_backward => self.progress,
            Some(wanted) if first || is_trusted || wanted > self.progress || !has_words => wanted,
            _ => self.next_step(),
        };
        let next = next.min(self.total.unwrap_or(f64::MAX));
        assert!(next.is_finite());
        assert!(next >= self.progress || is_trusted);
        if !first && !has_words && next == self.progress {
            return (ReportNews::Nothing, is_backward);
        }
        self.progress = next;
        self.report_count += 1;
        self.message.clear();
        if let Some(message) = report.message {
            let end = message.floor_char_boundary(limits::PROGRESS_MESSAGE_BYTES_MAX);
            self.message.push_str(&message[..end]);
        }
        self.context.clear();
        self.context.push_str(context.unwrap_or(""));
        // The control page has room for both.
        assert!(self.message.len() <= limits::PROGRESS_MESSAGE_BYTES_MAX);
        assert!(self.context.len() <= limits::PROGRESS_CONTEXT_BYTES_MAX);
        (if has_words { ReportNews::Words } else { ReportNews::Number }, is_backward)
    }

    /// Returns the place of a measure on the axis, which the first one fixes; `None` for one step
    /// further.
    fn place(&mut self, measure: Measure) -> Option<f64> {
        let axis = *self.axis.get_or_insert(match measure {
            Measure::None => Axis::Steps,
            Measure::Percentage(_) => Axis::Percentage,
            Measure::Absolute { .. } => Axis::Absolute,
        });
        match (axis, measure) {
            (Axis::Steps, _) | (_, Measure::None) => None,
            (Axis::Percentage, Measure::Percentage(percentage)) => {
                self.total = Some(100.0);
                Some(percentage)
            }
            (Axis::Percentage, Measure::Absolute { current, total }) => {
                total.map(|total| (100.0 * current / total).min(100.0))
            }
            (Axis::Absolute, Measure::Absolute { current, total }) => {
                // The total includes at least what is done already.
                self.total = total.map(|total| total.max(self.progress)).or(self.total);
                Some(current)
            }
            (Axis::Absolute, Measure::Percentage(percentage)) => {
                self.total.map(|total| total * percentage / 100.0)
            }
        }
    }

    fn next_step(&self) -> f64 {
        if self.axis == Some(Axis::Steps) {
            return self.progress + 1.0;
        }
        let scale = self.total.unwrap_or(self.progress).max(1.0);
        let next = (self.progress + scale * SMALLEST_STEP).max(self.progress.next_up());
        assert!(next > self.progress);
        next
    }
}

/// Returns the measure with its numbers in range, or `Measure::None` for one that is not a number.
fn sound(measure: Measure) -> Measure {
    let is_amount = |number: f64| number.is_finite() && number >= 0.0;
    match measure {
        Measure::Percentage(percentage) if is_amount(percentage) => {
            Measure::Percentage(percentage.min(100.0))
        }
        Measure::Absolute { current, total } if is_amount(current) => {
            let total = total.filter(|&total| is_amount(total) && total > 0.0);
            Measure::Absolute { current, total }
        }
        _ => Measure::None,
    }
}

/// The reports of one execution: those of its tool, or those that its chunks show.
#[derive(Debug)]
pub(super) struct Reports {
    source: ProgressSource,
    bytes_expected: Option<u64>,
    chunks_expected: Option<u64>,
    tracker: Tracker,
    /// The time of the last report to the subscribers.
    reported_at: Option<Instant>,
    /// Number of the report that local subscribers should have been given. Those below have one
    /// pending.
    to_report: u64,
}

/// The result of an attempt to report progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Reported {
    /// No report goes out now.
    Nothing,
    /// The subscribers have a report pending.
    ToSubscribers,
}

impl Reports {
    pub fn new(source: ProgressSource, bytes_expected: Option<u64>) -> Reports {
        Reports {
            source,
            bytes_expected,
            chunks_expected: None,
            tracker: Tracker::default(),
            reported_at: None,
            to_report: 0,
        }
    }

    /// Notes how many chunks the tool will publish.
    pub fn expect_chunks(&mut self, count: u64) {
        self.chunks_expected = Some(count);
    }

    /// Number of chunks that the tool will publish, if it has said so.
    pub fn chunks_expected(&self) -> Option<u64> {
        self.chunks_expected
    }

    /// The newest progress, if any was reported or derived.
    pub fn newest(&self) -> Option<Progress> {
        self.tracker.progress()
    }

    /// The message and the context of the last report.
    pub fn texts(&self) -> (Option<&str>, Option<&str>) {
        self.tracker.texts()
    }

    /// Number of the report that local subscribers should have been given.
    #[inline]
    pub fn to_report(&self) -> u64 {
        self.to_report
    }

    /// True if progress is derived from the chunks, because the tool reports nothing itself.
    pub fn derives(&self) -> bool {
        self.source != ProgressSource::Tool && !self.tracker.by_tool
    }

    /// Takes a report of the tool. Returns the news in it, and true if its number would have gone
    /// backwards.
    pub fn take(&mut self, report: &ProgressReport) -> (ReportNews, bool) {
        self.tracker.by_tool = true;
        assert!(!self.derives());
        self.tracker.take(report)
    }

    /// Updates the progress from the totals of all published chunks, unless the tool reports its
    /// own.
    pub fn derive(&mut self, published: Totals) {
        if !self.tracker.by_tool {
            let measure = self.derived(published);
            self.tracker.take(&ProgressReport { measure, ..Default::default() });
        }
    }

    /// Returns the progress that the published chunks or bytes show.
    fn derived(&self, published: Totals) -> Measure {
        let whole = |number: u64| number as f64;
        match self.source {
            ProgressSource::Tool => Measure::None,
            ProgressSource::Chunks => Measure::Absolute {
                current: whole(published.chunks),
                total: self.chunks_expected.map(whole),
            },
            ProgressSource::Bytes => Measure::Absolute {
                current: whole(published.bytes),
                total: self.bytes_expected.map(whole),
            },
        }
    }

    /// The time at which the next number may be reported; `None` before the first one.
    pub fn next_due(&self) -> Option<Instant> {
        self.reported_at.map(|reported_at| reported_at + limits::PROGRESS_INTERVAL)
    }

    /// Marks the newest progress as one to be reported to all subscribers, and returns it. Returns
    /// `None` if they have it already.
    pub fn report(&mut self, now: Instant) -> Option<Progress> {
        self.reported_at = Some(now);
        let progress = self.newest()?;
        if self.to_report == progress.report_count {
            return None;
        }
        assert!(progress.report_count > self.to_report); // Reports are only ever added.
        self.to_report = progress.report_count;
        Some(progress)
    }

    /// Marks the last progress as one to be reported, and returns it.
    pub fn close(&mut self) -> Option<Progress> {
        let progress = self.newest();
        let report_count = progress.map_or(0, |progress| progress.report_count);
        assert!(self.to_report <= report_count); // Reports are only ever added.
        self.to_report = report_count;
        progress
    }
}

/// Returns a text unless it is empty.
fn shown_text(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absolute(current: f64, total: Option<f64>) -> ProgressReport<'static> {
        ProgressReport { measure: Measure::Absolute { current, total }, ..Default::default() }
    }

    #[test]
    fn a_percentage_is_told_only_where_it_means_something() {
        let told = |progress, total| Progress { progress, total, report_count: 1 }.percentage();
        assert_eq!(told(1.0, Some(4.0)), Some(25.0));
        assert_eq!(told(9.0, Some(4.0)), Some(100.0));
        assert_eq!(told(f64::MAX, Some(f64::MAX)), Some(100.0));
        for (progress, total) in [
            (1.0, None),
            (1.0, Some(0.0)),
            (1.0, Some(-1.0)),
            (1.0, Some(f64::NAN)),
            (f64::NAN, Some(1.0)),
            (f64::INFINITY, Some(f64::INFINITY)),
        ] {
            assert_eq!(told(progress, total), None, "{progress} of {total:?}");
        }
    }

    fn percentage(percentage: f64) -> ProgressReport<'static> {
        ProgressReport { measure: Measure::Percentage(percentage), ..Default::default() }
    }

    fn words(message: &str) -> ProgressReport<'_> {
        ProgressReport { message: Some(message), ..Default::default() }
    }

    fn after(reports: &[ProgressReport]) -> (f64, Option<f64>, u64) {
        let mut tracker = Tracker::default();
        for report in reports {
            let before = tracker.progress;
            tracker.take(report);
            assert!(tracker.progress >= before, "{report:?}");
            assert!(tracker.total.is_none_or(|total| tracker.progress <= total), "{report:?}");
        }
        (tracker.progress, tracker.total, tracker.report_count)
    }

    #[test]
    fn the_first_report_fixes_the_axis() {
        assert_eq!(after(&[percentage(25.0)]), (25.0, Some(100.0), 1));
        assert_eq!(after(&[percentage(25.0), absolute(3.0, Some(4.0))]), (75.0, Some(100.0), 2));
        assert_eq!(after(&[absolute(1.0, Some(4.0)), percentage(50.0)]), (2.0, Some(4.0), 2));
        assert_eq!(after(&[words("a"), percentage(50.0), words("b")]), (3.0, None, 3));
        assert_eq!(after(&[absolute(1.0, None), absolute(2.0, Some(9.0))]), (2.0, Some(9.0), 2));
    }

    #[test]
    fn words_are_the_smallest_step_and_never_pass_the_total() {
        let (progress, _, count) = after(&[percentage(50.0), words("a"), words("b")]);
        assert!(progress > 50.0 && progress < 50.001 && count == 3, "{progress}");
        assert_eq!(after(&[absolute(4.0, Some(4.0)), words("done")]), (4.0, Some(4.0), 2));
        let (progress, ..) = after(&[absolute(1e18, None), words("a")]);
        assert!(progress > 1e18);
        // Words with an unchanged number are news, and so is the number.
        let again = ProgressReport { message: Some("still"), ..absolute(2.0, Some(4.0)) };
        let (progress, ..) = after(&[absolute(2.0, Some(4.0)), again]);
        assert!(progress > 2.0);
    }

    #[test]
    fn words_behind_the_largest_number_leave_it_a_number() {
        let largest = absolute(f64::MAX, None);
        assert_eq!(after(&[largest, words("a"), words("b")]), (f64::MAX, None, 3));
    }

    #[test]
    fn what_would_go_backwards_keeps_the_number_and_is_said() {
        let mut tracker = Tracker::default();
        assert_eq!(tracker.take(&absolute(5.0, Some(10.0))), (ReportNews::Number, false));
        assert_eq!(tracker.take(&absolute(4.0, Some(10.0))), (ReportNews::Nothing, true));
        assert_eq!(tracker.take(&absolute(5.0, Some(10.0))), (ReportNews::Nothing, false));
        let back = ProgressReport { message: Some("again"), ..percentage(10.0) };
        assert_eq!(tracker.take(&back), (ReportNews::Words, true));
        let Progress { progress, total, report_count } = tracker.progress().unwrap();
        assert_eq!((progress, total, report_count), (5.0, Some(10.0), 2));
        assert_eq!(tracker.texts(), (Some("again"), None));
    }

    #[test]
    fn what_is_no_number_is_no_number() {
        let mut tracker = Tracker::default();
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            assert_eq!(tracker.take(&percentage(bad)), (ReportNews::Nothing, false));
            assert_eq!(tracker.take(&absolute(bad, None)), (ReportNews::Nothing, false));
        }
        assert_eq!(tracker.progress(), None);
        tracker.take(&absolute(1.0, Some(f64::NAN)));
        tracker.take(&absolute(2.0, Some(-3.0)));
        tracker.take(&percentage(1e300));
        assert_eq!(after(&[percentage(250.0)]), (100.0, Some(100.0), 1));
        assert!(tracker.progress > 2.0 && tracker.total.is_none());
        // A total that shrinks below what is done was wrong.
        assert_eq!(after(&[absolute(5.0, Some(9.0)), absolute(6.0, Some(3.0))]).1, Some(5.0));
    }

    #[test]
    fn long_texts_are_cut_and_long_contexts_left_out() {
        let mut tracker = Tracker::default();
        let message = "ä".repeat(limits::PROGRESS_MESSAGE_BYTES_MAX);
        tracker.take(&words(&message));
        let length = tracker.texts().0.unwrap().len();
        assert!(length <= limits::PROGRESS_MESSAGE_BYTES_MAX && length % 2 == 0);
        let context = "x".repeat(limits::PROGRESS_CONTEXT_BYTES_MAX + 1);
        let report = ProgressReport { context: Some(&context), ..Default::default() };
        assert_eq!(tracker.take(&report), (ReportNews::Nothing, false));
        let report = ProgressReport { context: Some("{}"), ..percentage(1.0) };
        assert_eq!(tracker.take(&report), (ReportNews::Words, false));
        assert_eq!(tracker.texts(), (None, Some("{}")));
    }
}
