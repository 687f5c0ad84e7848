//! Lists in the forms of the REST API. Long ones are rendered in parts, by [`Renderers`].

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use podplane_proto::{error::ApiError, wire::ListMeta};
use serde_json::{Value, json};

use super::{
    answer::{self, ObjectForm, RestAnswer},
    resource::{Documents, ListedItem, Resource},
    table::{self, RowInclusion, TableForm},
};
use crate::{
    error,
    renderers::{PART, Parts, Renderers},
};

/// A list in the form that a client wants.
pub(super) struct ListRendering {
    pub(super) resource: Arc<dyn Resource>,
    pub(super) form: ObjectForm,
    pub(super) include: RowInclusion,
}

impl ListRendering {
    /// Answers with the list: at once if it is short, else as a stream of its parts.
    pub(super) async fn answer(
        self,
        documents: Documents,
        renderers: &Renderers,
    ) -> Result<RestAnswer, ApiError> {
        let Documents { metadata, items } = documents;
        if items.len() <= PART {
            let items = self.elements(items)?;
            let list = self.list(&metadata, items);
            return Ok(self.form.answer(StatusCode::OK, &list));
        }
        if self.form == ObjectForm::Protobuf {
            return self.message(metadata, items, renderers).await;
        }
        let list = self.list(&metadata, Vec::new());
        let (head, tail) = around(list, self.elements_field());
        let parts = ListParts {
            rendering: self,
            items: items.into_iter(),
            head: Some(head),
            tail: Some(tail),
        };
        let all = renderers.stream(parts).await?;
        let body = axum::body::Body::from_stream(all);
        Ok(answer::body(StatusCode::OK, "application/json", body))
    }

    /// A long list in protobuf, which has its length first: objects in parts, and the message as a
    /// whole.
    async fn message(
        self,
        metadata: ListMeta,
        items: Vec<ListedItem>,
        renderers: &Renderers,
    ) -> Result<RestAnswer, ApiError> {
        let mut items = items.into_iter();
        let mut documents = Vec::with_capacity(items.len());
        while items.len() > 0 {
            let part: Vec<_> = items.by_ref().take(PART).collect();
            let rendered = renderers.run(move || {
                let each = part.into_iter().map(ListedItem::document);
                each.collect::<Result<Vec<_>, _>>()
            });
            documents.extend(rendered.await??);
        }
        let list = self.list(&metadata, documents);
        let form = self.form;
        renderers
            .run(move || form.answer(StatusCode::OK, &list))
            .await
    }

    /// The name of the field with the elements.
    fn elements_field(&self) -> &'static str {
        match self.form {
            ObjectForm::Table(_) => "rows",
            ObjectForm::Whole | ObjectForm::Protobuf | ObjectForm::Metadata(_) => "items",
        }
    }

    /// The elements of a list: objects, their metadata or their rows.
    fn elements(
        &self,
        items: impl IntoIterator<Item = ListedItem>,
    ) -> Result<Vec<Value>, ApiError> {
        let documents = items.into_iter().map(ListedItem::document);
        match self.form {
            ObjectForm::Whole | ObjectForm::Protobuf => documents.collect(),
            ObjectForm::Metadata(version) => documents
                .map(|document| Ok(table::metadata_only(&document?, version)))
                .collect(),
            ObjectForm::Table(version) => {
                let form = TableForm {
                    version,
                    include: self.include,
                };
                form.rows(self.resource.as_ref(), documents)
            }
        }
    }

    fn list(&self, metadata: &ListMeta, elements: Vec<Value>) -> Value {
        let names = self.resource.names();
        match self.form {
            ObjectForm::Table(version) => {
                let form = TableForm {
                    version,
                    include: self.include,
                };
                form.table(self.resource.as_ref(), metadata, elements)
            }
            ObjectForm::Metadata(version) => {
                json!({"kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": table::list_meta(metadata), "items": elements})
            }
            ObjectForm::Whole | ObjectForm::Protobuf => {
                json!({"kind": names.list_kind, "apiVersion": names.api_version(), "metadata": table::list_meta(metadata), "items": elements})
            }
        }
    }
}

/// The text of a document before and after the elements of its field `elements`.
fn around(document: Value, elements: &str) -> (String, String) {
    let mut tail = String::from("]");
    if let Value::Object(fields) = document {
        for (name, value) in fields {
            if name != elements {
                let name = Value::from(name).to_string();
                tail.extend([",", &name, ":", &value.to_string()]);
            }
        }
    }
    tail.push('}');
    (format!("{{\"{elements}\":["), tail)
}

/// The rest of a list.
struct ListParts {
    rendering: ListRendering,
    items: std::vec::IntoIter<ListedItem>,
    /// The text before the first element; `None` once it was rendered.
    head: Option<String>,
    /// The text after the last element; `None` once it was rendered.
    tail: Option<String>,
}

impl Parts for ListParts {
    fn next(&mut self) -> Option<Result<Bytes, ApiError>> {
        self.tail.is_some().then(|| self.part())
    }
}

impl ListParts {
    fn part(&mut self) -> Result<Bytes, ApiError> {
        let head = self.head.take();
        let mut separator = match &head {
            Some(_) => "",
            None => ",",
        };
        let mut text = head.unwrap_or_default().into_bytes();
        let items = self.items.by_ref().take(PART);
        for element in self.rendering.elements(items)? {
            text.extend_from_slice(separator.as_bytes());
            separator = ",";
            serde_json::to_writer(&mut text, &element).map_err(|error| error::internal(&error))?;
        }
        if self.items.len() == 0 {
            text.extend_from_slice(self.tail.take().unwrap_or_default().as_bytes());
        }
        Ok(text.into())
    }
}
