//! Completes names of objects by asking the cluster.
//!
//! Any error, and a cluster that does not answer within [`PATIENCE`], means that there are no
//! candidates: a shell that completes a line cannot show errors.

use std::{ffi::OsStr, time::Duration};

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use clap_complete::{ArgValueCompleter, CompletionCandidate};
use podplane_api::names::dns1123_subdomain;
use podplane_client::ListParams;
use podplane_map::MapTarget;
use tokio::time::timeout;

use crate::{
    Cli,
    commands::api,
    global::{GlobalArgs, GlobalOptions, block_on},
    kind::{ResourceKind, with_kind},
};

/// The time after which a cluster without an answer has no candidates.
const PATIENCE: Duration = Duration::from_secs(2);

/// The maximum number of candidates; nobody reads a longer list.
const MANY: i64 = 1000;

/// Completes names of one kind.
pub(crate) fn of(kind: ResourceKind) -> ArgValueCompleter {
    completer(move |line, _| line.names(kind))
}

/// Completes kinds, and after `KIND/` the names of that kind.
pub(crate) fn kind_and_name() -> ArgValueCompleter {
    completer(|line, word| match word.split_once('/') {
        None => ResourceKind::words().map(|(word, _)| word).collect(),
        Some((word, _)) => match word.parse() {
            Ok(kind) => {
                let names = line.names(kind).into_iter();
                names.map(|name| format!("{word}/{name}")).collect()
            }
            Err(_) => Vec::new(),
        },
    })
}

/// Completes names of the kind in the previous operand.
pub(crate) fn of_the_kind_before() -> ArgValueCompleter {
    completer(|line, _| match line.word("what").map(|word| word.parse()) {
        Some(Ok(kind)) => line.names(kind),
        Some(Err(_)) | None => Vec::new(),
    })
}

/// Completes parts of the address space: the purposes of networks, and blocks of nodes.
pub(crate) fn networks_and_blocks() -> ArgValueCompleter {
    completer(|line, _| {
        let words = MapTarget::ROLES.iter().map(|(word, _)| (*word).to_owned());
        words.chain(line.blocks()).collect()
    })
}

/// A completer that offers the candidates that begin with the word.
fn completer(
    candidates: impl Fn(&CommandLine, &str) -> Vec<String> + Send + Sync + 'static,
) -> ArgValueCompleter {
    ArgValueCompleter::new(move |word: &OsStr| {
        let (Some(word), Some(line)) = (word.to_str(), CommandLine::of_shell()) else {
            return Vec::new();
        };
        candidates(&line, word)
            .into_iter()
            .filter(|candidate| candidate.starts_with(word))
            .map(CompletionCandidate::new)
            .collect()
    })
}

/// The command line being completed.
struct CommandLine {
    global: GlobalOptions,
    /// The matches of the deepest subcommand, as far as they are written.
    command: ArgMatches,
}

impl CommandLine {
    /// The line that the shell passes after `--`.
    fn of_shell() -> Option<Self> {
        let words = std::env::args_os().skip_while(|word| word != "--").skip(1);
        let matches = Cli::command()
            .ignore_errors(true)
            .try_get_matches_from(words)
            .ok()?;
        let global = GlobalOptions::try_from(GlobalArgs::from_arg_matches(&matches).ok()?).ok()?;
        let mut command = matches;
        while let Some((_, deeper)) = command.subcommand() {
            command = deeper.clone();
        }
        Some(Self { global, command })
    }

    /// The first value of an argument as written; `None` if the command has no such argument.
    fn word(&self, argument: &str) -> Option<&str> {
        self.command
            .try_get_raw(argument)
            .ok()
            .flatten()?
            .next()?
            .to_str()
    }

    /// The prefixes of node blocks.
    fn blocks(&self) -> Vec<String> {
        let listed = block_on(async {
            let client = self.global.client()?;
            let blocks = client.blocks();
            Ok(timeout(PATIENCE, blocks.list()).await??.blocks)
        });
        let blocks = listed.unwrap_or_default().into_iter();
        blocks.map(|block| block.cidr).collect()
    }

    /// The names of a kind in the line's namespace, except those that a shell would not take for
    /// one word.
    fn names(&self, kind: ResourceKind) -> Vec<String> {
        let namespace = self.word("namespace");
        let params = ListParams {
            limit: MANY,
            ..ListParams::default()
        };
        let names: anyhow::Result<Vec<String>> = block_on(async {
            let client = self.global.client()?;
            with_kind!(kind, K => {
                let api = api::<K>(&client, namespace);
                let list = timeout(PATIENCE, api.list(&params)).await??;
                Ok(list.items.iter().map(|object| podplane_api::Object::name(object).to_owned()).collect())
            })
        });
        let mut names = names.unwrap_or_default();
        names.retain(|name| dns1123_subdomain(name).is_empty());
        names
    }
}
