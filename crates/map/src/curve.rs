//! The Hilbert curve on a square, or on two squares side by side.
//!
//! In the order of the curve every aligned run of 4^n places is a square, and of 2·4^n places a
//! rectangle of two squares. A CIDR prefix is such a run, so it is a rectangle in the picture; near
//! prefixes are near each other.

use serde::Serialize;

/// A rectangle of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Rect {
    /// The left column.
    pub x: u16,
    /// The upper row.
    pub y: u16,
    /// The number of columns.
    pub width: u16,
    /// The number of rows.
    pub height: u16,
}

impl Rect {
    /// The centre, in cells.
    #[must_use]
    pub fn centre(&self) -> (f64, f64) {
        let middle = |start: u16, length: u16| f64::from(start) + f64::from(length) / 2.0;
        (middle(self.x, self.width), middle(self.y, self.height))
    }

    /// Returns true if the cell is in it.
    #[must_use]
    pub fn contains(&self, x: u16, y: u16) -> bool {
        let is_within =
            |at: u16, start: u16, length: u16| at.checked_sub(start).is_some_and(|d| d < length);
        is_within(x, self.x, self.width) && is_within(y, self.y, self.height)
    }

    /// The number of cells.
    #[must_use]
    pub fn area(&self) -> u32 {
        u32::from(self.width) * u32::from(self.height)
    }
}

/// The curve through all 2^bits cells of a grid: a square if `bits` is even, else two squares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Curve {
    bits: u8,
    /// True if the library's curve ends below its start instead of beside it.
    is_transposed: bool,
}

impl Curve {
    /// The most bits: 1024 by 1024 cells.
    pub(crate) const MAX_BITS: u8 = 20;

    /// The curve of 2^bits cells; of more than [`Curve::MAX_BITS`] that many.
    pub(crate) fn new(bits: u8) -> Self {
        let bits = bits.min(Self::MAX_BITS);
        let order = bits / 2;
        let end = (1u64 << (2 * order)) - 1;
        let is_transposed = order > 0 && fast_hilbert::h2xy::<u32>(end, order).0 == 0;
        Self {
            bits,
            is_transposed,
        }
    }

    /// The most bits of a curve that fits into so many columns and rows, up to `most`.
    pub(crate) fn bits_within(columns: u16, rows: u16, most: u8) -> u8 {
        let fits = |bits: &u8| {
            let curve = Self {
                bits: *bits,
                is_transposed: false,
            };
            curve.width() <= columns && curve.height() <= rows
        };
        let fitting = (0..=most.min(Self::MAX_BITS)).take_while(fits);
        fitting.last().unwrap_or(0)
    }

    pub(crate) const fn cells(self) -> u32 {
        1 << self.bits
    }

    pub(crate) const fn width(self) -> u16 {
        1 << self.bits.div_ceil(2)
    }

    pub(crate) const fn height(self) -> u16 {
        1 << (self.bits / 2)
    }

    /// The column and row of a place on the curve.
    pub(crate) fn position(self, place: u32) -> (u16, u16) {
        let order = self.bits / 2;
        let place = u64::from(place % self.cells());
        let square = 1u64 << (2 * order);
        let (x, y) = match order {
            0 => (0, 0),
            _ => fast_hilbert::h2xy::<u32>(place % square, order),
        };
        let (x, y) = if self.is_transposed { (y, x) } else { (x, y) };
        // Both are below the side of the square, which is at most 1024.
        let small = |number: u32| u16::try_from(number).unwrap_or(0);
        let is_right = place >= square;
        (
            small(x) + if is_right { self.height() } else { 0 },
            small(y),
        )
    }

