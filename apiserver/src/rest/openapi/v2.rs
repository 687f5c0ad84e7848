//! OpenAPI v2: one document of all kinds, in JSON or protobuf. Helm, `kubectl explain --output
//! plaintext-openapiv2` and older kubectls read it.
//!
//! [`convert`] makes the document from that of version 3, and [`message`] its protobuf form.

mod convert;
mod message;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use http::HeaderMap;
use serde_json::{Map, Value};

use super::{JSON, OpenApiDocument, definitions::Definitions, paths};
use crate::{
    rest::{
        answer::{self, RestAnswer},
        resource::Resource,
    },
    served::KindList,
};

/// The media types of protobuf. Clients request the first, too; answers have the second, because
/// `@` is not allowed in a media type.
const PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
];

/// The document, in the forms that were requested.
#[derive(Debug, Default)]
pub(in crate::rest) struct OpenApiV2(Mutex<MadeForms>);

#[derive(Debug, Default)]
struct MadeForms {
    /// The generation of the served kinds that the document has.
    generation: u64,
    forms: BTreeMap<DocumentForm, Arc<OpenApiDocument>>,
}

/// A form of the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DocumentForm {
    Json,
    Protobuf,
}

impl DocumentForm {
    /// The form that a client prefers; `None` if it accepts neither.
    fn accepted(headers: &HeaderMap) -> Option<Self> {
        let ranges = answer::ranges(headers);
        let of_range = |range: &&str| {
            let media = range.split(';').next().unwrap_or_default().trim();
            if answer::JSON_RANGES.contains(&media) {
                return Some(Self::Json);
            }
            PROTOBUF.contains(&media).then_some(Self::Protobuf)
        };
        match ranges.is_empty() {
            true => Some(Self::Json),
            false => ranges.iter().find_map(of_range),
        }
    }

    fn media_type(self) -> &'static str {
        match self {
            Self::Json => JSON,
            Self::Protobuf => PROTOBUF[1],
        }
    }
}

impl OpenApiV2 {
    /// The answer to a request. It may have to parse and convert all definitions: call it on a
    /// renderer thread.
    pub(in crate::rest) fn answer(&self, kinds: &KindList, headers: &HeaderMap) -> RestAnswer {
        let Some(form) = DocumentForm::accepted(headers) else {
            return answer::not_acceptable(&[JSON, PROTOBUF[1]]);
        };
        let document = self.document(kinds, form);
        let OpenApiDocument { hash, body } = &*document;
        answer::unchanged(headers, form.media_type(), body.clone(), Some(hash))
    }

    fn document(&self, kinds: &KindList, form: DocumentForm) -> Arc<OpenApiDocument> {
        // The forms are whole whenever the lock is free.
        let mut made = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if made.generation != kinds.generation {
            *made = MadeForms {
                generation: kinds.generation,
                forms: BTreeMap::new(),
            };
        }
        let document = made.forms.entry(form).or_insert_with(|| {
            let document = document(kinds.own(), kinds.custom());
            Arc::new(match form {
                DocumentForm::Json => OpenApiDocument::new(document.to_string()),
                DocumentForm::Protobuf => OpenApiDocument::new(message::encode(&document)),
            })
        });
        Arc::clone(document)
    }
}

/// The document of these kinds. Where names are equal, the program's own take the place of custom
/// ones.
fn document(own: &[Arc<dyn Resource>], custom: &[Arc<dyn Resource>]) -> Value {
    let mut definitions = Definitions::default();
    definitions.add_custom(custom);
    definitions.add_own();
    let mut paths = Map::new();
    for kind in custom.iter().chain(own) {
        paths::add(&definitions, &**kind, &mut paths);
    }
    let mut paths = Value::Object(paths);
    let mut definitions = definitions.reached(&paths);
    convert::paths(&mut paths);
    definitions.values_mut().for_each(convert::definition);
    let parts = [
        ("swagger", "2.0".into()),
        ("info", super::info()),
        ("paths", paths),
        ("definitions", definitions.into()),
    ];
    let parts = parts.map(|(name, part)| (name.to_owned(), part));
    Value::Object(Map::from_iter(parts))
}
