//! The end of pods by annotation. No container runs, so nothing of a pod ends by itself; a Job's
//! pods must. Two annotations say when and how.
//!
//! The CRI server knows them for single containers, too: there a container has a life of its own.

use std::{collections::BTreeMap, time::Duration};

use jiff::SignedDuration;

use crate::{
    core::Pod,
    validation::{ErrorList, FieldPath},
};

/// The annotation with the time that the pod's containers run, such as `2s`; they end after it,
/// each time they were started. `0s` ends them immediately.
pub const EXIT_AFTER: &str = "podplane.io/exit-after";
/// The annotation with the code that they exit with, from 0 to 255. The default is 0.
pub const EXIT_CODE: &str = "podplane.io/exit-code";

/// The prefix of [`EXIT_AFTER`] for one container: `exit-after.podplane.io/NAME`.
pub const CONTAINER_EXIT_AFTER: &str = "exit-after.podplane.io/";
/// The prefix of [`EXIT_CODE`] for one container: `exit-code.podplane.io/NAME`.
pub const CONTAINER_EXIT_CODE: &str = "exit-code.podplane.io/";

/// An annotation has an invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {annotation}: invalid value {value:?}: {hint}")]
pub struct InvalidExit {
    annotation: String,
    value: String,
    hint: &'static str,
}

/// The end of a pod's containers that its annotations ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContainerExit {
    /// The time from the start of the containers to their end.
    pub after: Duration,
    /// Their exit code.
    pub code: i32,
}

/// The end that the pod's annotations ask for. `None` if they ask for none, or are invalid, which
/// the API server does not let in.
pub fn container_exit(pod: &Pod) -> Option<ContainerExit> {
    let annotations = pod.metadata.annotations.as_ref()?;
    let after = parse_after(annotations.get(EXIT_AFTER)?)?;
    let code = match annotations.get(EXIT_CODE) {
        None => 0,
        Some(code) => parse_code(code)?,
    };
    Some(ContainerExit { after, code })
}

/// The end of one container that the annotations of its pod ask for. An annotation for the container
/// comes before the one for all of them.
///
/// # Errors
///
/// [`InvalidExit`].
pub fn exit_of_container(
    annotations: &BTreeMap<String, String>,
    container: &str,
) -> Result<Option<ContainerExit>, InvalidExit> {
    let find = |prefix: &str, of_all: &'static str| {
        let own = annotations.get_key_value(&format!("{prefix}{container}"));
        own.or_else(|| annotations.get_key_value(of_all))
    };
    let Some(after) = find(CONTAINER_EXIT_AFTER, EXIT_AFTER) else {
        return Ok(None);
    };
    let invalid = |(annotation, value): (&String, &String), hint| InvalidExit {
        annotation: annotation.clone(),
        value: value.clone(),
        hint,
    };
    let code = match find(CONTAINER_EXIT_CODE, EXIT_CODE) {
        None => 0,
        Some(code) => parse_code(code.1).ok_or_else(|| invalid(code, CODE_HINT))?,
    };
    let after = parse_after(after.1).ok_or_else(|| invalid(after, AFTER_HINT))?;
    Ok(Some(ContainerExit { after, code }))
}

const AFTER_HINT: &str = "must be a duration of 0 or more, such as 2s or 1m30s";
const CODE_HINT: &str = "must be an exit code from 0 to 255";

fn parse_after(text: &str) -> Option<Duration> {
    let after: SignedDuration = text.parse().ok()?;
    after.try_into().ok()
}

fn parse_code(text: &str) -> Option<i32> {
    text.parse::<u8>().ok().map(i32::from)
}

/// Validates the annotations of a pod or of a pod's template.
pub(crate) fn validate(
    path: &FieldPath,
    annotations: Option<&BTreeMap<String, String>>,
    errors: &mut ErrorList,
) {
    let of = |key: &str| annotations.and_then(|annotations| annotations.get(key));
    if let Some(after) = of(EXIT_AFTER).filter(|after| parse_after(after).is_none()) {
        errors.invalid(&path.key(EXIT_AFTER), after.as_str(), AFTER_HINT);
    }
    if let Some(code) = of(EXIT_CODE).filter(|code| parse_code(code).is_none()) {
        errors.invalid(&path.key(EXIT_CODE), code.as_str(), CODE_HINT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::Validate as _;

    fn pod(annotations: &[(&str, &str)]) -> Pod {
        let mut pod = Pod::default();
        let annotations = annotations
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        pod.metadata.annotations = Some(annotations.collect());
        pod
    }

    #[test]
    fn reads_the_annotations() {
        let exit = |millis, code| {
            let after = Duration::from_millis(millis);
            Some(ContainerExit { after, code })
        };
        for (annotations, want) in [
            (&[][..], None),
            (&[(EXIT_CODE, "1")], None),
            (&[(EXIT_AFTER, "2s")], exit(2000, 0)),
            (&[(EXIT_AFTER, "0s"), (EXIT_CODE, "255")], exit(0, 255)),
            (&[(EXIT_AFTER, "1m30s")], exit(90_000, 0)),
            (&[(EXIT_AFTER, "250ms"), (EXIT_CODE, "42")], exit(250, 42)),
        ] {
            assert_eq!(container_exit(&pod(annotations)), want, "{annotations:?}");
        }
    }

    #[test]
    fn annotations_of_a_container_come_before_those_of_all() {
        let of = |annotations: &[(&str, &str)], container| {
            let annotations = pod(annotations).metadata.annotations.unwrap();
            exit_of_container(&annotations, container)
        };
        let exit = |seconds, code| {
            let after = Duration::from_secs(seconds);
            Ok(Some(ContainerExit { after, code }))
        };
        let both = [
            (EXIT_AFTER, "9s"),
            (EXIT_CODE, "3"),
            ("exit-after.podplane.io/init", "1s"),
            ("exit-code.podplane.io/init", "0"),
        ];
        assert_eq!(of(&both, "init"), exit(1, 0));
        assert_eq!(of(&both, "main"), exit(9, 3));
        assert_eq!(of(&both[2..], "main"), Ok(None));
        let bad = [("exit-after.podplane.io/a", "soon")];
        let error = of(&bad, "a").unwrap_err().to_string();
        assert!(error.contains("exit-after.podplane.io/a") && error.contains("\"soon\""));
        assert_eq!(of(&bad, "b"), Ok(None));
    }

    #[test]
    fn refuses_other_values() {
        for (key, value) in [
            (EXIT_AFTER, "soon"),
            (EXIT_AFTER, "-1s"),
            (EXIT_AFTER, "5"),
            (EXIT_CODE, "256"),
            (EXIT_CODE, "-1"),
            (EXIT_CODE, ""),
        ] {
            let pod = pod(&[(key, value)]);
            let errors = format!("{:?}", pod.validate());
            assert!(errors.contains(key), "{key}={value}: {errors}");
        }
    }
}
