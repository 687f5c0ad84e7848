//! A scene as a grid of characters, for terminals of at least 80 by 24: one row is left for the
//! prompt, or for a status line.
//!
//! Each cell of the map is two characters: the letter of its state, and the part of its usable
//! addresses that is in use, in eighths. So the picture is complete without colour. `podplane map`
//! prints the grid; a terminal program draws it and asks [`TextGrid::map_cell`] what is under the
//! cursor.

mod side;

use std::fmt::{self, Write as _};

use podplane_ipam::figures::readable;

use crate::{
    palette::Palette,
    scene::{Scene, SceneLimits},
    state::AddressState,
    view::{Cell, GridLimit, View},
    words,
};

/// The size of a grid of characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextSize {
    columns: u16,
    rows: u16,
}

/// A size that is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid size `{columns}x{rows}`: the map needs at least {} columns and {} rows",
    TextSize::MIN.columns,
    TextSize::MIN.rows
)]
pub struct InvalidTextSize {
    columns: u16,
    rows: u16,
}

/// Rows above the map and its frame: network and scale.
const HEAD_ROWS: u16 = 2;
/// Rows of the legend: a third of the states in each column.
const LEGEND_ROWS: u16 = 4;
/// The least rows of remarks below the legend.
const NOTE_ROWS: u16 = 1;
/// The least rows of the map: those of the smallest size.
const LEAST_MAP_ROWS: u16 = TextSize::MIN.rows - HEAD_ROWS - LEGEND_ROWS - NOTE_ROWS;
/// Characters of a cell.
const CELL_WIDTH: u16 = 2;
/// The width of a side of the frame.
const FRAME: u16 = 1;
/// Columns between the frame and the lines beside it.
const GAP: u16 = 1;
/// The least columns that are not the map's: a list of blocks has room beside it.
const SIDE_COLUMNS: u16 = side::LIST_COLUMNS + GAP + 2 * FRAME;

impl TextSize {
    /// The smallest size: 80 columns and 23 rows.
    pub const MIN: Self = Self {
        columns: 80,
        rows: 23,
    };

    /// Creates a size. Of a larger terminal than the map can fill the rest stays empty.
    ///
    /// # Errors
    ///
    /// [`InvalidTextSize`] below [`TextSize::MIN`].
    pub const fn new(columns: u16, rows: u16) -> Result<Self, InvalidTextSize> {
        if columns < Self::MIN.columns || rows < Self::MIN.rows {
            return Err(InvalidTextSize { columns, rows });
        }
        Ok(Self { columns, rows })
    }

    /// The number of columns.
    #[must_use]
    pub const fn columns(self) -> u16 {
        self.columns
    }

    /// The number of rows.
    #[must_use]
    pub const fn rows(self) -> u16 {
        self.rows
    }

    /// The sizes of a scene for this grid. The networks beside are lines of text.
    #[must_use]
    pub fn limits(self) -> SceneLimits {
        let columns = (self.columns - SIDE_COLUMNS) / CELL_WIDTH;
        let rows = self.rows - HEAD_ROWS - LEGEND_ROWS - NOTE_ROWS;
        let limit = |columns: u16, rows: u16| {
            GridLimit::new(columns.min(GridLimit::MAX), rows.min(GridLimit::MAX))
        };
        // Both are at least 16, by the smallest size.
        let one = GridLimit::ONE;
        SceneLimits {
            main: limit(columns, rows).unwrap_or(one),
            beside: one,
        }
    }
}

/// The use of colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColorMode {
    /// None, as with `NO_COLOR` or in a file.
    Plain,
    /// The 256 colours of terminals.
    Ansi256,
}

/// The look of a character.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextStyle {
    /// The state whose colour it has; `None` for the terminal's own.
    pub state: Option<AddressState>,
    /// True for headings.
    pub is_bold: bool,
}

/// A character of the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextCell {
    /// The character: printable ASCII, one column wide.
    pub symbol: char,
    /// Its look.
    pub style: TextStyle,
}

/// A scene as a grid of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextGrid {
    size: TextSize,
    /// Columns and rows of the map.
    map: (u16, u16),
    /// The first row of the map.
    top: u16,
    cells: Vec<TextCell>,
}

/// The rows of the map and its frame.
#[derive(Clone, Copy)]
struct MapRows {
    /// The first row of cells.
    top: u16,
    /// The row below the map and its frame.
    end: u16,
}

impl MapRows {
    /// The frame is without its upper and lower side where they have no room. A small map leaves
    /// room for the lines beside it.
    fn new(view: &View, size: TextSize) -> Self {
        let end = |rows: u16| HEAD_ROWS.saturating_add(rows.max(LEAST_MAP_ROWS));
        let framed = end(view.height().saturating_add(2 * FRAME));
        match framed.saturating_add(LEGEND_ROWS + NOTE_ROWS) <= size.rows {
            true => Self {
                top: HEAD_ROWS + FRAME,
                end: framed,
            },
            false => Self {
                top: HEAD_ROWS,
                end: end(view.height()),
            },
        }
    }
}