    /// The place of a cell on the curve; `None` outside of the grid.
    pub(crate) fn place(self, x: u16, y: u16) -> Option<u32> {
        if x >= self.width() || y >= self.height() {
            return None;
        }
        let order = self.bits / 2;
        let (side, is_right) = (self.height(), x >= self.height());
        let (x, y) = (u32::from(x % side), u32::from(y));
        let (x, y) = if self.is_transposed { (y, x) } else { (x, y) };
        let place = match order {
            0 => 0,
            _ => fast_hilbert::xy2h(x, y, order),
        };
        let before = if is_right { 1 << (2 * order) } else { 0 };
        u32::try_from(place).ok().map(|place| place + before)
    }

    /// The rectangle of the 2^run_bits places from `first`, which is a multiple of that number.
    pub(crate) fn rect(self, first: u32, run_bits: u8) -> Rect {
        let run_bits = run_bits.min(self.bits);
        // A square of the largest even number of bits, and its neighbour if the number is odd.
        let square_bits = run_bits / 2 * 2;
        let side = 1u16 << (run_bits / 2);
        let corner = |place: u32| {
            let (x, y) = self.position(place);
            (x / side * side, y / side * side)
        };
        let (x, y) = corner(first);
        let (other_x, other_y) = match square_bits == run_bits {
            true => (x, y),
            false => corner(first + (1 << square_bits)),
        };
        Rect {
            x: x.min(other_x),
            y: y.min(other_y),
            width: x.abs_diff(other_x) + side,
            height: y.abs_diff(other_y) + side,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn begins_at_the_left_and_ends_at_the_right() {
        for bits in 0..=12 {
            let curve = Curve::new(bits);
            assert_eq!(curve.position(0), (0, 0), "{bits}");
            let end = curve.position(curve.cells() - 1);
            // A curve of two squares ends as the second one does.
            assert_eq!(end, (curve.width() - 1, 0), "{bits}");
            assert!(matches!(curve.width() / curve.height(), 1 | 2));
        }
    }

    #[test]
    fn successive_places_are_neighbours_and_each_cell_has_one_place() {
        for bits in 0..=11 {
            let curve = Curve::new(bits);
            let mut seen = vec![false; curve.cells() as usize];
            let mut before = None;
            for place in 0..curve.cells() {
                let (x, y) = curve.position(place);
                assert_eq!(curve.place(x, y), Some(place));
                let cell = usize::from(y) * usize::from(curve.width()) + usize::from(x);
                assert!(!std::mem::replace(&mut seen[cell], true));
                if let Some((old_x, old_y)) = before.replace((x, y)) {
                    assert_eq!(x.abs_diff(old_x) + y.abs_diff(old_y), 1, "{bits} {place}");
                }
            }
            assert_eq!(curve.place(curve.width(), 0), None);
            assert_eq!(curve.place(0, curve.height()), None);
        }
    }

    #[test]
    fn fits_into_columns_and_rows() {
        for (columns, rows, most, want) in [
            (16, 16, 32, 8),
            (32, 16, 32, 9),
            (39, 17, 32, 9),
            (15, 15, 32, 6),
            (1, 1, 32, 0),
            (64, 64, 8, 8),
            (4096, 4096, 32, 20),
        ] {
            assert_eq!(Curve::bits_within(columns, rows, most), want);
        }
    }

    proptest! {
        /// A prefix is a square or two: the rectangle has exactly the cells of the run.
        #[test]
        fn aligned_runs_are_rectangles(bits in 0u8..=14, run_bits in 0u8..=14, pick in 0u32..=u32::MAX) {
            let run_bits = run_bits.min(bits);
            let curve = Curve::new(bits);
            let first = ((pick % curve.cells()) >> run_bits) << run_bits;
            let rect = curve.rect(first, run_bits);
            prop_assert_eq!(rect.area(), 1 << run_bits);
            let (long, short) = (rect.width.max(rect.height), rect.width.min(rect.height));
            prop_assert_eq!(long / short, if run_bits % 2 == 0 { 1 } else { 2 });
            for place in first..first + (1 << run_bits) {
                let (x, y) = curve.position(place);
                prop_assert!(rect.contains(x, y), "{place} at {x} {y} not in {rect:?}");
            }
        }
    }
}
