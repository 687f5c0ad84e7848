//! A scene as one SVG file: no script, no font and no other file, for light and dark pages.
//!
//! The names of the states, with their numbers, are text in the picture, so that it can be searched
//! and read aloud. Names of others are escaped. Colours are only one of the signs: each state also
//! has a pattern, and a letter where a cell is large enough.

mod blocks;
mod labels;
mod style;
mod topology;

use std::{
    collections::BTreeMap,
    fmt::{Arguments, Write as _},
};

use podplane_ipam::figures::readable;

use blocks::BlockList;
pub use topology::topology;

use crate::{
    curve::Rect,
    scene::{MarkSeverity, Scene, SceneLimits, SceneMark},
    state::AddressState,
    view::{Cell, GridLimit, Layout, View},
    words,
};

/// The size of the longer side of a square view, in pixels.
const MAIN_SIDE: f64 = 640.0;
/// The width of a view beside it.
const BESIDE_WIDTH: f64 = 192.0;
const MARGIN: f64 = 24.0;
/// The upper edge of the main view.
const MAIN_TOP: f64 = 76.0;
const LINE: f64 = 20.0;
/// The least width: the networks beside have room for their names. A wide view is wider.
const LEAST_WIDTH: f64 = 1024.0;
/// Columns of the legend.
const LEGEND_COLUMNS: usize = 3;
/// The least size of a cell that has its letter in it.
const LETTER_SIZE: f64 = 13.0;
/// The widths of a character of the title and of other text: at least those of common fonts.
const TITLE_CHARACTER: f64 = 11.5;
const TEXT_CHARACTER: f64 = 7.2;
/// The most lines of remarks.
const MOST_NOTES: usize = 24;
/// The most cells whose holders are named where the mouse points.
const MOST_NAMED_CELLS: usize = 512;
/// The most findings that are named where the mouse points.
const MOST_MARK_LINES: usize = 8;

const MAIN_LIMIT: GridLimit = match GridLimit::new(64, 64) {
    Ok(limit) => limit,
    Err(_) => panic!("64 by 64 is a grid"),
};
const BESIDE_LIMIT: GridLimit = match GridLimit::new(32, 32) {
    Ok(limit) => limit,
    Err(_) => panic!("32 by 32 is a grid"),
};

/// The sizes of a scene for a picture: more cells would be smaller than a mouse can point at.
#[must_use]
pub const fn limits() -> SceneLimits {
    SceneLimits {
        main: MAIN_LIMIT,
        beside: BESIDE_LIMIT,
    }
}

/// Draws a scene.
#[must_use]
pub fn picture(scene: &Scene<'_>) -> String {
    let notes = words::notes(scene, MOST_NOTES);
    let plan = Plan::new(scene, notes.len());
    let mut canvas = Canvas::default();
    let title = words::network(scene.space(), scene.main());
    let (width, height) = (plan.width, plan.blocks.bottom());
    canvas.push(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" aria-labelledby=\"title desc\">\n"
    ));
    canvas.push(format_args!(
        "<title id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>\n",
        words::xml(&format!("Address map of {title}")),
        words::xml(&description(scene, &notes)),
    ));
    style::write(&mut canvas);
    if !scene.marks().is_empty() {
        style::write_marks(&mut canvas);
    }
    canvas.push(format_args!(
        "<rect class=\"page\" width=\"{width}\" height=\"{height}\"/>\n"
    ));
    let room = width - 2.0 * MARGIN;
    canvas.text_within("head", (MARGIN, 36.0), room, &title);
    let scale = words::scale(scene.main());
    canvas.text_within("sub", (MARGIN, 60.0), room, &scale);
    canvas.view(scene, scene.main(), plan.main);
    for (view, place) in scene.beside().iter().zip(&plan.beside) {
        // The prefix has a line of its own: half of one would be that of another network.
        let room = width - MARGIN - place.x;
        let [name, prefix] = words::network_lines(scene.space(), view);
        canvas.text_within("sub", (place.x, place.y - 24.0), room, &name);
        let in_use = readable(view.counts().in_use());
        let prefix = format!("{prefix}: {in_use} in use");
        canvas.text_within("sub", (place.x, place.y - 7.0), room, &prefix);
        canvas.view(scene, view, *place);
    }
    if let (1.., Some((x, y))) = (scene.left_out(), plan.left_out) {
        canvas.text(
            "sub",
            x,
            y,
            &format!("and {} more networks", scene.left_out()),
        );
    }
    canvas.legend(scene, &plan);
    for (index, note) in notes.iter().enumerate() {
        let at = (MARGIN, plan.notes_top + LINE * offset(index));
        canvas.text_within("note", at, room, note);
    }
    plan.blocks.draw(&mut canvas);
    canvas.push(format_args!("</svg>\n"));
    canvas.0
}

