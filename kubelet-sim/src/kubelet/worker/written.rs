//! The pod that a worker wrote last, which its watch may not have yet.

use std::sync::Arc;

use podplane_api::{Object as _, core::Pod};

/// The last write of a worker.
#[derive(Debug, Default)]
pub(super) struct LastWrite {
    /// The pod, and the revision that the watch had before it was written: until the watch has
    /// another one, this pod is the newer.
    pod: Option<(String, Arc<Pod>)>,
    /// The revision of the write: the watch event that brings it needs no sync.
    revision: Option<String>,
}

/// A write that has begun. Taken before the request is sent: the watch may bring the write, and a
/// later one by another client, sooner than its answer comes.
#[derive(Debug)]
pub(super) struct WriteBegun(Option<String>);

impl WriteBegun {
    /// A write while the watch has this pod.
    pub(super) fn at(watched: Option<&Pod>) -> Self {
        Self(watched.map(|pod| pod.resource_version().to_owned()))
    }
}

impl LastWrite {
    /// The write was answered with this pod.
    pub(super) fn answered(&mut self, begun: WriteBegun, written: Arc<Pod>) {
        self.revision = Some(written.resource_version().to_owned());
        self.pod = begun.0.map(|before| (before, written));
    }

    /// The newer one of the watch's pod and the written one.
    pub(super) fn or_newer(&mut self, watched: Arc<Pod>) -> Arc<Pod> {
        match &self.pod {
            Some((before, written)) if before == watched.resource_version() => written.clone(),
            _ => {
                self.pod = None;
                watched
            }
        }
    }

    /// Returns true if the pod is what was written.
    pub(super) fn is(&self, pod: &Pod) -> bool {
        self.revision.as_deref() == Some(pod.resource_version())
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::meta::ObjectMeta;

    use super::*;

    fn pod(revision: &str) -> Arc<Pod> {
        Arc::new(Pod {
            metadata: ObjectMeta {
                resource_version: Some(revision.into()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        })
    }

    #[test]
    fn the_written_pod_is_newer_until_the_watch_has_it() {
        let mut last = LastWrite::default();
        last.answered(WriteBegun::at(Some(&pod("1"))), pod("2"));
        assert_eq!(last.or_newer(pod("1")), pod("2"));
        assert_eq!(last.or_newer(pod("1")), pod("2"), "as long as it has not");
        assert!(last.is(&pod("2")));
        assert_eq!(last.or_newer(pod("2")), pod("2"));
        assert_eq!(last.or_newer(pod("3")), pod("3"));
    }

    #[test]
    fn a_deletion_that_overtakes_the_answer_is_newer() {
        let mut last = LastWrite::default();
        let begun = WriteBegun::at(Some(&pod("1")));
        // The watch has come to 3 when the answer comes.
        last.answered(begun, pod("2"));
        assert_eq!(last.or_newer(pod("3")), pod("3"));
        assert!(!last.is(&pod("3")));
    }
}
