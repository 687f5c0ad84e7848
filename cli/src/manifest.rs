//! Reads objects from files: YAML or JSON, several documents in each, `List`s too, strictly
//! decoded.

use std::{
    fmt, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use podplane_api::Object;
use serde_json::Value;

use crate::{
    kind::{ResourceKind, with_kind},
    report::UnusableInput,
};

/// An object described by a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    /// Its place in a file.
    pub(crate) place: ManifestPosition,
    pub(crate) kind: ResourceKind,
    /// The object, which decodes as its kind; validation is the server's.
    pub(crate) object: Value,
}

/// `deploy/x.yaml: document 2`, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ManifestPosition {
    file: String,
    document: usize,
    item: Option<usize>,
}

impl fmt::Display for ManifestPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: document {}", self.file, self.document)?;
        match self.item {
            Some(item) => write!(f, ", item {item}"),
            None => Ok(()),
        }
    }
}

impl Manifest {
    /// `pod/web-0`
    pub(crate) fn display(&self) -> String {
        format!("{}/{}", self.kind, self.name())
    }

    /// `metadata.name`; may be empty.
    pub(crate) fn name(&self) -> &str {
        self.metadata("name")
    }

    /// The manifest's namespace, else `default`. Meaningless for cluster-scoped kinds.
    pub(crate) fn namespace<'a>(&'a self, default: &'a str) -> &'a str {
        match self.metadata("namespace") {
            "" => default,
            namespace => namespace,
        }
    }

    fn metadata(&self, field: &str) -> &str {
        self.object["metadata"][field].as_str().unwrap_or_default()
    }

    /// Decodes the object as its type. `K` is that of `self.kind`.
    pub(crate) fn decode<K: Object>(&self) -> anyhow::Result<K> {
        K::from_json(self.object.clone()).with_context(|| self.place.to_string())
    }
}

/// Reads all objects of the files and directories, in the order given; those of a directory by
/// name.
///
/// # Errors
///
/// The first file that cannot be read; else all invalid documents, at once.
pub(crate) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<Manifest>> {
    read_all(paths).map_err(|error| UnusableInput(error).into())
}

fn read_all(paths: &[PathBuf]) -> anyhow::Result<Vec<Manifest>> {
    let (mut manifests, mut wrong) = (Vec::new(), Vec::new());
    for path in paths {
        for file in files(path)? {
            let (name, text) = contents(&file)?;
            for manifest in parse(&name, &text) {
                match manifest {
                    Ok(manifest) => manifests.push(manifest),
                    Err(error) => wrong.push(error),
                }
            }
        }
    }
    anyhow::ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    anyhow::ensure!(!manifests.is_empty(), "no objects in {}", list(paths));
    Ok(manifests)
}

fn list(paths: &[PathBuf]) -> String {
    let each: Vec<_> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    each.join(", ")
}

