//! The files of the page: their types, and the colours that they share with other pictures.

use std::{fs, path::Path, process::Command};

use anyhow::Result;
use podplane_map::{AddressState, Palette};
use podplane_tests::{peers, programs::finish};

const UI: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/ui");

#[test]
fn the_types_of_the_modules_are_right() {
    let Some(typescript) = peers::node_module("typescript") else {
        return;
    };
    let mut tsc = Command::new("node");
    tsc.arg(typescript.join("bin/tsc"));
    tsc.args(["--project", UI, "--pretty", "false"]);
    assert_eq!(finish(&mut tsc).ok(), "");
}

/// The custom properties of a rule of the style sheet.
fn properties<'a>(style: &'a str, selector: &str) -> Vec<(&'a str, &'a str)> {
    let begin = format!("\n{selector} {{\n");
    let (_, rule) = style.split_once(&begin).expect("the rule");
    let (rule, _) = rule.split_once('}').expect("its end");
    let lines = rule.lines().filter_map(|line| {
        let (name, value) = line.trim().strip_prefix("--")?.split_once(": ")?;
        Some((name, value.strip_suffix(';')?))
    });
    lines.collect()
}

#[test]
fn states_have_the_colours_and_words_of_all_pictures() -> Result<()> {
    let assets = Path::new(UI).join("assets");
    let style = fs::read_to_string(assets.join("style.css"))?;
    let states = fs::read_to_string(assets.join("states.js"))?;
    let light = properties(&style, ":root");
    let dark = properties(&style, ":root[data-theme='dark']");
    let value = |rule: &[(&str, &str)], name: &str| {
        let found = rule.iter().find(|(property, _)| *property == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    for state in AddressState::ALL {
        let name = state.as_str();
        let of_light = value(&light, name);
        let want = Palette::Light.fill(state).to_string();
        assert_eq!(of_light.as_deref(), Some(want.as_str()), "{state}, light");
        // What is not set for the dark page is as on the light one.
        let of_dark = value(&dark, name).or(of_light);
        let want = Palette::Dark.fill(state).to_string();
        assert_eq!(of_dark.as_deref(), Some(want.as_str()), "{state}, dark");

        let (letter, is_in_use) = (state.letter(), state.is_in_use());
        let begin = format!("{{ name: '{name}', letter: '{letter}', meaning: ");
        let line = states.lines().find(|line| line.trim().starts_with(&begin));
        let line = line.unwrap_or_else(|| panic!("states.js has no {begin}"));
        assert!(line.contains(state.meaning()), "{line}");
        assert!(line.contains(&format!("isInUse: {is_in_use} ")), "{line}");
    }
    for (palette, rule) in [(Palette::Light, &light), (Palette::Dark, &dark)] {
        assert_eq!(value(rule, "page"), Some(palette.page().to_string()));
        assert_eq!(value(rule, "ink"), Some(palette.ink().to_string()));
    }
    Ok(())
}
