//! The colours of states, from the set of Okabe and Ito, which people with any kind of colour
//! blindness can tell apart.
//!
//! Colour is never the only sign: each state has a letter ([`AddressState::letter`]) and in
//! pictures a pattern.

use std::fmt;

use crate::state::AddressState;

/// A colour. Its `Display` is that of CSS: `#0072b2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rgb(
    /// Red.
    pub u8,
    /// Green.
    pub u8,
    /// Blue.
    pub u8,
);

impl fmt::Display for Rgb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(red, green, blue) = self;
        write!(f, "#{red:02x}{green:02x}{blue:02x}")
    }
}

/// The colours of pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Palette {
    /// On white.
    Light,
    /// On a dark page.
    Dark,
}

impl Palette {
    /// The colour of the page.
    #[must_use]
    pub const fn page(self) -> Rgb {
        match self {
            Self::Light => Rgb(0xff, 0xff, 0xff),
            Self::Dark => Rgb(0x14, 0x17, 0x1a),
        }
    }

    /// The colour of texts and outlines.
    #[must_use]
    pub const fn ink(self) -> Rgb {
        match self {
            Self::Light => Rgb(0x1a, 0x1a, 0x1a),
            Self::Dark => Rgb(0xec, 0xec, 0xec),
        }
    }

    /// The colour of the mark of a fault.
    #[must_use]
    pub const fn error(self) -> Rgb {
        match self {
            Self::Light => Rgb(0xb3, 0x26, 0x1e),
            Self::Dark => Rgb(0xff, 0x8a, 0x7a),
        }
    }

    /// The colour of the mark of a warning.
    #[must_use]
    pub const fn warning(self) -> Rgb {
        match self {
            Self::Light => Rgb(0x7a, 0x4b, 0x00),
            Self::Dark => Rgb(0xf2, 0xc2, 0x65),
        }
    }

    /// The colour of a state.
    #[must_use]
    pub const fn fill(self, state: AddressState) -> Rgb {
        match (state, self) {
            (AddressState::Duplicate, _) => Rgb(0xd5, 0x5e, 0x00),
            (AddressState::Outside, _) => Rgb(0xcc, 0x79, 0xa7),
            (AddressState::Orphaned, _) => Rgb(0xe6, 0x9f, 0x00),
            (AddressState::Draining, _) => Rgb(0xf0, 0xe4, 0x42),
            (AddressState::Pod, _) => Rgb(0x00, 0x72, 0xb2),
            (AddressState::Service, _) => Rgb(0x56, 0xb4, 0xe9),
            (AddressState::Node, _) => Rgb(0x00, 0x9e, 0x73),
            (AddressState::Withheld, Self::Light) => Rgb(0xb8, 0xb8, 0xb8),
            (AddressState::Withheld, Self::Dark) => Rgb(0xcc, 0xcc, 0xcc),
            (AddressState::Reserved, Self::Light) => Rgb(0x68, 0x68, 0x68),
            (AddressState::Reserved, Self::Dark) => Rgb(0x64, 0x64, 0x64),
            (AddressState::Gateway, Self::Light) => Rgb(0x00, 0x00, 0x00),
            (AddressState::Gateway, Self::Dark) => Rgb(0xff, 0xff, 0xff),
            (AddressState::Free, Self::Light) => Rgb(0xc6, 0xd7, 0xe6),
            (AddressState::Free, Self::Dark) => Rgb(0x33, 0x3d, 0x46),
            (AddressState::Unassigned, Self::Light) => Rgb(0xfa, 0xfa, 0xfa),
            (AddressState::Unassigned, Self::Dark) => Rgb(0x1d, 0x20, 0x24),
        }
    }