/// A place to write at: a row, and columns from one to before another.
#[derive(Clone, Copy)]
struct Field {
    row: u16,
    from: u16,
    to: u16,
}

impl TextGrid {
    /// Draws a scene, which should be of [`TextSize::limits`]: what is outside of the size is cut
    /// off.
    #[must_use]
    pub fn new(scene: &Scene<'_>, size: TextSize) -> Self {
        let blank = TextCell {
            symbol: ' ',
            style: TextStyle::default(),
        };
        let count = usize::from(size.columns) * usize::from(size.rows);
        let main = scene.main();
        let rows = MapRows::new(main, size);
        // Rows that neither the map nor a remark needs are for the lines beside the map.
        let room = size
            .rows
            .saturating_sub(rows.end.saturating_add(LEGEND_ROWS));
        let notes = words::notes(scene, usize::from(room));
        let below = LEGEND_ROWS.saturating_add(u16::try_from(notes.len()).unwrap_or(u16::MAX));
        let side_end = rows.end.max(size.rows.saturating_sub(below));
        let mut grid = Self {
            size,
            map: (main.width(), main.height()),
            top: rows.top,
            cells: vec![blank; count],
        };
        let bold = TextStyle {
            state: None,
            is_bold: true,
        };
        grid.write(grid.line(0), &words::network(scene.space(), main), bold);
        grid.write(grid.line(1), &words::scale(main), TextStyle::default());
        grid.draw_frame();
        grid.draw_map(scene);
        let end = rows.end.max(grid.draw_side(scene, side_end));
        grid.draw_legend(end, scene);
        grid.draw_notes(end.saturating_add(LEGEND_ROWS), &notes);
        grid
    }

    /// The size.
    #[must_use]
    pub const fn size(&self) -> TextSize {
        self.size
    }

    /// The character at a column and row.
    #[must_use]
    pub fn at(&self, column: u16, row: u16) -> Option<TextCell> {
        self.cells.get(self.index(column, row)?).copied()
    }

    /// The column and row in the main view of the cell that is drawn at a column and row of the
    /// grid, for [`View::at`] and [`View::zoom_in`].
    #[must_use]
    pub fn map_cell(&self, column: u16, row: u16) -> Option<(u16, u16)> {
        let x = column.checked_sub(FRAME)? / CELL_WIDTH;
        let y = row.checked_sub(self.top)?;
        let (width, height) = self.map;
        (x < width && y < height).then_some((x, y))
    }

    /// The column and row of the grid at which a cell of the main view is drawn: the inverse of
    /// [`map_cell`](Self::map_cell). It is two columns wide.
    #[must_use]
    pub fn position_of(&self, x: u16, y: u16) -> Option<(u16, u16)> {
        let (width, height) = self.map;
        let is_inside = x < width && y < height;
        is_inside.then(|| self.place_of(x, y))
    }

    /// The column and row at which a cell is drawn.
    const fn place_of(&self, x: u16, y: u16) -> (u16, u16) {
        let column = x.saturating_mul(CELL_WIDTH).saturating_add(FRAME);
        (column, y.saturating_add(self.top))
    }

    /// The grid as lines of text. Spaces at the end of lines, and empty lines at the end, are left
    /// out; each line ends with a line feed.
    #[must_use]
    pub fn to_text(&self, colors: ColorMode) -> String {
        let look = |cell: &TextCell| match colors {
            ColorMode::Plain => Look::default(),
            ColorMode::Ansi256 => Look::of(cell.style),
        };
        let blank = |cell: &TextCell| cell.symbol == ' ' && look(cell) == Look::default();
        let lines = self.cells.chunks(usize::from(self.size.columns));
        let lines = lines.map(|line| {
            let end = line.iter().rposition(|cell| !blank(cell));
            line.get(..end.map_or(0, |last| last + 1))
                .unwrap_or_default()
        });
        let lines: Vec<_> = lines.collect();
        let end = lines.iter().rposition(|line| !line.is_empty());
        let mut text = String::new();
        for line in lines.iter().take(end.map_or(0, |last| last + 1)) {
            let mut current = Look::default();
            for cell in *line {
                if look(cell) != current {
                    current = look(cell);
                    push(&mut text, format_args!("{current}"));
                }
                text.push(cell.symbol);
            }
            if current != Look::default() {
                push(&mut text, format_args!("{}", Look::default()));
            }
            text.push('\n');
        }
        text
    }

    fn index(&self, column: u16, row: u16) -> Option<usize> {
        let is_inside = column < self.size.columns && row < self.size.rows;
        is_inside.then(|| usize::from(row) * usize::from(self.size.columns) + usize::from(column))
    }

    const fn line(&self, row: u16) -> Field {
        Field {
            row,
            from: 0,
            to: self.size.columns,
        }
    }

