//! Campaigns of kills: their counts, their seed, and what all followers have seen.
//!
//! Processes and times are real. A seed repeats the choices of a campaign, and not each moment.

use std::sync::Mutex;
use std::time::Duration;

use streamdoor::base::{Instant, Random};
use streamdoor::reactor::Clock;

use crate::follower::Transcript;

/// The longest wait for anything. Only something that never comes is as late.
pub const LIMIT: Duration = Duration::from_secs(300);

/// A number of the environment.
pub fn count(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect(name))
}

/// The choices of a campaign, which follow from `SEED`, or 1.
pub fn random(campaign: u64) -> Random {
    Random::new(count("SEED", 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ campaign)
}

/// Waits for a random time.
pub fn pause(random: &mut Random, low_ms: u64, high_ms: u64) {
    std::thread::sleep(Duration::from_millis(random.between(low_ms, high_ms)));
}

/// Asks again until there is an answer.
///
/// # Panics
/// If there is none within [`LIMIT`].
pub fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Clock::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(!is_over(begun), "{what}: it takes longer than {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// True if [`LIMIT`] has passed.
pub fn is_over(begun: Instant) -> bool {
    Clock::now().since(begun) > LIMIT
}

/// Everything that the followers of a campaign have seen.
#[derive(Default)]
pub struct Tally(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    executions: u64,
    followers: u64,
    chunks: u64,
    gaps: u64,
    completed: u64,
    failed: u64,
    wrong: Vec<String>,
}

impl Tally {
    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Notes what one follower has seen: its end has this state.
    pub fn take(&self, who: &str, transcript: &Transcript, expected: &[&str]) {
        let mut counts = self.counts();
        counts.followers += 1;
        counts.chunks += transcript.chunks;
        counts.gaps += transcript.gaps.len() as u64;
        let mut wrong = |text: &str| counts.wrong.push(format!("{who}: {text}"));
        transcript.wrong.iter().take(3).for_each(|text| wrong(text));
        transcript.gaps.iter().take(3).for_each(|gap| wrong(&format!("a gap: {gap}")));
        let state = match &*transcript.ends {
            [end] => end["state"].as_str().unwrap_or_default(),
            ends => {
                wrong(&format!("{} ends: {ends:?}", ends.len()));
                return;
            }
        };
        if !expected.contains(&state) {
            wrong(&format!("{expected:?} is expected, not {}", transcript.ends[0]));
        }
        match state {
            "completed" => counts.completed += 1,
            _ => counts.failed += 1,
        }
    }

    /// Notes an execution that all its followers have left.
    pub fn note_execution(&self) {
        self.counts().executions += 1;
    }

    /// Notes something that must not be.
    pub fn note_wrong(&self, text: String) {
        self.counts().wrong.push(text);
    }

    /// Prints one line of results.
    ///
    /// # Panics
    /// If something was wrong.
    pub fn finish(&self, campaign: &str) {
        let counts = self.counts();
        let Counts { executions, followers, chunks, gaps, completed, failed, wrong } = &*counts;
        println!(
            "{campaign}; {executions} executions, {followers} followers, {chunks} chunks: {} \
             wrong, {gaps} gaps, {completed} ends completed, {failed} failed; seed {}",
            wrong.len(),
            count("SEED", 1),
        );
        let shown = wrong[..wrong.len().min(20)].join("\n");
        assert!(wrong.is_empty(), "SEED={}: {} findings:\n{shown}", count("SEED", 1), wrong.len());
    }
}