fn description(scene: &Scene<'_>, notes: &[String]) -> String {
    let (space, main) = (scene.space(), scene.main());
    let counts = |view: &View| words::counts(space, view.network().role(), view.counts());
    let mut text = format!("{}: {}.", words::scale(main), counts(main));
    for view in scene.beside() {
        let network = words::network(space, view);
        text = format!("{text} {network}: {}.", counts(view));
    }
    for note in notes {
        text = format!("{text} {note}.");
    }
    text
}

/// An index as a factor of distances.
fn offset(index: usize) -> f64 {
    u32::try_from(index).map_or(0.0, f64::from)
}

/// The sign of a state beside its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CellSign {
    /// In cells that are large enough.
    Letter,
    /// In small cells.
    Pattern,
}

/// Returns true for a large cell with a letter: one that is more than free.
const fn has_letter(cell: &Cell) -> bool {
    !matches!(cell.dominant, AddressState::Free | AddressState::Unassigned)
}

fn cell_rect(cell: &Cell) -> Rect {
    Rect {
        x: cell.x,
        y: cell.y,
        width: 1,
        height: 1,
    }
}

/// The place of a view: its upper left corner, and the size of a cell.
#[derive(Clone, Copy, Debug)]
struct Place {
    x: f64,
    y: f64,
    cell: f64,
}

impl Place {
    /// The attributes of a rectangle of cells, in pixels.
    fn attributes(self, rect: Rect) -> String {
        let (x, y) = (f64::from(rect.x), f64::from(rect.y));
        let (width, height) = (f64::from(rect.width), f64::from(rect.height));
        format!(
            " x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            self.x + self.cell * x,
            self.y + self.cell * y,
            self.cell * width,
            self.cell * height
        )
    }

    /// A border within a rectangle of cells: its element with attributes.
    fn border(self, rect: Rect, inset: f64) -> String {
        let (width, height) = (f64::from(rect.width), f64::from(rect.height));
        let (x, y) = (
            self.x + self.cell * f64::from(rect.x),
            self.y + self.cell * f64::from(rect.y),
        );
        let (width, height) = (self.cell * width, self.cell * height);
        format!(
            "rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            x + inset,
            y + inset,
            width - 2.0 * inset,
            height - 2.0 * inset
        )
    }

    fn height(self, view: &View) -> f64 {
        self.cell * f64::from(view.height())
    }
}

/// The places of all parts.
#[derive(Debug)]
struct Plan {
    main: Place,
    beside: Vec<Place>,
    left_out: Option<(f64, f64)>,
    legend_top: f64,
    notes_top: f64,
    blocks: BlockList,
    width: f64,
}

