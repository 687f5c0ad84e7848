//! Axes: their marks, the lines through a chart at these, and a scale of ratios.

use maud::{Markup, html};

use super::pixel;

/// A mark on an axis.
#[derive(Clone, Debug)]
pub struct AxisTick {
    /// The place, from 0 to 1.
    pub at: f64,
    /// The value there.
    pub label: String,
}

/// The vertical lines of a horizontal axis, from `top` to `bottom`, with their labels at
/// `baseline`.
pub(super) fn vertical_lines(
    ticks: &[AxisTick],
    place: impl Fn(f64) -> f64,
    [top, bottom]: [f64; 2],
    baseline: f64,
) -> Markup {
    html! {
        @for AxisTick { at, label } in ticks {
            @let x = pixel(place(*at));
            path.c-grid d={ "M" (x) " " (top) "V" (bottom) } {}
            text.c-muted.c-middle x=(x) y=(baseline) { (label) }
        }
    }
}

/// The most marks of a scale, so that their labels stay apart.
const MOST_TICKS: usize = 10;
/// The values beyond which a scale does not reach. They are drawn at its ends.
const ENDS: (f64, f64) = (1e-12, 1e12);

/// The most intervals between the marks of a linear scale.
const MOST_INTERVALS: f64 = 8.0;

/// A linear scale from 0, with marks at round numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinearScale {
    end: f64,
    step: f64,
}

impl LinearScale {
    /// The scale from 0 to `end`, which is positive.
    #[must_use]
    pub fn up_to(end: f64) -> Self {
        let end = match end.is_finite() && end > 0.0 {
            true => end.clamp(ENDS.0, ENDS.1),
            false => 1.0,
        };
        let least = end / MOST_INTERVALS;
        // Rounding must not leave out the number itself.
        let is_enough = |round: &f64| *round >= least * (1.0 - 1e-9);
        let step = round_numbers(least.log10().floor()).find(is_enough);
        Self {
            end,
            step: step.unwrap_or(end),
        }
    }

    /// The same scale with a distance between marks of at least `least`, such as 1 for things that
    /// are counted.
    #[must_use]
    pub fn in_steps_of(self, least: f64) -> Self {
        Self {
            step: self.step.max(least),
            ..self
        }
    }

    /// The place of a value, from 0 to 1.
    #[must_use]
    pub fn share(&self, value: f64) -> f64 {
        (value / self.end).clamp(0.0, 1.0)
    }

    /// The round numbers from 0.
    pub fn marks(&self) -> impl Iterator<Item = f64> + use<> {
        let Self { end, step } = *self;
        let numbers = std::iter::successors(Some(0_u32), |number| number.checked_add(1));
        let values = numbers.map(move |number| f64::from(number) * step);
        values.take_while(move |value| *value <= end * (1.0 + 1e-9))
    }

    /// The marks with their labels.
    pub fn ticks(&self, label: impl Fn(f64) -> String) -> Vec<AxisTick> {
        let tick = |value| AxisTick {
            at: self.share(value),
            label: label(value),
        };
        self.marks().map(tick).collect()
    }
}

/// A logarithmic scale: equal ratios have equal distances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogScale {
    low: f64,
    high: f64,
}

impl LogScale {
    /// The scale with 1 and all of these values in it. Values that have no logarithm are left out.
    pub fn over(values: impl IntoIterator<Item = f64>) -> Self {
        let values = values
            .into_iter()
            .filter(|value| value.is_finite() && *value > 0.0)
            .map(|value| value.clamp(ENDS.0, ENDS.1));
        let (least, most) = values.fold((1.0_f64, 1.0_f64), |(least, most), value| {
            (least.min(value), most.max(value))
        });
        // The next round numbers outside, or half and double.
        let low = round_numbers(least.log10().floor())
            .rev()
            .find(|round| *round < least);
        let high = round_numbers(most.log10().floor()).find(|round| *round > most);
        Self {
            low: low.unwrap_or(least / 2.0),
            high: high.unwrap_or(most * 2.0),
        }
    }

