//! Median and spread: robust against the sample that met a timer interrupt.

/// The middle of the samples and how far they typically lie from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    /// Median absolute deviation from the median.
    pub(crate) spread: f64,
}

impl Summary {
    /// # Panics
    ///
    /// If there are no samples: a figure without samples is our own bug.
    pub(crate) fn of(samples: &[f64]) -> Self {
        let middle = median(samples);
        let distances: Vec<f64> = samples.iter().map(|sample| (sample - middle).abs()).collect();
        Self { median: middle, spread: median(&distances) }
    }
}

fn median(samples: &[f64]) -> f64 {
    assert!(!samples.is_empty(), "a figure has at least one sample");
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_middle_ones() {
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[9.0, 1.0, 3.0]), 3.0);
    }

    #[test]
    fn one_wild_sample_moves_neither_median_nor_spread_far() {
        let summary = Summary::of(&[10.0, 11.0, 9.0, 10.0, 1000.0]);
        assert_eq!(summary, Summary { median: 10.0, spread: 1.0 });
    }
}
