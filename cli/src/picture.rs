//! Pictures as PNG, with a font of this program's own: a machine without fonts has the same
//! pictures.

use anyhow::Context as _;
use resvg::{
    tiny_skia::{Pixmap, Transform},
    usvg::{Options, Tree},
};

/// Roboto, Latin letters only; assets/README.md has its origin and licence.
const FONT: &[u8] = include_bytes!("../assets/Roboto-Latin.ttf");
const FONT_NAME: &str = "Roboto";

/// Pixels for each unit of the SVG: text stays sharp on dense screens.
const SCALE: f32 = 2.0;

/// Draws an SVG, in its light colours.
///
/// # Errors
///
/// If it is no SVG, or too large to be drawn.
pub(crate) fn png(svg: &str) -> anyhow::Result<Vec<u8>> {
    let mut options = Options {
        font_family: FONT_NAME.to_owned(),
        ..Options::default()
    };
    let fonts = options.fontdb_mut();
    fonts.load_font_data(FONT.to_vec());
    // The last resort for each name that is not known is the serif one.
    fonts.set_serif_family(FONT_NAME);
    fonts.set_sans_serif_family(FONT_NAME);
    fonts.set_monospace_family(FONT_NAME);
    let tree = Tree::from_str(svg, &options).context("failed to read the SVG")?;
    let size = tree.size().to_int_size();
    let size = size.scale_by(SCALE).context("the picture is empty")?;
    let (width, height) = (size.width(), size.height());
    let mut pixels = Pixmap::new(width, height)
        .with_context(|| format!("a PNG of {width} by {height} pixels is too large: use svg"))?;
    let scale = Transform::from_scale(SCALE, SCALE);
    resvg::render(&tree, scale, &mut pixels.as_mut());
    pixels.encode_png().context("failed to encode the PNG")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(content: &str) -> Pixmap {
        let svg = format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20">{content}</svg>"#
        );
        Pixmap::decode_png(&png(&svg).unwrap()).unwrap()
    }

    #[test]
    fn text_is_drawn_without_fonts_of_the_machine() {
        let blank = drawn("");
        assert_eq!((blank.width(), blank.height()), (80, 40));
        for family in ["system-ui,sans-serif", "ui-monospace,monospace", "Unknown"] {
            let text = format!(r#"<text y="15" style="font:13px {family}">web</text>"#);
            assert!(drawn(&text) != blank, "{family}");
        }
    }

    #[test]
    fn rules_for_dark_pages_are_left_out() {
        let style = "<style>rect{fill:#ffffff}@media (prefers-color-scheme:dark){rect{fill:#000000}}</style>";
        let rect = r#"<rect width="40" height="20"/>"#;
        let pixel = drawn(&format!("{style}{rect}")).pixel(9, 9).unwrap();
        assert_eq!(pixel.red(), 255);
    }

    #[test]
    fn refuses_what_is_no_svg() {
        assert!(png("<html/>").is_err());
        assert!(png("").is_err());
    }
}
