//! Reads scenarios, and reports all mistakes that can be found before a run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path as FilePath, PathBuf},
};

use podplane_api::schema::Type;
use serde_json::Value;

use crate::{
    check,
    document::{Document, Path},
    format::{Flag, Matrix, Scalar, Scenario},
    plan::{Parameter, PlannedCase, RunValues},
    problem::{Problem, listed, suggestion},
};

/// The names that scenarios may use and this crate does not know: of kinds, services and flags.
#[derive(Clone, Debug)]
pub struct Catalog {
    /// The names of the kinds of objects, in lower case (`pod`, `pods`, `po`), with the types of
    /// their fields, if those are known.
    pub kinds: BTreeMap<String, Option<Type>>,
    /// The flags of each service, without the dashes.
    pub flags: BTreeMap<String, BTreeSet<String>>,
    /// Checks the value of a flag that a service has: service, flag, value. The error is the
    /// message.
    pub value: fn(&str, &str, &str) -> Result<(), String>,
    /// Checks the flags of `podplane up`. The error is the message.
    pub up: fn(&[Flag]) -> Result<(), String>,
}

/// Values for parameters of scenarios, by name.
pub type Values = BTreeMap<String, String>;

/// Reads the scenarios in files and in directories with their subdirectories: paths in the given
/// order, the entries of a directory by name. Parameters get the values of `set`.
///
/// # Errors
///
/// All problems of all files. A value in `set` for a parameter that no scenario has is one.
pub fn load(
    paths: &[PathBuf],
    set: &Values,
    catalog: &Catalog,
) -> Result<Vec<PlannedCase>, Vec<Problem>> {
    let (mut cases, mut problems) = (Vec::<PlannedCase>::new(), Vec::new());
    for path in paths {
        match files(path) {
            Ok(files) if files.is_empty() => problems.push(about(
                path,
                "no scenario in this directory: want files that end in .yaml and have `steps`",
            )),
            Ok(files) => {
                for file in files {
                    match read(&file, set, catalog) {
                        Ok(read) => cases.extend(read),
                        Err(found) => problems.extend(found),
                    }
                }
            }
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        let known = cases.iter().flat_map(|case| case.parameters.keys());
        let known: BTreeSet<_> = known.map(String::as_str).collect();
        let unknown = set.keys().filter(|name| !known.contains(name.as_str()));
        problems.extend(unknown.map(|name| {
            let hint = match suggestion(name, known.iter().copied()) {
                hint if hint.is_empty() => {
                    format!("; known: {}", listed(&known.iter().collect::<Vec<_>>()))
                }
                hint => hint,
            };
            let path = paths
                .first()
                .map(PathBuf::as_path)
                .unwrap_or(FilePath::new("."));
            about(path, format!("unknown parameter {name:?} to set{hint}"))
        }));
    }
    if problems.is_empty() {
        Ok(cases)
    } else {
        Err(problems)
    }
}

fn about(path: &FilePath, message: impl Into<String>) -> Problem {
    Problem {
        file: path.into(),
        position: None,
        message: message.into(),
    }
}

/// Returns the file itself, or the scenarios in a directory, which may also have YAML files that
/// scenarios apply.
fn files(path: &FilePath) -> Result<Vec<PathBuf>, Problem> {
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let wrong = |error| about(path, format!("failed to read: {error}"));
    let mut entries: Vec<_> = fs::read_dir(path)
        .map_err(wrong)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()
        .map_err(wrong)?;
    entries.sort();
    let mut found = Vec::new();
    for entry in entries {
        let extension = entry.extension().and_then(|extension| extension.to_str());
        if entry.is_dir() {
            found.extend(files(&entry)?);
        } else if matches!(extension, Some("yaml" | "yml")) && is_scenario(&entry) {
            found.push(entry);
        }
    }
    Ok(found)
}

/// Returns true for a scenario, even a broken one. A file with `apiVersion` and without `steps` is
/// an object.
fn is_scenario(file: &FilePath) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    let has = |key: &str| text.lines().any(|line| line.starts_with(key));
    has("steps:") || !has("apiVersion:")
}

fn read(
    file: &FilePath,
    set: &Values,
    catalog: &Catalog,
) -> Result<Vec<PlannedCase>, Vec<Problem>> {
    let text = fs::read_to_string(file)
        .map_err(|error| vec![about(file, format!("failed to read: {error}"))])?;
    parse(file, &text, set, catalog)
}

