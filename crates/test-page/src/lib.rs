//! HTML pages as a browser's parser reads them, and what must hold for each page of podplane.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::{cell::RefCell, collections::BTreeSet, fmt, rc::Rc};

use html5ever::{ParseOpts, parse_document, tendril::TendrilSink as _};
use markup5ever_rcdom::{Handle, NodeData, RcDom};

/// Elements that load, run or send something.
const ACTIVE: [&str; 14] = [
    "script", "link", "iframe", "frame", "object", "embed", "form", "input", "button", "base",
    "audio", "video", "img", "image",
];
/// Attributes that name something else.
const REFERENCES: [&str; 9] = [
    "src",
    "srcset",
    "href",
    "xlink:href",
    "action",
    "formaction",
    "data",
    "poster",
    "ping",
];

/// A parsed page, or an element of it.
#[derive(Clone)]
pub struct Page {
    root: Handle,
    errors: Vec<String>,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Page").field(&self.name()).finish()
    }
}

impl Page {
    /// Parses a page.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let dom: RcDom = parse_document(RcDom::default(), ParseOpts::default()).one(text);
        let errors = dom.errors.borrow();
        Self {
            root: dom.document.clone(),
            errors: errors.iter().map(ToString::to_string).collect(),
        }
    }

    /// The elements of that name.
    pub fn all<'a>(&self, name: &'a str) -> impl Iterator<Item = Self> + use<'a> {
        let elements = self.elements().into_iter();
        elements.filter(move |element| element.name() == name)
    }

    /// The elements of a name within those of another.
    pub fn within<'a>(
        &self,
        outer: &'a str,
        inner: &'a str,
    ) -> impl Iterator<Item = Self> + use<'a> {
        self.all(outer).flat_map(move |outer| outer.all(inner))
    }

    /// The name of the element; empty for a page.
    #[must_use]
    pub fn name(&self) -> String {
        match &self.root.data {
            NodeData::Element { name, .. } => name.local.to_string(),
            _ => String::new(),
        }
    }

    fn attributes(&self) -> Vec<(String, String)> {
        let NodeData::Element { attrs, .. } = &self.root.data else {
            return Vec::new();
        };
        let attributes = attrs.borrow();
        let attributes = attributes.iter();
        attributes
            .map(|each| (each.name.local.to_string(), each.value.to_string()))
            .collect()
    }

    /// The value of an attribute.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<String> {
        let mut attributes = self.attributes().into_iter();
        attributes
            .find(|(each, _)| each == name)
            .map(|(_, value)| value)
    }

    /// The text of the element.
    #[must_use]
    pub fn text(&self) -> String {
        let text = Rc::new(RefCell::new(String::new()));
        walk(&self.root, &mut |node| {
            if let NodeData::Text { contents } = &node.data {
                text.borrow_mut().push_str(&contents.borrow());
            }
        });
        text.take()
    }

    fn elements(&self) -> Vec<Self> {
        let mut elements = Vec::new();
        walk(&self.root, &mut |node| {
            if matches!(node.data, NodeData::Element { .. }) {
                elements.push(Self {
                    root: node.clone(),
                    errors: Vec::new(),
                });
            }
        });
        elements
    }

    /// The names of all elements with those of their attributes.
    #[must_use]
    pub fn shapes(&self) -> BTreeSet<(String, Vec<String>)> {
        let elements = self.elements().into_iter();
        let shapes = elements.map(|element| {
            let attributes = element.attributes().into_iter().map(|(name, _)| name);
            (element.name(), attributes.collect())
        });
        shapes.collect()
    }

    /// The ids of all elements, in order.
    #[must_use]
    pub fn ids(&self) -> Vec<String> {
        let elements = self.elements().into_iter();
        elements
            .filter_map(|element| element.attribute("id"))
            .collect()
    }

    /// Checks that a page is well-formed and self-contained, that its ids are unique and its links
    /// lead to one of them, and that programs can read it aloud.
    ///
    /// # Panics
    ///
    /// If anything of this is not so.
    pub fn assert_sound(&self) {
        assert_eq!(self.errors, [] as [&str; 0], "errors of the parser");
        let mut ids = self.ids();
        ids.sort();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), count, "ids are unique");
        for element in self.elements() {
            let name = element.name();
            assert!(!ACTIVE.contains(&name.as_str()), "{name}");
            for (attribute, value) in element.attributes() {
                assert!(!attribute.starts_with("on"), "{name} {attribute}");
                if REFERENCES.contains(&attribute.as_str()) {
                    let id = value.strip_prefix('#');
                    let id = id.unwrap_or_else(|| panic!("{name} leads out: {value}"));
                    assert!(ids.iter().any(|known| known == id), "no id {id}");
                }
                if attribute.starts_with("aria-labelledby") {
                    for id in value.split(' ') {
                        assert!(ids.iter().any(|known| known == id), "no id {id}");
                    }
                }
            }
        }
        for style in self.all("style") {
            let style = style.text();
            assert!(!style.contains("@import"));
            let urls: Vec<_> = style.match_indices("url(").collect();
            assert!(urls.iter().all(|(at, _)| style[at + 4..].starts_with('#')));
        }
        self.assert_policy();
        self.assert_readable();
    }

    /// The policy is in force before anything that it could refuse.
    fn assert_policy(&self) {
        let metas = self.all("meta");
        let policies: Vec<_> = metas
            .filter(|meta| meta.attribute("http-equiv").is_some())
            .map(|meta| meta.attribute("content").expect("a policy"))
            .collect();
        let [policy] = policies.as_slice() else {
            panic!("{policies:?}")
        };
        let wanted = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
        assert!(policy.starts_with(wanted), "{policy}");
        let order: Vec<_> = self.elements().iter().map(Self::name).collect();
        let place = |name: &str| order.iter().position(|each| each == name);
        assert!(place("meta") < place("style"));
    }

    fn assert_readable(&self) {
        let language = self
            .all("html")
            .next()
            .and_then(|html| html.attribute("lang"));
        assert_eq!(language.as_deref(), Some("en"));
        assert_eq!(self.all("h1").count(), 1);
        for landmark in ["main", "header", "title"] {
            assert!(self.all(landmark).count() >= 1, "{landmark}");
        }
        let elements = self.elements();
        let levels = elements.iter().filter_map(|element| {
            let name = element.name();
            let level = name.strip_prefix('h')?;
            level.parse::<u8>().ok()
        });
        let levels: Vec<_> = levels.collect();
        for pair in levels.windows(2) {
            assert!(pair[1] <= pair[0] + 1, "a level is left out: {levels:?}");
        }
        for head in self.all("th") {
            assert!(
                head.attribute("scope").is_some()
                    || head.text().is_empty()
                    || self.is_markdown(&head)
            );
        }
        for scrolls in self
            .all("div")
            .filter(|div| div.attribute("tabindex").is_some())
        {
            assert!(
                scrolls.attribute("aria-label").is_some(),
                "a focus without a name"
            );
        }
    }

    /// Tables of Markdown have no scope, which a table with one row of heads does not need.
    fn is_markdown(&self, head: &Self) -> bool {
        let mut texts = self.all("div");
        texts.any(|div| {
            div.attribute("class").as_deref() == Some("text")
                && div.all("th").any(|each| Rc::ptr_eq(&each.root, &head.root))
        })
    }
}

fn walk(node: &Handle, visit: &mut impl FnMut(&Handle)) {
    visit(node);
    for child in node.children.borrow().iter() {
        walk(child, visit);
    }
}
