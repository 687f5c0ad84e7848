//! The sums of each crate, and their table.

#![expect(clippy::print_stdout, reason = "the figures are this program's output")]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use comfy_table::{CellAlignment, Table, presets};

use crate::source::{Source, WIDTH};

/// A type's name is called repeated when it is declared more often than this.
const DECLARATIONS: usize = 2;

/// The files by crate.
#[derive(Debug, Default)]
pub(crate) struct StyleReport {
    crates: BTreeMap<String, Vec<(PathBuf, Source)>>,
}

impl StyleReport {
    pub(crate) fn add(&mut self, owner: String, file: PathBuf, source: Source) {
        self.crates.entry(owner).or_default().push((file, source));
    }

    /// Prints the table of crates, the repeated names and, with `list`, each place.
    pub(crate) fn print(&self, list: bool) {
        let repeated = self.repeated();
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN).set_header([
            "crate",
            "lines",
            "question docs",
            &format!("comments > {WIDTH}"),
            "repeated types",
            "logs/kLOC",
            "fn p50/p90/p99/max",
            "file p50/p90/max",
        ]);
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for (name, files) in &self.crates {
            table.add_row(row(name, files.iter().map(|(_, file)| file), &repeated));
        }
        table.add_row(row("all", self.sources(), &repeated));
        println!("{table}");
        if !repeated.is_empty() {
            println!("\nType names declared more than {DECLARATIONS} times:");
        }
        for (name, owners) in &repeated {
            let crates: BTreeSet<_> = owners.iter().copied().collect();
            let crates: Vec<_> = crates.into_iter().collect();
            println!("  {name} ×{}: {}", owners.len(), crates.join(", "));
        }
        if list {
            self.print_places();
        }
    }

    fn print_places(&self) {
        for (file, source) in self.crates.values().flatten() {
            let file = file.display();
            for line in &source.questions {
                println!("{file}:{line}: doc comment opens with a question word");
            }
            for line in &source.wide {
                println!("{file}:{line}: comment line is over {WIDTH} columns");
            }
        }
    }

    fn sources(&self) -> impl Iterator<Item = &Source> {
        self.crates.values().flatten().map(|(_, source)| source)
    }

    /// The repeated names, with the crate of each declaration.
    fn repeated(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut declared: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (owner, files) in &self.crates {
            for name in files.iter().flat_map(|(_, source)| &source.types) {
                declared.entry(name).or_default().push(owner);
            }
        }
        declared.retain(|_, owners| owners.len() > DECLARATIONS);
        declared
    }
}

fn row<'a>(
    name: &str,
    files: impl Iterator<Item = &'a Source>,
    repeated: &BTreeMap<&str, Vec<&str>>,
) -> Vec<String> {
    let files: Vec<&Source> = files.collect();
    let sum = |of: fn(&Source) -> usize| files.iter().map(|file| of(file)).sum::<usize>();
    let lines = sum(|file| file.lines);
    let types = files
        .iter()
        .flat_map(|file| &file.types)
        .filter(|name| repeated.contains_key(name.as_str()));
    let functions = files.iter().flat_map(|file| file.functions.iter().copied());
    vec![
        name.to_owned(),
        lines.to_string(),
        percent(
            sum(|file| file.questions.len()),
            sum(|file| file.doc_comments),
        ),
        percent(sum(|file| file.wide.len()), sum(|file| file.comment_lines)),
        types.count().to_string(),
        format!("{:.1}", ratio(sum(|file| file.logs) * 1000, lines)),
        quantiles(functions.collect(), &[50, 90, 99, 100]),
        quantiles(
            files.iter().map(|file| file.lines).collect(),
            &[50, 90, 100],
        ),
    ]
}

#[expect(
    clippy::cast_precision_loss,
    reason = "counts of lines are far below 2^52"
)]
fn ratio(part: usize, whole: usize) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn percent(part: usize, whole: usize) -> String {
    format!("{part} ({:.1} %)", 100.0 * ratio(part, whole))
}

/// The values at these percentiles (nearest rank), joined by slashes.
fn quantiles(mut values: Vec<usize>, percentiles: &[usize]) -> String {
    values.sort_unstable();
    let at = |percentile: &usize| {
        let rank = (values.len() * percentile).div_ceil(100).max(1);
        values
            .get(rank - 1)
            .map_or_else(|| "-".to_owned(), usize::to_string)
    };
    percentiles.iter().map(at).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::quantiles;

    #[test]
    fn takes_percentiles_by_nearest_rank() {
        let values = (1..=200).rev().collect();
        assert_eq!(quantiles(values, &[50, 90, 99, 100]), "100/180/198/200");
        assert_eq!(quantiles(vec![7], &[50, 100]), "7/7");
        assert_eq!(quantiles(Vec::new(), &[50]), "-");
    }
}