    fn put(&mut self, column: u16, row: u16, cell: TextCell) {
        if let Some(index) = self.index(column, row)
            && let Some(place) = self.cells.get_mut(index)
        {
            *place = cell;
        }
    }

    /// Writes a text into a field; of a longer one the end is `~`.
    fn write(&mut self, field: Field, text: &str, style: TextStyle) {
        let text = words::ascii(text);
        let room = usize::from(field.to.saturating_sub(field.from));
        let is_cut = text.len() > room;
        let shown = if is_cut { room.saturating_sub(1) } else { room };
        let end = is_cut.then_some('~').filter(|_| room > 0);
        let symbols = text.chars().take(shown).chain(end);
        for (column, symbol) in (field.from..field.to).zip(symbols) {
            self.put(column, field.row, TextCell { symbol, style });
        }
    }

    /// Draws a line around the map: blank cells at its edge are a part of it.
    fn draw_frame(&mut self) {
        let (width, height) = self.map;
        let (right, below) = self.place_of(width, height);
        let style = TextStyle::default();
        for row in self.top..below {
            for column in [0, right] {
                let symbol = '|';
                self.put(column, row, TextCell { symbol, style });
            }
        }
        if self.top == HEAD_ROWS {
            return;
        }
        for row in [HEAD_ROWS, below] {
            for column in 0..=right {
                let symbol = if column % right == 0 { '+' } else { '-' };
                self.put(column, row, TextCell { symbol, style });
            }
        }
    }

    fn draw_map(&mut self, scene: &Scene<'_>) {
        let role = scene.main().network().role();
        for cell in scene.main().cells() {
            let (column, row) = self.place_of(cell.x, cell.y);
            let (_, symbol) = words::state(scene.space(), role, cell.dominant);
            let fill = fill(cell);
            let style = TextStyle {
                state: Some(cell.dominant),
                is_bold: false,
            };
            self.put(column, row, TextCell { symbol, style });
            let right = TextCell {
                symbol: fill,
                style,
            };
            self.put(column.saturating_add(1), row, right);
        }
    }

    /// Lists blocks and addresses where there is room, and the other networks. Returns the row
    /// below them.
    fn draw_side(&mut self, scene: &Scene<'_>, end: u16) -> u16 {
        let (width, _) = self.map;
        let (right, _) = self.place_of(width, 0);
        let from = right.saturating_add(FRAME + GAP);
        let to = self.size.columns;
        let room = side::SideRoom {
            columns: to.saturating_sub(from),
            rows: end.saturating_sub(HEAD_ROWS),
        };
        let mut below = HEAD_ROWS;
        for (row, line) in (HEAD_ROWS..end).zip(side::lines(scene, room)) {
            let style = TextStyle {
                state: None,
                is_bold: line.is_heading,
            };
            self.write(Field { row, from, to }, &line.text, style);
            below = row.saturating_add(1);
        }
        below
    }

    fn draw_legend(&mut self, row: u16, scene: &Scene<'_>) {
        let (role, counts) = (scene.main().network().role(), scene.main().counts());
        let width = self.size.columns / 3;
        for (index, state) in (0u16..).zip(AddressState::ALL) {
            let from = index / LEGEND_ROWS * width;
            let row = row.saturating_add(index % LEGEND_ROWS);
            let swatch = TextStyle {
                state: Some(state),
                is_bold: false,
            };
            let (name, letter) = words::state(scene.space(), role, state);
            let mark = format!("{letter} ");
            let to = from + CELL_WIDTH;
            self.write(Field { row, from, to }, &mark, swatch);
            let text = format!("{name:<11}{}", readable(counts.of(state)));
            let field = Field {
                row,
                from: to + 1,
                to: from + width - 1,
            };
            self.write(field, &text, TextStyle::default());
        }
    }

    fn draw_notes(&mut self, row: u16, notes: &[String]) {
        for (row, note) in (row..self.size.rows).zip(notes) {
            self.write(self.line(row), note, TextStyle::default());
        }
    }
}

fn push(text: &mut String, each: fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = text.write_fmt(each);
}

/// The part in use of a cell of several usable addresses.
fn fill(cell: &Cell) -> char {
    match cell.fill() {
        0 => ' ',
        _ if cell.counts.total() == 1 => ' ',
        eighths => char::from(b'0' + eighths.min(9)),
    }
}

/// The weight and colours of a character in a terminal. Its `Display` is the sequence that changes
/// to it from any other.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Look {
    is_bold: bool,
    /// Background and text.
    colors: Option<(u8, u8)>,
}

impl Look {
    fn of(style: TextStyle) -> Self {
        Self {
            is_bold: style.is_bold,
            colors: style.state.and_then(Palette::ansi256),
        }
    }
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\u{1b}[0")?;
        if self.is_bold {
            f.write_str(";1")?;
        }
        if let Some((background, text)) = self.colors {
            write!(f, ";48;5;{background};38;5;{text}")?;
        }
        f.write_str("m")
    }
}
