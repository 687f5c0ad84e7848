//! When an image is pulled, and how long a failed pull delays the next one.

use std::{collections::BTreeMap, time::Duration};

use podplane_api::{
    core::Container,
    jiff::{SignedDuration, Timestamp},
};

/// The delay after the first failed pull of an image; each further one doubles it.
const FIRST_DELAY: Duration = Duration::from_secs(10);
/// The longest delay.
const MAX_DELAY: Duration = Duration::from_secs(300);

/// `imagePullPolicy` of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullPolicy {
    /// Pull before each start.
    Always,
    /// Pull if the runtime does not have the image.
    IfNotPresent,
    /// Never pull.
    Never,
}

/// The container's policy; by default `Always` for the tag `latest`, else `IfNotPresent`, as
/// Kubernetes' API server sets it.
pub(crate) fn pull_policy(container: &Container) -> PullPolicy {
    match container.image_pull_policy.as_deref() {
        Some("Always") => PullPolicy::Always,
        Some("IfNotPresent") => PullPolicy::IfNotPresent,
        Some("Never") => PullPolicy::Never,
        _ => match has_latest_tag(container.image.as_deref().unwrap_or_default()) {
            true => PullPolicy::Always,
            false => PullPolicy::IfNotPresent,
        },
    }
}

fn has_latest_tag(reference: &str) -> bool {
    let name = reference
        .rsplit_once('/')
        .map_or(reference, |(_, name)| name);
    match name.split_once(':') {
        _ if reference.contains('@') => false,
        Some((_, tag)) => tag == "latest",
        None => true,
    }
}

/// The failed pulls of a pod's images, by reference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FailedPulls(BTreeMap<String, FailedPull>);

/// The last failed pull of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedPull {
    delay: Duration,
    /// The time of the next pull.
    pub(crate) until: Timestamp,
    /// The runtime's error.
    pub(crate) error: String,
}

impl FailedPulls {
    /// The last failed pull of the image, if the next one has to wait at `now`.
    pub(crate) fn delaying(&self, image: &str, now: Timestamp) -> Option<&FailedPull> {
        self.0.get(image).filter(|failed| now < failed.until)
    }

    /// Notes a failed pull. Returns the time of the next one.
    pub(crate) fn note_failure(&mut self, image: &str, error: String, now: Timestamp) -> Timestamp {
        let before = self.0.get(image);
        let delay = before.map_or(FIRST_DELAY, |failed| {
            failed.delay.saturating_mul(2).min(MAX_DELAY)
        });
        let wait = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
        let until = now.saturating_add(wait).unwrap_or(Timestamp::MAX);
        let failed = FailedPull {
            delay,
            until,
            error,
        };
        self.0.insert(image.to_owned(), failed);
        until
    }

    /// Forgets the failures of an image, which is there now.
    pub(crate) fn forget(&mut self, image: &str) {
        self.0.remove(image);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_follows_from_the_tag() {
        let of = |image: &str, policy: Option<&str>| {
            pull_policy(&Container {
                image: Some(image.into()),
                image_pull_policy: policy.map(Into::into),
                ..Container::default()
            })
        };
        assert_eq!(of("busybox", None), PullPolicy::Always);
        assert_eq!(of("host:5000/busybox", None), PullPolicy::Always);
        assert_eq!(of("host:5000/busybox:latest", None), PullPolicy::Always);
        assert_eq!(of("busybox:1", None), PullPolicy::IfNotPresent);
        assert_eq!(of("busybox@sha256:00", None), PullPolicy::IfNotPresent);
        assert_eq!(of("busybox", Some("Never")), PullPolicy::Never);
    }

    #[test]
    fn failed_pulls_delay_the_next_one() {
        let mut failed = FailedPulls::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(failed.delaying("a", at(0)), None);
        assert_eq!(failed.note_failure("a", "no".into(), at(0)), at(10));
        assert!(failed.delaying("a", at(9)).is_some());
        assert_eq!(failed.delaying("a", at(10)), None);
        assert_eq!(failed.note_failure("a", "no".into(), at(10)), at(30));
        for _ in 0..8 {
            failed.note_failure("a", "no".into(), at(100));
        }
        assert_eq!(failed.note_failure("a", "no".into(), at(100)), at(400));
        failed.forget("a");
        assert_eq!(failed.note_failure("a", "no".into(), at(0)), at(10));
    }
}