/// Returns the runs of one scenario, one for each combination of its matrix.
pub(crate) fn parse(
    file: &FilePath,
    text: &str,
    set: &Values,
    catalog: &Catalog,
) -> Result<Vec<PlannedCase>, Vec<Problem>> {
    let document = Document::parse(file, text).map_err(|problem| vec![problem])?;
    let (mut cases, mut problems) = (Vec::new(), Vec::new());
    let parameters = parameters(&document, set, &mut problems);
    let combinations = match &parameters {
        Ok(parameters) => combinations(&document, parameters),
        Err(_) => Ok(vec![BTreeMap::new()]),
    };
    let are_complete = parameters.is_ok() && combinations.is_ok();
    // The rest is checked all the same, except for references to these values.
    let parameters = parameters.unwrap_or_else(|problem| {
        problems.push(problem);
        BTreeMap::new()
    });
    let combinations = combinations.unwrap_or_else(|problem| {
        problems.push(problem);
        vec![BTreeMap::new()]
    });
    for matrix in combinations {
        let mut all = plain_values(&parameters);
        all.extend(matrix.clone());
        let (mut filled, unknown) = document.substitute(&all);
        problems.extend(unknown.into_iter().filter(|_| are_complete));
        let (scenario, wrong) = filled.decode::<Scenario>();
        problems.extend(wrong);
        if let Some(scenario) = scenario {
            let values = RunValues {
                matrix,
                parameters: parameters.clone(),
                are_complete,
            };
            match check::check(&filled, scenario, values, catalog) {
                Ok(case) => cases.push(case),
                Err(found) => problems.extend(found),
            }
        }
    }
    // The same mistake in each combination is reported once.
    problems.sort();
    problems.dedup();
    if problems.is_empty() {
        Ok(cases)
    } else {
        Err(problems)
    }
}

fn plain_values(parameters: &BTreeMap<String, Parameter>) -> BTreeMap<String, Value> {
    let each = parameters.iter();
    each.map(|(name, parameter)| (name.clone(), parameter.value.clone()))
        .collect()
}

/// Returns the parameters: the values in `set`, else the defaults. They are decoded before the
/// rest, which refers to them. A value of another type than the default is a problem, and the
/// default stands in for it.
fn parameters(
    document: &Document<'_>,
    set: &Values,
    problems: &mut Vec<Problem>,
) -> Result<BTreeMap<String, Parameter>, Problem> {
    let path = Path::default().key("parameters");
    if document.value_at(&path).is_null() {
        return Ok(BTreeMap::new());
    }
    let defaults: BTreeMap<String, Scalar> = document.decode_at(&path)?;
    let mut parameter = |name: &str, default: Value| {
        let unset = |value| Parameter {
            value,
            is_set: false,
        };
        let Some(text) = set.get(name) else {
            return unset(default);
        };
        let value = match &default {
            Value::String(_) => Some(Value::String(text.clone())),
            _ => serde_json::from_str(text).ok().filter(|value: &Value| {
                (value.is_number() && default.is_number())
                    || (value.is_boolean() && default.is_boolean())
            }),
        };
        let Some(value) = value else {
            let kind = if default.is_number() {
                "a number"
            } else {
                "true or false"
            };
            let message = format!(
                "invalid value {text:?} to set for {name}: want {kind}, as its default {default}"
            );
            problems.push(document.problem(&path.key(name), message));
            return unset(default);
        };
        Parameter {
            value,
            is_set: true,
        }
    };
    let each = defaults.into_iter().map(|(name, Scalar(default))| {
        let parameter = parameter(&name, default);
        (name, parameter)
    });
    Ok(each.collect())
}

/// Returns the values of each run. The matrix is decoded before the rest, which refers to it.
fn combinations(
    document: &Document<'_>,
    parameters: &BTreeMap<String, Parameter>,
) -> Result<Vec<BTreeMap<String, Value>>, Problem> {
    // Unknown names in it are reported with those in the rest.
    let (document, _) = &document.substitute(&plain_values(parameters));
    let path = Path::default().key("matrix");
    let value = document.value_at(&path);
    if value.is_null() {
        return Ok(vec![BTreeMap::new()]);
    }
    let matrix: Matrix = document.decode_at(&path)?;
    let combinations = matrix.combinations();
    if combinations.is_empty() {
        return Err(document.problem(&path, "the matrix is empty: want at least one combination"));
    }
    let names = |values: &BTreeMap<String, Value>| values.keys().cloned().collect::<Vec<_>>();
    let first = names(&combinations[0]);
    if let Some(name) = first.iter().find(|name| parameters.contains_key(*name)) {
        let message = format!("{name} is a parameter, too: give one of them another name");
        return Err(document.problem(&path, message));
    }
    match combinations
        .iter()
        .position(|values| names(values) != first)
    {
        None => Ok(combinations),
        Some(other) => {
            let message = format!(
                "all combinations must have the same names; the first has {}",
                listed(&first)
            );
            Err(document.problem(&path.index(other), message))
        }
    }
}

/// The names of all services, for messages.
pub(crate) fn services(catalog: &Catalog) -> String {
    let names: Vec<_> = catalog.flags.keys().collect();
    listed(&names)
}
