//! Colours and attributes.

use podplane_map::{AddressState, Palette};
use ratatui::style::{Color, Modifier, Style};

use crate::row::Tone;

/// The use of colours. Without them the text is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Attributes alone, as with `NO_COLOR`.
    Plain,
    /// The colours of the map, which people with any kind of colour blindness can tell apart.
    Colored,
}

impl Theme {
    pub(crate) fn tone(self, tone: Tone) -> Style {
        let weight = match tone {
            Tone::Bad => Modifier::BOLD,
            _ => Modifier::empty(),
        };
        let style = Style::new().add_modifier(weight);
        match tone.state().and_then(Palette::ansi256) {
            Some((color, _)) if self == Self::Colored => style.fg(Color::Indexed(color)),
            _ => style,
        }
    }

    /// The style of a cell of the map.
    pub(crate) fn state(self, state: AddressState) -> Style {
        match Palette::ansi256(state) {
            Some((background, text)) if self == Self::Colored => Style::new()
                .bg(Color::Indexed(background))
                .fg(Color::Indexed(text)),
            _ => Style::new(),
        }
    }

    pub(crate) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn hint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
