//! Statistics of many measurements.

/// The value below which the share `q` of the values lies, by linear interpolation. `None` without
/// values.
pub(super) fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    #[expect(clippy::cast_precision_loss, reason = "a few thousand values")]
    let position = q.clamp(0.0, 1.0) * last as f64;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the last index"
    )]
    let below = position.floor() as usize;
    let (low, high) = (sorted[below], sorted[last.min(below + 1)]);
    Some(low + (high - low) * position.fract())
}

/// Measurements of two programs by turns: values with the same index were taken at the same time.
#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct Pairs {
    pub(super) ours: Vec<f64>,
    pub(super) theirs: Vec<f64>,
}

impl Pairs {
    pub(super) fn push(&mut self, ours: f64, theirs: f64) {
        self.ours.push(ours);
        self.theirs.push(theirs);
    }

    /// Their values divided by ours, pair by pair: a short slowdown of the machine affects both.
    pub(super) fn theirs_over_ours(&self) -> Vec<f64> {
        let pairs = self.ours.iter().zip(&self.theirs);
        pairs.map(|(ours, theirs)| theirs / ours).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_between_its_neighbours() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&values, 0.0), Some(1.0));
        assert_eq!(quantile(&values, 0.5), Some(2.5));
        assert_eq!(quantile(&values, 1.0), Some(4.0));
        assert_eq!(quantile(&[7.0], 0.95), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
