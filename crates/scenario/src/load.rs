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
    format::{Flag, Matrix, Scenario},
    plan::PlannedCase,
    problem::{Problem, listed},
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

/// Reads the scenarios in files and in directories with their subdirectories: paths in the given
/// order, the entries of a directory by name.
///
/// # Errors
///
/// All problems of all files.
pub fn load(paths: &[PathBuf], catalog: &Catalog) -> Result<Vec<PlannedCase>, Vec<Problem>> {
    let (mut cases, mut problems) = (Vec::new(), Vec::new());
    for path in paths {
        match files(path) {
            Ok(files) if files.is_empty() => problems.push(about(
                path,
                "no scenario in this directory: want files that end in .yaml and have `steps`",
            )),
            Ok(files) => {
                for file in files {
                    match read(&file, catalog) {
                        Ok(read) => cases.extend(read),
                        Err(found) => problems.extend(found),
                    }
                }
            }
            Err(problem) => problems.push(problem),
        }
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

fn read(file: &FilePath, catalog: &Catalog) -> Result<Vec<PlannedCase>, Vec<Problem>> {
    let text = fs::read_to_string(file)
        .map_err(|error| vec![about(file, format!("failed to read: {error}"))])?;
    parse(file, &text, catalog)
}

/// Returns the runs of one scenario, one for each combination of its matrix.
pub(crate) fn parse(
    file: &FilePath,
    text: &str,
    catalog: &Catalog,
) -> Result<Vec<PlannedCase>, Vec<Problem>> {
    let document = Document::parse(file, text).map_err(|problem| vec![problem])?;
    let (mut cases, mut problems) = (Vec::new(), Vec::new());
    let (combinations, is_matrix_known) = match combinations(&document) {
        Ok(combinations) => (combinations, true),
        Err(problem) => {
            problems.push(problem);
            // The rest is checked all the same, except for references to the matrix.
            (vec![BTreeMap::new()], false)
        }
    };
    for values in combinations {
        let (mut filled, unknown) = document.substitute(&values);
        problems.extend(unknown.into_iter().filter(|_| is_matrix_known));
        let (scenario, wrong) = filled.decode::<Scenario>();
        problems.extend(wrong);
        if let Some(scenario) = scenario {
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

/// Returns the values of each run. The matrix is decoded before the rest, which refers to it.
fn combinations(document: &Document<'_>) -> Result<Vec<BTreeMap<String, Value>>, Problem> {
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
