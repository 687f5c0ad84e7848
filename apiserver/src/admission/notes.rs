//! Notes of rules on a request, besides their verdict: warnings for its sender, and annotations for
//! the audit log. A request also tells them its options.
//!
//! The notes belong to the task that serves the request: rules are asked deep inside of a write, by
//! code that is the same for writes without a request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value};

/// The longest warning that is kept, and the most bytes of all warnings: they travel in headers
/// (source: `k8s.io/apiserver/pkg/endpoints/filters/warning.go`).
const MAX_WARNING: usize = 256;
const MAX_WARNINGS: usize = 4096;

tokio::task_local! {
    static CURRENT: RequestNotes;
}

/// The notes of a request. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestNotes(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    warnings: Vec<String>,
    annotations: Vec<(String, String)>,
    options: Map<String, Value>,
}

impl RequestNotes {
    /// Notes of a request with these options, as the fields of `CreateOptions` and the like.
    pub(crate) fn with_options(options: Map<String, Value>) -> Self {
        Self(Arc::new(Mutex::new(Notes {
            options,
            ..Notes::default()
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a request with these notes.
    pub(crate) async fn scope<F: Future>(&self, request: F) -> F::Output {
        CURRENT.scope(self.clone(), request).await
    }

    fn current() -> Option<Self> {
        CURRENT.try_with(Self::clone).ok()
    }

    /// Warns the sender of the request that is served now.
    pub(super) fn warn(warning: &str) {
        if let Some(notes) = Self::current() {
            let warnings = &mut notes.lock().warnings;
            if !warnings.iter().any(|known| known == warning) {
                warnings.push(warning.to_owned());
            }
        }
    }

    /// Annotates the request that is served now in the audit log.
    pub(super) fn annotate(key: String, value: String) {
        if let Some(notes) = Self::current() {
            notes.lock().annotations.push((key, value));
        }
    }

    /// The options of the request that is served now.
    pub(super) fn options() -> Map<String, Value> {
        let notes = Self::current();
        notes.map_or_else(Map::new, |notes| notes.lock().options.clone())
    }

    /// Takes the warnings, cut to what fits in headers.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        let warnings = std::mem::take(&mut self.lock().warnings);
        let total: usize = warnings.iter().map(String::len).sum();
        if total <= MAX_WARNINGS {
            return warnings;
        }
        let mut left = MAX_WARNINGS;
        let short = warnings.into_iter().map(|mut warning| {
            warning.truncate(warning.floor_char_boundary(MAX_WARNING));
            warning
        });
        let fits = |warning: &String| {
            left = left.saturating_sub(warning.len());
            left > 0
        };
        short.take_while(fits).collect()
    }

    /// Takes the annotations for the audit log.
    pub(crate) fn take_annotations(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.lock().annotations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn notes_belong_to_the_request_that_is_served() {
        RequestNotes::warn("nobody hears this");
        let notes = RequestNotes::default();
        let request = async {
            RequestNotes::warn("a");
            RequestNotes::warn("a");
            RequestNotes::annotate("k".into(), "v".into());
        };
        notes.scope(request).await;
        assert_eq!(notes.take_warnings(), ["a"]);
        assert_eq!(notes.take_annotations(), [("k".into(), "v".into())]);
    }

    #[tokio::test]
    async fn many_warnings_are_cut() {
        let notes = RequestNotes::default();
        let request = async {
            for number in 0..100 {
                RequestNotes::warn(&format!("{number:0>1000}"));
            }
        };
        notes.scope(request).await;
        let warnings = notes.take_warnings();
        assert_eq!(warnings.len(), 15);
        assert!(warnings.iter().all(|warning| warning.len() == MAX_WARNING));
    }
}