/// The file itself, or the manifests in a directory, without subdirectories, as in kubectl.
fn files(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if path == Path::new("-") || !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let name_it = || format!("failed to read {}", path.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(path).with_context(name_it)? {
        let file = entry.with_context(name_it)?.path();
        let extension = file.extension().and_then(|extension| extension.to_str());
        if matches!(extension, Some("yaml" | "yml" | "json")) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// The name for messages, and the text.
fn contents(file: &Path) -> anyhow::Result<(String, String)> {
    if file == Path::new("-") {
        let mut text = String::new();
        io::stdin()
            .read_to_string(&mut text)
            .context("failed to read standard input")?;
        return Ok(("standard input".into(), text));
    }
    let name = file.display().to_string();
    let text = fs::read_to_string(file).with_context(|| format!("failed to read {name}"))?;
    Ok((name, text))
}

/// Parses the objects of one file. JSON is YAML.
fn parse(file: &str, text: &str) -> Vec<Result<Manifest, String>> {
    let options = serde_saphyr::options! {
        // The file is the user's own, and may be the dump of a large cluster. Aliases, which could
        // be a bomb, stay limited.
        budget: serde_saphyr::budget! {
            max_events: usize::MAX,
            max_nodes: usize::MAX,
            max_documents: usize::MAX,
            max_total_scalar_bytes: usize::MAX,
        },
        with_snippet: false,
    };
    let documents: Vec<Value> = match serde_saphyr::from_multiple_with_options(text, options) {
        Ok(documents) => documents,
        Err(error) => return vec![Err(format!("failed to read {file}: invalid YAML: {error}"))],
    };
    let numbered = documents.into_iter().zip(1..);
    let objects = numbered.flat_map(|(document, number)| {
        let place = ManifestPosition {
            file: file.into(),
            document: number,
            item: None,
        };
        items(place, document)
    });
    objects
        .map(|(place, object)| manifest(place, object))
        .collect()
}

/// The items of a `List`, or the document itself; none for an empty document.
fn items(place: ManifestPosition, mut document: Value) -> Vec<(ManifestPosition, Value)> {
    if document.is_null() {
        return Vec::new();
    }
    let is_list = document
        .get("kind")
        .and_then(Value::as_str)
        .is_some_and(|kind| kind.ends_with("List"));
    match document.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) if is_list => {
            let numbered = items.into_iter().zip(1..);
            let placed = numbered.map(|(object, number)| {
                let item = Some(number);
                (
                    ManifestPosition {
                        item,
                        ..place.clone()
                    },
                    object,
                )
            });
            placed.collect()
        }
        Some(items) => {
            document["items"] = items;
            vec![(place, document)]
        }
        None => vec![(place, document)],
    }
}

fn manifest(place: ManifestPosition, object: Value) -> Result<Manifest, String> {
    let text = |field: &str| {
        object
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    if api_version.is_empty() || kind.is_empty() {
        return Err(format!("{place}: want an object with apiVersion and kind"));
    }
    let Some(known) = ResourceKind::of_manifest(api_version, kind) else {
        return Err(format!(
            "{place}: unsupported kind {kind} ({api_version}){}",
            ResourceKind::served(kind)
        ));
    };
    // Converted to the type and back: null values count as absent.
    let object = with_kind!(known, K => {
        let object = K::from_json(object).map_err(|error| format!("{place}: {error}"))?;
        object.to_json().map_err(|error| format!("{place}: {error}"))?
    });
    let manifest = Manifest {
        place,
        kind: known,
        object,
    };
    if manifest.name().is_empty() && manifest.metadata("generateName").is_empty() {
        return Err(format!("{}: metadata.name: Required value", manifest.place));
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn errors(text: &str) -> Vec<String> {
        parse("x.yaml", text)
            .into_iter()
            .filter_map(Result::err)
            .collect()
    }

    #[test]
    fn reads_yaml_json_and_lists() {
        let text = "# a comment\napiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: kube-system}\n---\n\
            {\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{\"apiVersion\": \"v1\", \"kind\": \"Node\", \"metadata\": {\"name\": \"n\\/1\", \"labels\": null}}]}\n---\n";
        let manifests: Vec<_> = parse("x.yaml", text)
            .into_iter()
            .map(Result::unwrap)
            .collect();
        let named: Vec<_> = manifests
            .iter()
            .map(|manifest| {
                (
                    manifest.place.to_string(),
                    manifest.display(),
                    manifest.namespace("default"),
                )
            })
            .collect();
        assert_eq!(
            named,
            [
                ("x.yaml: document 1".into(), "pod/a".into(), "kube-system"),
                (
                    "x.yaml: document 2, item 1".into(),
                    "node/n/1".into(),
                    "default"
                )
            ]
        );
        assert_eq!(
            manifests[1].object,
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n/1"}})
        );
    }

    #[test]
    fn errors_name_the_file_and_document() {
        let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, imaage: i}]}";
        assert_eq!(
            errors(&format!(
                "apiVersion: v1\nkind: Node\nmetadata: {{name: m}}\n---\n{pod}\n---\n{pod}"
            )),
            [
                "x.yaml: document 2: unknown field \"spec.containers[0].imaage\"",
                "x.yaml: document 3: unknown field \"spec.containers[0].imaage\""
            ]
        );
        for (version, kind, remedy) in [
            ("apps/v2", "DaemonSet", "; its version here is apps/v1"),
            ("apps/v1", "DeamonSet", "; did you mean \"DaemonSet\"?"),
            (
                "v1",
                "Sheep",
                "; want one such as nodes, pods or deployments (`kubectl api-resources` lists all)",
            ),
        ] {
            let text = format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}");
            let want = format!("x.yaml: document 1: unsupported kind {kind} ({version}){remedy}");
            assert_eq!(errors(&text), [want]);
        }
        assert_eq!(
            errors("just text"),
            ["x.yaml: document 1: want an object with apiVersion and kind"]
        );
        assert_eq!(
            errors("apiVersion: v1\nkind: Pod\nmetadata: {}"),
            ["x.yaml: document 1: metadata.name: Required value"]
        );
        let [broken] = &errors("a: [1")[..] else {
            panic!()
        };
        assert!(
            broken.starts_with("failed to read x.yaml: invalid YAML: ") && broken.contains("line"),
            "{broken}"
        );
        assert_eq!(errors("a: 1\na: 2").len(), 1);
    }

    #[test]
    fn sample_has_six_pods() {
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/sample.yaml");
        let manifests = read(&[sample]).unwrap();
        assert_eq!(manifests.len(), 6);
        assert!(
            manifests
                .iter()
                .all(|manifest| manifest.kind == ResourceKind::Pod)
        );
    }

    #[test]
    fn reads_a_directory_in_order_of_names() {
        let dir = tempfile::tempdir().unwrap();
        for (file, name) in [("b.yaml", "b"), ("a.json", "a"), ("c.txt", "c")] {
            let text = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
            fs::write(dir.path().join(file), text.to_string()).unwrap();
        }
        let read = read(&[dir.path().into()]).unwrap();
        assert_eq!(
            read.iter().map(Manifest::name).collect::<Vec<_>>(),
            ["a", "b"]
        );
        let error = super::read(&[dir.path().join("none.yaml")]).unwrap_err();
        assert!(error.to_string().starts_with("failed to read "), "{error}");
    }
}
