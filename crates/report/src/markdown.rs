//! Markdown of our own, with names of others in it.

use maud::{Markup, PreEscaped};
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd, html};

/// Renders Markdown. HTML in it is shown as text, and of links and pictures the text is kept: a
/// name may look like one. Headings begin at the third level, below that of a section.
pub(crate) fn markup(text: &str) -> Markup {
    let events = Parser::new_ext(text, Options::ENABLE_TABLES);
    let mut rendered = String::with_capacity(text.len() * 2);
    html::push_html(&mut rendered, events.flat_map(safe));
    PreEscaped(rendered)
}

/// The events that stand for one of the parser, in order.
fn safe(event: Event<'_>) -> Vec<Event<'_>> {
    match event {
        Event::Html(text) | Event::InlineHtml(text) => vec![Event::Text(text)],
        Event::Start(Tag::Link { .. } | Tag::Image { .. })
        | Event::End(TagEnd::Link | TagEnd::Image)
        | Event::Start(Tag::HtmlBlock)
        | Event::End(TagEnd::HtmlBlock) => Vec::new(),
        Event::Start(Tag::Heading { level, .. }) => vec![Event::Start(Tag::Heading {
            level: lowered(level),
            id: None,
            classes: Vec::new(),
            attrs: Vec::new(),
        })],
        Event::End(TagEnd::Heading(level)) => vec![Event::End(TagEnd::Heading(lowered(level)))],
        table @ Event::Start(Tag::Table(_)) => {
            let begin =
                "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table\">";
            vec![Event::Html(begin.into()), table]
        }
        table @ Event::End(TagEnd::Table) => vec![table, Event::Html("</div>\n".into())],
        other => vec![other],
    }
}

/// The level in a section: the first of the text is the third of the page.
const fn lowered(level: HeadingLevel) -> HeadingLevel {
    match level {
        HeadingLevel::H1 => HeadingLevel::H3,
        HeadingLevel::H2 => HeadingLevel::H4,
        HeadingLevel::H3 => HeadingLevel::H5,
        HeadingLevel::H4 | HeadingLevel::H5 | HeadingLevel::H6 => HeadingLevel::H6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_html_and_links_as_text() {
        let text = "# Steps\n\n<script>alert(1)</script>\n\n- a <img src=x> [b](https://x.example) ![c](d)\n\n| n |\n|---|\n| `x<y` |\n";
        let shown = markup(text).into_string();
        for forbidden in ["<script", "<img", "<a ", "https://"] {
            assert!(!shown.contains(forbidden), "{forbidden}: {shown}");
        }
        assert!(shown.contains("<h3>Steps</h3>"), "{shown}");
        assert!(shown.contains("&lt;script&gt;"), "{shown}");
        assert!(shown.contains("a &lt;img src=x&gt; b c"), "{shown}");
        assert!(shown.contains("<code>x&lt;y</code>"), "{shown}");
    }
}
