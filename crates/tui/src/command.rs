//! The commands that begin with a colon.

use crate::view::{UnknownView, View};

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Show {
        view: View,
        namespace: Option<String>,
    },
    Help,
    Quit,
}

/// An invalid command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CommandError {
    #[error(transparent)]
    View(#[from] UnknownView),
    #[error("too many words in `{0}`: want a view and, for pods, waiting and events, a namespace")]
    Words(String),
    #[error("invalid namespace `{namespace}`: the view {} has all namespaces", view.as_str())]
    Namespace { view: View, namespace: String },
}

impl Command {
    /// `pods`, `pods NAMESPACE`, `help`, `quit`. `None` for an empty text.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, CommandError> {
        let mut words = text.split_whitespace();
        let Some(name) = words.next() else {
            return Ok(None);
        };
        let namespace = words.next().map(str::to_owned);
        if words.next().is_some() {
            return Err(CommandError::Words(text.to_owned()));
        }
        let command = match (name, &namespace) {
            ("q" | "q!" | "quit" | "exit", None) => Self::Quit,
            ("help" | "h" | "?", None) => Self::Help,
            _ => Self::Show {
                view: name.parse()?,
                namespace,
            },
        };
        match command {
            Self::Show {
                view: view @ (View::Nodes | View::Blocks | View::Map),
                namespace: Some(namespace),
            } => Err(CommandError::Namespace { view, namespace }),
            command => Ok(Some(command)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_views_with_a_namespace() {
        let show = |view, namespace: Option<&str>| {
            Ok(Some(Command::Show {
                view,
                namespace: namespace.map(str::to_owned),
            }))
        };
        assert_eq!(Command::parse(" po "), show(View::Pods, None));
        assert_eq!(Command::parse("pods shop"), show(View::Pods, Some("shop")));
        assert_eq!(Command::parse(""), Ok(None));
        assert_eq!(Command::parse("q"), Ok(Some(Command::Quit)));
        let error = |text: &str| Command::parse(text).unwrap_err().to_string();
        assert_eq!(
            error("sheep"),
            "unknown view `sheep`: want nodes, pods, waiting, blocks, events or map"
        );
        assert_eq!(
            error("nodes shop"),
            "invalid namespace `shop`: the view nodes has all namespaces"
        );
        assert!(error("pods a b").starts_with("too many words in `pods a b`"));
    }
}