    /// The place of a value, from 0 to 1.
    #[must_use]
    pub fn share(&self, value: f64) -> f64 {
        let share = (value / self.low).log10() / (self.high / self.low).log10();
        match share.is_nan() {
            true => 0.0,
            false => share.clamp(0.0, 1.0),
        }
    }

    /// The marks at round numbers.
    pub fn ticks(&self, label: impl Fn(f64) -> String) -> Vec<AxisTick> {
        let decades =
            std::iter::successors(Some(self.low.log10().floor()), |decade| Some(decade + 1.0));
        let all: Vec<f64> = decades
            .take_while(|decade| 10_f64.powf(*decade) <= self.high)
            .flat_map(|decade| round_numbers(decade).skip(1).take(3))
            .filter(|round| (self.low..=self.high).contains(round))
            .collect();
        let is_decade = |value: &f64| value.log10().fract().abs() < 1e-9;
        let kept: Vec<f64> = match all.len() <= MOST_TICKS {
            true => all,
            false => all.into_iter().filter(is_decade).collect(),
        };
        let step = kept.len().div_ceil(MOST_TICKS).max(1);
        let kept = kept.into_iter().step_by(step);
        kept.map(|value| AxisTick {
            at: self.share(value),
            label: label(value),
        })
        .collect()
    }
}

/// The numbers 1, 2 and 5 of a decade, between those around it.
fn round_numbers(decade: f64) -> impl DoubleEndedIterator<Item = f64> {
    // Division keeps 0.1 and 0.2 what they are called.
    [0.5_f64, 1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(move |digit| match decade < 0.0 {
            true => digit / 10_f64.powf(-decade),
            false => digit * 10_f64.powf(decade),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: LogScale) -> Vec<String> {
        let ticks = scale.ticks(|value| value.to_string());
        ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn a_scale_has_round_numbers_around_its_values() {
        assert_eq!(labels(LogScale::over([])), ["0.5", "1", "2"]);
        assert_eq!(labels(LogScale::over([0.76, 4.9])), ["0.5", "1", "2", "5"]);
        assert_eq!(
            labels(LogScale::over([0.1, 0.12])),
            ["0.05", "0.1", "0.2", "0.5", "1", "2"]
        );
        let wide = labels(LogScale::over([0.02, 219.0, 1000.0]));
        assert_eq!(wide, ["0.01", "0.1", "1", "10", "100", "1000"]);
    }

    #[test]
    fn a_linear_scale_has_marks_at_round_numbers() {
        let marks = |end: f64| LinearScale::up_to(end).marks().collect::<Vec<_>>();
        assert_eq!(marks(5.0), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(marks(281.6), [0.0, 50.0, 100.0, 150.0, 200.0, 250.0]);
        assert_eq!(marks(0.9), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8]);
        let whole = LinearScale::up_to(2.2).in_steps_of(1.0);
        assert_eq!(whole.marks().collect::<Vec<_>>(), [0.0, 1.0, 2.0]);
        for end in [0.0, -1.0, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE, 3e11] {
            let scale = LinearScale::up_to(end);
            assert!((2..=9).contains(&scale.marks().count()), "{end}: {scale:?}");
        }
    }

    #[test]
    fn equal_ratios_have_equal_distances() {
        let scale = LogScale::over([0.3, 30.0]);
        let [one, ten] = [1.0, 10.0].map(|value| scale.share(value));
        let [two, twenty] = [2.0, 20.0].map(|value| scale.share(value));
        assert!((ten - one - (twenty - two)).abs() < 1e-9);
        assert!(0.0 < scale.share(0.3) && scale.share(30.0) < 1.0);
    }

    #[test]
    fn values_without_a_logarithm_stay_within_the_scale() {
        for odd in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let scale = LogScale::over([odd, 2.0]);
            assert_eq!(scale, LogScale::over([2.0]));
            assert!((0.0..=1.0).contains(&scale.share(odd)), "{odd}");
        }
        let least = LogScale::over([f64::MIN_POSITIVE, f64::MAX]);
        assert!(least.ticks(|value| value.to_string()).len() <= MOST_TICKS);
    }
}
