//! The page of a report.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use podplane_api::printable;

use crate::{
    chart,
    document::{Block, Count, Fact, Report, Section},
    ids::Ids,
    markdown,
    table::anchor,
};

const STYLE: &str = include_str!("page.css");

/// Nothing is loaded, sent or run.
const SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; \
     base-uri 'none'; form-action 'none'";

/// From this number of headings on, a page has a table of contents.
const CONTENTS: usize = 3;

impl Report {
    /// The page.
    #[must_use]
    pub fn html(mut self) -> String {
        Ids::new().settle(&mut self);
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta http-equiv="Content-Security-Policy" content=(SECURITY_POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    meta name="referrer" content="no-referrer";
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) (PreEscaped(chart::style())) }
                }
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header #top {
                        h1 { (self.title) }
                        (counts(&self.counts))
                        (facts(&self.facts))
                    }
                    (contents(&self.sections))
                    main #main { @for one in &self.sections { (section(one, 2)) } }
                }
            }
        };
        // Whatever a name has in it, nothing here controls a terminal or the direction of text.
        printable::lines(&page.into_string()).into_owned()
    }
}

fn counts(counts: &[Count]) -> Markup {
    html! {
        @if !counts.is_empty() {
            ul.counts { @for Count { tone, number, of } in counts {
                li class=(tone.class()) { strong { (number) } " " (of) }
            } }
        }
    }
}

fn facts(facts: &[Fact]) -> Markup {
    html! {
        @if !facts.is_empty() {
            dl { @for Fact { name, values } in facts {
                div { dt { (name) } @for value in values { dd { (value) } } }
            } }
        }
    }
}

fn contents(sections: &[Section]) -> Markup {
    let inner = sections.iter().map(|one| subsections(one).count());
    let headings = sections.len() + inner.sum::<usize>();
    html! {
        @if headings >= CONTENTS {
            nav aria-labelledby="contents" {
                h2 #contents { "Contents" }
                ol { @for one in sections { li {
                    (link(one))
                    @if subsections(one).next().is_some() {
                        ol { @for inner in subsections(one) { li { (link(inner)) } } }
                    }
                } } }
            }
        }
    }
}

fn link(section: &Section) -> Markup {
    let Section {
        id, title, mark, ..
    } = section;
    html! {
        a href={ "#" (id) } { (title) }
        @if let Some((tone, word)) = mark { " " span class={ "mark " (tone.class()) } { (word) } }
    }
}

fn subsections(section: &Section) -> impl Iterator<Item = &Section> {
    section.blocks.iter().filter_map(|block| match block {
        Block::Section(inner) => Some(inner),
        _ => None,
    })
}

fn section(section: &Section, level: u8) -> Markup {
    let Section {
        id,
        title,
        mark,
        blocks,
    } = section;
    let heading = html! {
        (title)
        @if let Some((tone, word)) = mark { " " span class={ "mark " (tone.class()) } { (word) } }
        " " (anchor(id, title))
    };
    html! {
        section id=(id) {
            @match level {
                2 => h2 { (heading) },
                3 => h3 { (heading) },
                _ => h4 { (heading) },
            }
            @for one in blocks { (block(one, level)) }
        }
    }
}

fn block(block: &Block, level: u8) -> Markup {
    html! {
        @match block {
            Block::Paragraph(text) => p { (text) },
            Block::List(items) => ul { @for item in items { li { (item) } } },
            Block::Facts(list) => (facts(list)),
            Block::Notice(tone, text) => p class={ "notice " (tone.class()) } { (text) },
            Block::Preformatted(text) => pre tabindex="0" { (text) },
            Block::Markdown(text) => div.text { (markdown::markup(text)) },
            Block::Table(table) => (table.markup()),
            Block::Figure(figure) => (figure.markup()),
            Block::Section(inner) => (section(inner, level + 1)),
            Block::Folded { summary, is_open, blocks } => details open[*is_open] {
                summary { (summary) }
                @for one in blocks { (self::block(one, level)) }
            },
        }
    }
}