    /// Background and text of a state, as numbers of the 256 colours of terminals; `None` where the
    /// terminal's own colours are meant.
    #[must_use]
    pub const fn ansi256(state: AddressState) -> Option<(u8, u8)> {
        match state {
            AddressState::Duplicate => Some((166, 16)),
            AddressState::Outside => Some((175, 16)),
            AddressState::Orphaned => Some((214, 16)),
            AddressState::Draining => Some((227, 16)),
            AddressState::Pod => Some((25, 231)),
            AddressState::Service => Some((117, 16)),
            AddressState::Node => Some((36, 16)),
            AddressState::Withheld => Some((252, 16)),
            AddressState::Reserved => Some((240, 231)),
            AddressState::Gateway => Some((231, 16)),
            AddressState::Free | AddressState::Unassigned => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linear RGB as each kind of vision has it: Machado, Oliveira and Fernandes (2009), at full
    /// severity.
    const VISIONS: [(&str, [[f64; 3]; 3]); 4] = [
        (
            "normal",
            [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        ),
        (
            "protanopia",
            [
                [0.152_286, 1.052_583, -0.204_868],
                [0.114_503, 0.786_281, 0.099_216],
                [-0.003_882, -0.048_116, 1.051_998],
            ],
        ),
        (
            "deuteranopia",
            [
                [0.367_322, 0.860_646, -0.227_968],
                [0.280_085, 0.672_501, 0.047_413],
                [-0.011_820, 0.042_940, 0.968_881],
            ],
        ),
        (
            "tritanopia",
            [
                [1.255_528, -0.076_749, -0.178_779],
                [-0.078_411, 0.930_809, 0.147_602],
                [0.004_733, 0.691_367, 0.303_900],
            ],
        ),
    ];

    fn product(matrix: [[f64; 3]; 3], [a, b, c]: [f64; 3]) -> [f64; 3] {
        matrix.map(|[x, y, z]| x * a + y * b + z * c)
    }

    /// CIE L*a*b* of a colour as seen.
    fn seen(Rgb(red, green, blue): Rgb, vision: [[f64; 3]; 3]) -> [f64; 3] {
        let linear = |part: u8| {
            let part = f64::from(part) / 255.0;
            match part <= 0.040_45 {
                true => part / 12.92,
                false => ((part + 0.055) / 1.055).powf(2.4),
            }
        };
        let rgb = product(vision, [red, green, blue].map(linear));
        let rgb = rgb.map(|part| part.clamp(0.0, 1.0));
        let xyz = product(
            [
                [0.4124, 0.3576, 0.1805],
                [0.2126, 0.7152, 0.0722],
                [0.0193, 0.1192, 0.9505],
            ],
            rgb,
        );
        let [x, y, z] =
            [xyz[0] / 0.9505, xyz[1], xyz[2] / 1.089].map(|part| match part > 0.008_856 {
                true => part.cbrt(),
                false => 7.787 * part + 16.0 / 116.0,
            });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn distance(a: Rgb, b: Rgb, vision: [[f64; 3]; 3]) -> f64 {
        let (a, b) = (seen(a, vision), seen(b, vision));
        let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2));
        squares.sum::<f64>().sqrt()
    }

    fn of_terminal(number: u8) -> Rgb {
        if number >= 232 {
            let grey = 8 + 10 * (number - 232);
            return Rgb(grey, grey, grey);
        }
        let level = |step: u8| if step == 0 { 0 } else { 55 + 40 * step };
        let cube = number - 16;
        Rgb(level(cube / 36), level(cube / 6 % 6), level(cube % 6))
    }

    /// A difference of 2 is just noticed where two colours touch; these are to be told apart at a
    /// distance.
    const APART: f64 = 11.0;

    fn assert_apart(name: &str, colours: &[(AddressState, Rgb)]) {
        for (vision, matrix) in VISIONS {
            for (index, (state, colour)) in colours.iter().enumerate() {
                for (other, with) in &colours[index + 1..] {
                    let distance = distance(*colour, *with, matrix);
                    assert!(
                        distance >= APART,
                        "{name}, {vision}: {state} and {other} are {distance:.1} apart"
                    );
                }
            }
        }
    }

    #[test]
    fn states_differ_for_every_kind_of_vision() {
        for palette in [Palette::Light, Palette::Dark] {
            let colours = AddressState::ALL.map(|state| (state, palette.fill(state)));
            assert_apart(&format!("{palette:?}"), &colours);
        }
        let terminal = AddressState::ALL.into_iter().filter_map(|state| {
            let (background, _) = Palette::ansi256(state)?;
            Some((state, of_terminal(background)))
        });
        assert_apart("terminal", &terminal.collect::<Vec<_>>());
    }

    #[test]
    fn letters_can_be_read_on_their_colour() {
        let luminance = |colour| seen(colour, VISIONS[0].1)[0];
        for state in AddressState::ALL {
            if let Some((background, text)) = Palette::ansi256(state) {
                let (background, text) = (of_terminal(background), of_terminal(text));
                let difference = luminance(background) - luminance(text);
                assert!(difference.abs() > 45.0, "{state}: {difference:.0}");
            }
        }
    }

    #[test]
    fn colours_are_written_for_css() {
        let pod = Palette::Light.fill(AddressState::Pod);
        assert_eq!(pod.to_string(), "#0072b2");
    }
}