impl Plan {
    fn new(scene: &Scene<'_>, notes: usize) -> Self {
        let main_view = scene.main();
        let is_wide = main_view.width() > main_view.height();
        let side = if is_wide { 1.5 * MAIN_SIDE } else { MAIN_SIDE };
        let main = Place {
            x: MARGIN,
            y: MAIN_TOP,
            cell: side / f64::from(main_view.width().max(main_view.height())),
        };
        let right = MARGIN * 2.0 + side;
        let mut top = MAIN_TOP + LINE;
        let mut beside = Vec::new();
        for view in scene.beside() {
            let place = Place {
                x: right,
                y: top,
                cell: BESIDE_WIDTH / f64::from(view.width().max(view.height())),
            };
            beside.push(place);
            top += place.height(view) + 3.0 * LINE;
        }
        let left_out = (scene.left_out() > 0).then_some((right, top - LINE));
        // Without networks beside, the two last lines of distance are not there.
        let bottom_right = if beside.is_empty() { 0.0 } else { top - LINE };
        let bottom = (MAIN_TOP + main.height(main_view)).max(bottom_right);
        let legend_top = bottom + 2.0 * LINE;
        let rows = AddressState::COUNT.div_ceil(LEGEND_COLUMNS);
        let notes_top = legend_top + LINE * (offset(rows) + 1.0);
        let notes = if notes > 0 { notes + 1 } else { 0 };
        let beside_width = if beside.is_empty() {
            0.0
        } else {
            BESIDE_WIDTH + MARGIN
        };
        let width = LEAST_WIDTH.max(right + beside_width).ceil();
        let blocks_top = notes_top + LINE * offset(notes);
        Self {
            main,
            beside,
            left_out,
            legend_top,
            notes_top,
            blocks: BlockList::new(scene, blocks_top, width),
            width,
        }
    }
}

/// The text of a picture, as far as it is written.
#[derive(Debug, Default)]
struct Canvas(String);

impl Canvas {
    fn push(&mut self, each: Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.0.write_fmt(each);
    }

    fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let text = words::xml(text);
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{text}</text>\n"
        ));
    }

    /// Writes a line into so many pixels: viewers do not wrap it. A longer one is cut, and whole in
    /// its title.
    fn text_within(&mut self, class: &str, (x, y): (f64, f64), room: f64, text: &str) {
        let character = if class == "head" {
            TITLE_CHARACTER
        } else {
            TEXT_CHARACTER
        };
        let fits = |count: usize| character * offset(count) <= room;
        if fits(text.chars().count()) {
            return self.text(class, x, y, text);
        }
        let each = text.chars().enumerate();
        // With the sign that it is cut.
        let shown = each.take_while(|(index, _)| fits(index + 2));
        let shown: String = shown.map(|(_, character)| character).collect();
        let (whole, shown) = (words::xml(text), words::xml(&shown));
        self.push(format_args!(
            "<text class=\"{class}\" x=\"{x}\" y=\"{y}\"><title>{whole}</title>{shown}…</text>\n"
        ));
    }

    /// Draws the cells of a view, the outlines of its blocks, and labels where there is room.
    fn view(&mut self, scene: &Scene<'_>, view: &View, place: Place) {
        let Place { x, y, cell } = place;
        let sign = match cell >= LETTER_SIZE {
            true => CellSign::Letter,
            false => CellSign::Pattern,
        };
        // In this group a cell is 1 by 1. Lines are outside of it: not every viewer knows lines
        // that are not scaled.
        self.push(format_args!(
            "<g class=\"cells\" transform=\"translate({x} {y}) scale({cell})\">\n"
        ));
        self.fills(view, sign);
        if sign == CellSign::Letter {
            self.grid(view);
        }
        self.push(format_args!("</g>\n"));
        self.outlines(scene, view, place);
        self.holders(scene, view, place);
        let all = Rect {
            x: 0,
            y: 0,
            width: view.width(),
            height: view.height(),
        };
        let frame = place.attributes(all);
        self.push(format_args!("<rect class=\"frame\"{frame}/>\n"));
        self.marks(scene, view, place);
        if sign == CellSign::Letter {
            self.letters(view, place);
        }
        self.labels(scene.space(), view, place, sign);
    }

    /// Marks places by a border within each, so that no mark covers a neighbour. Several marks of
    /// one place are one.
    fn marks(&mut self, scene: &Scene<'_>, view: &View, place: Place) {
        let mut places = BTreeMap::<_, Vec<&SceneMark>>::new();
        for mark in scene.marks() {
            if let Some(Rect {
                x,
                y,
                width,
                height,
            }) = view.place_of(&mark.prefix)
            {
                let key = (y, x, height, width);
                places.entry(key).or_default().push(mark);
            }
        }
        for ((y, x, height, width), marks) in places {
            let rect = Rect {
                x,
                y,
                width,
                height,
            };
            let class = match marks.iter().map(|mark| mark.severity).max() {
                Some(MarkSeverity::Error) => "m-error",
                Some(MarkSeverity::Warning) | None => "m-warning",
            };
            let named = marks.iter().take(MOST_MARK_LINES);
            let mut title: Vec<String> = named.map(|mark| words::xml(&mark.text)).collect();
            if let more @ 1.. = marks.len().saturating_sub(MOST_MARK_LINES) {
                title.push(format!("and {more} more"));
            }
            let title = title.join("\n");
            // A small cell has no room for a halo on the inner side, too.
            let is_small = place.cell < LETTER_SIZE && (width, height) == (1, 1);
            let (class_of_halo, inset) = match is_small {
                true => ("halo thin", 1.0),
                false => ("halo", 2.0),
            };
            let (halo, border) = (place.border(rect, inset), place.border(rect, 2.0));
            self.push(format_args!(
                "<g class=\"m {class}\"><title>{title}</title>\
                 <{halo} class=\"{class_of_halo}\"/><{border}/></g>\n",
            ));
        }
    }

    /// Draws lines between large cells.
    fn grid(&mut self, view: &View) {
        let (width, height) = (view.width(), view.height());
        self.push(format_args!("<path class=\"grid\" d=\""));
        for x in 1..width {
            self.push(format_args!("M{x} 0v{height}"));
        }
        for y in 1..height {
            self.push(format_args!("M0 {y}h{width}"));
        }
        self.push(format_args!("\"/>\n"));
    }

    /// One path for each state, level and background; its pattern is a second one over it.
    fn fills(&mut self, view: &View, sign: CellSign) {
        let mut runs = BTreeMap::<(AddressState, u8, AddressState), Vec<Rect>>::new();
        let mut cells: Vec<&Cell> = view.cells().iter().collect();
        cells.sort_unstable_by_key(|cell| (cell.y, cell.x));
        for cell in cells {
            let key = (cell.dominant, level(view, cell), cell.counts.background());
            let rects = runs.entry(key).or_default();
            match rects.last_mut() {
                Some(last) if last.y == cell.y && last.x + last.width == cell.x => last.width += 1,
                _ => rects.push(cell_rect(cell)),
            }
        }
        for ((state, level, background), rects) in runs {
            if level < FULL {
                self.path(&format!("s-{background}"), FULL, &rects);
            }
            self.path(&format!("s-{state}"), level, &rects);
            if sign == CellSign::Pattern && style::has_pattern(state) {
                self.path(&format!("p-{state}"), level, &rects);
            }
        }
    }

    /// Fills the cells up to a level, from below.
    fn path(&mut self, class: &str, level: u8, rects: &[Rect]) {
        let height = f64::from(level) / f64::from(FULL);
        self.push(format_args!("<path class=\"{class}\" d=\""));
        for Rect { x, y, width, .. } in rects {
            let top = f64::from(*y) + 1.0 - height;
            self.push(format_args!("M{x} {top}h{width}v{height}h-{width}z"));
        }
        self.push(format_args!("\"/>\n"));
    }

    fn outlines(&mut self, scene: &Scene<'_>, view: &View, place: Place) {
        let space = scene.space();
        for outline in view.outlines() {
            let title = words::block(space, view.network().role(), outline.block);
            let state = outline.state;
            let rect = place.attributes(outline.rect);
            self.titled(&format!("b b-{state}"), &rect, &[title]);
        }
        // Smaller ones are all in the title of their cell.
        for cell in view.cells().iter().filter(|cell| cell.blocks_inside > 0) {
            let inside = space.blocks_starting_within(&cell.prefix);
            let title: Vec<String> = inside
                .map(|index| words::block(space, view.network().role(), index))
                .collect();
            self.titled("holder", &place.attributes(cell_rect(cell)), &title);
        }
    }

    /// Names the holders of addresses that need attention, and of all addresses where each has a
    /// cell, above the outlines.
    fn holders(&mut self, scene: &Scene<'_>, view: &View, place: Place) {
        let is_fault = |cell: &Cell| AddressState::FAULTS.contains(&cell.dominant);
        let is_held = |cell: &Cell| cell.counts.total() == 1 && cell.dominant.is_in_use();
        let cells = view.cells().iter();
        let named = cells.filter(|cell| is_fault(cell) || is_held(cell));
        for cell in named.take(MOST_NAMED_CELLS) {
            let counts = words::counts(scene.space(), view.network().role(), &cell.counts);
            let mut title = vec![format!("{}: {counts}", words::place(&cell.prefix))];
            let space = scene.space();
            match is_held(cell) {
                true => title.extend(space.records(&cell.prefix).map(|one| words::record(&one))),
                false => {
                    let faults = space.faults(&cell.prefix).take(3);
                    title.extend(faults.map(|one| words::record(&one)));
                }
            }
            let rect = place.attributes(cell_rect(cell));
            self.titled("holder", &rect, &title);
        }
    }

    /// A rectangle whose title, shown where the mouse points, has several lines.
    fn titled(&mut self, class: &str, attributes: &str, title: &[String]) {
        let lines: Vec<String> = title.iter().map(|line| words::xml(line)).collect();
        let title = lines.join("\n");
        self.push(format_args!(
            "<rect class=\"{class}\"{attributes}><title>{title}</title></rect>\n"
        ));
    }

    /// Writes the letter of each cell that is more than free.
    fn letters(&mut self, view: &View, place: Place) {
        for cell in view.cells().iter().filter(|cell| has_letter(cell)) {
            let x = place.x + place.cell * (f64::from(cell.x) + 0.5);
            let y = place.y + place.cell * (f64::from(cell.y) + 0.5) + 3.5;
            // The letter is in the middle, which a low level leaves to the background.
            let under = match level(view, cell) {
                0..=HALF => cell.counts.background(),
                _ => cell.dominant,
            };
            let letter = cell.dominant.letter();
            self.push(format_args!(
                "<text class=\"letter l-{under}\" x=\"{x}\" y=\"{y}\">{letter}</text>\n"
            ));
        }
    }

    fn legend(&mut self, scene: &Scene<'_>, plan: &Plan) {
        let rows = AddressState::COUNT.div_ceil(LEGEND_COLUMNS);
        let column = (plan.width - 2.0 * MARGIN) / offset(LEGEND_COLUMNS);
        for (index, state) in AddressState::ALL.into_iter().enumerate() {
            let x = MARGIN + column * offset(index / rows);
            let y = plan.legend_top + LINE * offset(index % rows);
            let top = y - 12.0;
            self.push(format_args!(
                "<g transform=\"translate({x} {top}) scale(15)\"><rect class=\"s-{state}\" width=\"1\" height=\"1\"/>"
            ));
            if style::has_pattern(state) {
                self.push(format_args!(
                    "<rect class=\"p-{state}\" width=\"1\" height=\"1\"/>"
                ));
            }
            self.push(format_args!(
                "</g>\n<rect class=\"frame\" x=\"{x}\" y=\"{top}\" width=\"15\" height=\"15\"/>\n"
            ));
            let letter = match state.letter() {
                ' ' => String::new(),
                letter => format!(" [{letter}]"),
            };
            let count = readable(scene.main().counts().of(state));
            let meaning = state.meaning();
            let text = format!("{state}{letter} {count}: {meaning}");
            self.text("key", x + 22.0, y, &text);
        }
    }
}

/// The level of a cell that is filled, in eighths.
const FULL: u8 = 8;
const HALF: u8 = FULL / 2;
/// The least level that can be seen in a small cell.
const LEAST: u8 = 2;

/// The level to which a cell is filled: its part in use. A colour in several shades would not be
/// apart from the others for everybody. Cells by use have no level: they differ in size.
fn level(view: &View, cell: &Cell) -> u8 {
    match (view.layout(), cell.dominant) {
        (Layout::Curve, AddressState::Pod | AddressState::Service | AddressState::Node) => {
            cell.fill().clamp(LEAST, FULL)
        }
        _ => FULL,
    }
}
