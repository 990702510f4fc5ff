//! The numbers of progress, which rise with each notification (A27, B27).

/// The smallest step, relative to the number, that every reader of doubles can see.
const STEP: f64 = 1e-9;

/// Numbers that rise strictly, as close as possible to the requested ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rising {
    last: Option<f64>,
}

impl Rising {
    /// Returns a sequence without a number so far.
    pub fn new() -> Rising {
        Rising::default()
    }

    /// Returns the number to report for `wanted`.
    pub fn next(&mut self, wanted: f64) -> f64 {
        let told = match self.last {
            Some(last) if wanted > last && wanted.is_finite() => wanted,
            Some(last) => {
                let raised = last + last.abs().max(1.0) * STEP;
                if raised > last { raised.min(f64::MAX) } else { last.next_up() }
            }
            None if wanted.is_finite() => wanted,
            None => 0.0,
        };
        self.last = Some(told);
        told
    }

    /// The last number that was reported.
    pub fn last(&self) -> Option<f64> {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Random;

    #[test]
    fn each_number_is_larger_than_the_one_before_whatever_is_wanted() {
        let mut random = Random::new(1);
        for scale in [1e-300, 1e-9, 1.0, 1e9, 1e18] {
            let mut rising = Rising::new();
            let mut last = f64::NEG_INFINITY;
            for _ in 0..10_000 {
                let wanted = match random.below(8) {
                    0 => f64::NAN,
                    1 => f64::INFINITY,
                    2 => f64::NEG_INFINITY,
                    _ => (random.below(200) as f64 - 100.0) * scale,
                };
                let told = rising.next(wanted);
                assert!(told > last && told.is_finite(), "{told} behind {last}, scale {scale}");
                let read: f64 = serde_json::to_string(&told).unwrap().parse().unwrap();
                assert_eq!(read, told);
                last = told;
            }
        }
    }

    #[test]
    fn what_rises_by_itself_is_told_as_it_is() {
        let mut rising = Rising::new();
        for number in [0.0, 0.5, 1.0, 2.0, 50.0, 100.0] {
            assert_eq!(rising.next(number), number);
        }
        assert_eq!(rising.next(100.0), 100.0 + 100.0 * STEP);
        assert_eq!(rising.next(101.0), 101.0);
    }
}
