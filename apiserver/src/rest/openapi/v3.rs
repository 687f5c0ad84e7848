//! OpenAPI v3: a document for each version of a group, with the paths of its kinds and the
//! definitions that they refer to.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use serde_json::{Map, Value, json};

use super::{JSON, OpenApiDocument, definitions::Definitions, paths};
use crate::{
    rest::{
        answer::{self, RestAnswer},
        resource::Resource,
    },
    served::KindList,
};

/// All documents, by their paths below `/openapi/v3/`.
#[derive(Debug, Default)]
pub(in crate::rest) struct OpenApiV3 {
    own: OnceLock<OpenApiDocuments>,
    /// Those of custom kinds, with the generation of the served kinds.
    custom: Mutex<Option<(u64, OpenApiDocuments)>>,
}

/// Documents by their paths.
type OpenApiDocuments = BTreeMap<String, Arc<OpenApiDocument>>;

impl OpenApiV3 {
    fn own(&self, kinds: &KindList) -> &OpenApiDocuments {
        self.own.get_or_init(|| documents(kinds.own()))
    }

    fn custom(&self, kinds: &KindList) -> OpenApiDocuments {
        if kinds.custom().is_empty() {
            return OpenApiDocuments::new();
        }
        // The documents are whole whenever the lock is free.
        let mut made = self.custom.lock().unwrap_or_else(PoisonError::into_inner);
        match &*made {
            Some((generation, documents)) if *generation == kinds.generation => documents.clone(),
            _ => {
                let documents = documents(kinds.custom());
                *made = Some((kinds.generation, documents.clone()));
                documents
            }
        }
    }

    /// The index: the URL of the document of each version.
    pub(in crate::rest) fn index(&self, kinds: &KindList, headers: &HeaderMap) -> RestAnswer {
        let mut all = self.custom(kinds);
        all.extend(self.own(kinds).clone());
        let paths: Map<_, _> = all
            .iter()
            .map(|(path, document)| {
                let url = format!("/openapi/v3/{path}?hash={}", document.hash);
                (path.clone(), json!({"serverRelativeURL": url}))
            })
            .collect();
        let body = json!({"paths": paths}).to_string().into();
        answer::unchanged(headers, JSON, body, None)
    }

    /// The document of a version. One that is requested by its hash may be cached forever.
    pub(in crate::rest) fn document(
        &self,
        kinds: &KindList,
        path: &str,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> RestAnswer {
        let own = self.own(kinds).get(path).map(Arc::clone);
        let Some(document) = own.or_else(|| self.custom(kinds).remove(path)) else {
            return answer::no_such_path();
        };
        let OpenApiDocument { hash, body } = &*document;
        let asked = uri.query().and_then(|query| query.strip_prefix("hash="));
        if let Some(asked) = asked
            && asked != hash
        {
            let url = format!("/openapi/v3/{path}?hash={hash}");
            let mut moved = answer::text(StatusCode::MOVED_PERMANENTLY, "");
            if let Ok(url) = HeaderValue::from_str(&url) {
                moved.headers_mut().insert(header::LOCATION, url);
            }
            return moved;
        }
        let mut answer = answer::unchanged(headers, JSON, body.clone(), Some(hash));
        if asked.is_some() {
            let forever = HeaderValue::from_static("public, immutable");
            answer.headers_mut().insert(header::CACHE_CONTROL, forever);
        }
        answer
    }
}

fn documents(kinds: &[Arc<dyn Resource>]) -> OpenApiDocuments {
    let mut definitions = Definitions::default();
    definitions.add_own();
    definitions.add_custom(kinds);
    let mut versions = BTreeMap::<_, Map<_, _>>::new();
    for kind in kinds {
        let paths = versions.entry(paths::of_version(kind.names()));
        paths::add(&definitions, &**kind, paths.or_default());
    }
    let documents = versions.into_iter().map(|(version, paths)| {
        let paths = Value::Object(paths);
        let document = json!({
            "openapi": "3.0.0",
            "info": super::info(),
            "components": {"schemas": definitions.reached(&paths)},
            "paths": paths,
        });
        let document = OpenApiDocument::new(document.to_string());
        (version, Arc::new(document))
    });
    documents.collect()
}
