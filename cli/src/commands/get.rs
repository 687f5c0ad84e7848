//! `get`: what is there, as kubectl shows it.

use std::{io::IsTerminal as _, process::ExitCode, str::FromStr, sync::Arc};

use jiff::Timestamp;
use podplane_api::table::Row;
use podplane_client::{Api, Change, Client, ListParams, reflector};
use serde_json::{Value, json};

use super::{NamespaceArgs, Outcome, api, blocks, completion::candidates};
use crate::{
    global::{Global, block_on},
    kind::{Kind, Targets, UnknownKind, What, with_kind},
    output::{self, Format, table::Table},
    report::UsageError,
};

/// Show objects: nodes, pods, events, leases, namespaces; or node blocks and who holds them: blocks
#[derive(Debug, clap::Args)]
#[command(
    visible_alias = "ls",
    after_help = "Examples:\n  podplane get nodes -o wide\n  podplane get pods -A -l app=web\n  podplane get pod web-0 -o yaml\n  podplane get node/node-0 pod/web-0\n  podplane get pods -w\n  podplane get blocks\n  podplane get blocks node-0 10.244.3.0/24"
)]
pub(crate) struct Args {
    /// A kind, such as pods, or an object, such as pod/web-0; or blocks
    #[arg(value_name = "KIND[/NAME]", add = candidates::kind_and_name())]
    what: Subject,

    /// Names of that kind, of blocks CIDRs or nodes; none: all
    #[arg(value_name = "NAME", add = candidates::of_the_kind_before())]
    names: Vec<String>,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// All namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,

    /// Only objects with these labels: app=web, tier!=db, 'env in (a,b)'
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "")]
    selector: String,

    /// Only objects with these fields: spec.nodeName=node-0
    #[arg(long, value_name = "SELECTOR", default_value = "")]
    field_selector: String,

    /// Another form than a table
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Format>,

    /// Go on and show each change
    #[arg(short, long)]
    watch: bool,
}

/// What is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Objects(What),
    /// The records of node blocks.
    Blocks,
}

impl FromStr for Subject {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        match text.to_lowercase().as_str() {
            "blocks" | "block" => Ok(Self::Blocks),
            _ => text.parse().map(Self::Objects),
        }
    }
}

pub(crate) fn run(args: Args, global: &Global) -> anyhow::Result<ExitCode> {
    let what = match &args.what {
        Subject::Objects(what) => what.clone(),
        Subject::Blocks => {
            let selects = !args.selector.is_empty() || !args.field_selector.is_empty();
            if selects || args.watch {
                let why = "blocks take no -l, --field-selector or -w: name nodes or CIDRs";
                Err(UsageError(why.into()))?;
            }
            return block_on(async {
                blocks::get(&global.client()?, &args.names, args.output).await
            });
        }
    };
    let targets = Targets::new(what, &args.names)?;
    let selects = !args.selector.is_empty() || !args.field_selector.is_empty();
    match &targets {
        Targets::Named(_) if selects => {
            Err(UsageError(
                "a selector picks among all objects of a kind: leave the names out".into(),
            ))?;
        }
        Targets::Named(named)
            if args.all_namespaces && named.iter().any(|(kind, _)| kind.is_namespaced()) =>
        {
            Err(UsageError(
                "a name means an object of one namespace: use -n instead of -A".into(),
            ))?;
        }
        Targets::Named(named) if args.watch && named.len() > 1 => {
            Err(UsageError("-w takes one name, or a kind".into()))?;
        }
        Targets::Named(_) | Targets::All(_) => {}
    }
    block_on(async { get(&global.client()?, &args, targets).await })
}

async fn get(client: &Client, args: &Args, targets: Targets) -> anyhow::Result<ExitCode> {
    let namespace = (!args.all_namespaces).then_some(args.namespace.namespace.as_str());
    let params = ListParams {
        label_selector: args.selector.clone(),
        field_selector: args.field_selector.clone(),
        ..ListParams::default()
    };
    let mut printer = Printer::new(args, &targets);
    let mut outcome = Outcome::default();
    let has_footer = targets == Targets::All(Kind::Node)
        && !args.watch
        && matches!(args.output, None | Some(Format::Wide))
        && std::io::stdout().is_terminal();
    match targets {
        Targets::All(kind) => with_kind!(kind, K => {
            let api = api::<K>(client, namespace);
            // Errors such as a bad selector are the command's; a reflector would try for ever.
            let list = api.list(&params).await?;
            if args.watch {
                watch(api, params, &mut printer, kind).await?;
            } else {
                printer.add(kind, list.items)?;
            }
        }),
        Targets::Named(named) => {
            for (kind, name) in named {
                with_kind!(kind, K => {
                    let api = api::<K>(client, namespace);
                    let found = outcome.note(api.get(&name).await.map_err(Into::into))?;
                    if args.watch && found.is_some() {
                        let params = ListParams { field_selector: format!("metadata.name={name}"), ..params.clone() };
                        watch(api, params, &mut printer, kind).await?;
                    } else {
                        printer.add(kind, found.into_iter().collect())?;
                    }
                });
            }
        }
    }
    printer.finish()?;
    if has_footer {
        blocks::footer(client).await?;
    }
    Ok(outcome.exit_code())
}

/// Shows what is there and then each change, over reconnects, until the reader has had enough.
async fn watch<K: Row>(
    api: Api<K>,
    params: ListParams,
    printer: &mut Printer,
    kind: Kind,
) -> anyhow::Result<()> {
    let (cache, driver) = reflector(api, params);
    let show = async {
        cache.synced().await;
        let mut changes = cache.subscribe();
        // A subscription begins with all that is there; together, it makes one table.
        let mut present = Vec::new();
        while let Some(Change::Applied { new, .. }) = changes.try_next() {
            present.push(Arc::unwrap_or_clone(new));
        }
        printer.add(kind, present)?;
        loop {
            let object = match changes.next().await {
                Change::Applied { new, .. } => new,
                Change::Deleted(last) => last,
            };
            printer.add(kind, vec![Arc::unwrap_or_clone(object)])?;
        }
    };
    tokio::select! {
        () = driver => Ok(()),
        ended = show => ended,
    }
}

/// Prints objects as they come: rows and names at once, documents at the end, or one by one in a watch.
#[derive(Debug)]
struct Printer {
    format: Option<Format>,
    watch: bool,
    /// One object was asked for, not a list.
    single: bool,
    show_namespace: bool,
    /// Names are `KIND/NAME`, since there are several kinds.
    show_kind: bool,
    /// What to say where a table would be empty.
    nothing: String,
    table: Option<(Kind, Table)>,
    documents: Vec<Value>,
}

impl Printer {
    fn new(args: &Args, targets: &Targets) -> Self {
        let (single, show_kind, namespaced) = match targets {
            Targets::All(kind) => (false, false, kind.is_namespaced()),
            Targets::Named(named) => (
                named.len() == 1,
                named.windows(2).any(|pair| pair[0].0 != pair[1].0),
                true,
            ),
        };
        Self {
            format: args.output,
            watch: args.watch,
            single,
            show_namespace: args.all_namespaces && namespaced,
            show_kind,
            nothing: if namespaced && !args.all_namespaces {
                format!(
                    "No resources found in {} namespace.",
                    args.namespace.namespace
                )
            } else {
                "No resources found".into()
            },
            table: None,
            documents: Vec::new(),
        }
    }

    fn add<K: Row>(&mut self, kind: Kind, mut objects: Vec<K>) -> anyhow::Result<()> {
        match self.format {
            None | Some(Format::Wide) => {
                K::sort(&mut objects);
                if let Some(rows) = self.rows(kind, &objects, Timestamp::now()) {
                    output::line(rows)?;
                }
            }
            Some(Format::Name) => {
                for object in objects {
                    output::line(format_args!("{kind}/{}", object.name()))?;
                }
            }
            Some(format @ (Format::Json | Format::Yaml)) => {
                for object in &objects {
                    let document = object.to_json()?;
                    match format {
                        Format::Yaml if self.watch => {
                            output::line("---")?;
                            output::yaml(&document)?;
                        }
                        _ if self.watch => output::json(&document)?,
                        _ => self.documents.push(document),
                    }
                }
            }
        }
        Ok(())
    }

    /// The rows, with a header where the table begins.
    fn rows<K: Row>(&mut self, kind: Kind, objects: &[K], now: Timestamp) -> Option<String> {
        if objects.is_empty() {
            return None;
        }
        let wide = self.format == Some(Format::Wide);
        let shown = |cells: Vec<String>| {
            let columns = K::COLUMNS.iter().zip(cells);
            columns
                .filter(|(column, _)| wide || !column.wide)
                .map(|(_, cell)| cell)
                .collect::<Vec<_>>()
        };
        let cells: Vec<_> = objects
            .iter()
            .map(|object| {
                let mut cells = shown(object.cells(now));
                if self.show_kind {
                    // The column of the name is the first, but for events, whose name says nothing.
                    cells[0] = format!("{kind}/{}", cells[0]);
                }
                if self.show_namespace {
                    cells.insert(0, object.namespace().into());
                }
                cells
            })
            .collect();
        let begun = self.table.as_ref().is_some_and(|(of, _)| *of == kind);
        let gap = if self.table.is_some() && !begun {
            "\n"
        } else {
            ""
        };
        if !begun {
            let mut columns: Vec<_> = K::COLUMNS
                .iter()
                .filter(|column| wide || !column.wide)
                .map(|column| column.name)
                .collect();
            if self.show_namespace {
                columns.insert(0, "NAMESPACE");
            }
            self.table = Some((kind, Table::new(columns)));
        }
        let (_, table) = self.table.as_mut()?;
        Some(format!("{gap}{}", table.rows(cells)))
    }

    fn finish(mut self) -> anyhow::Result<()> {
        if self.watch {
            return Ok(());
        }
        let tables = self.table.iter();
        let left_out: Vec<_> = tables.flat_map(|(_, table)| table.left_out()).collect();
        if !left_out.is_empty() {
            anstream::eprintln!(
                "not shown, for want of room: {}; -o yaml has all",
                left_out.join(", ")
            );
        }
        match self.format {
            None | Some(Format::Wide) if self.table.is_none() && !self.single => {
                anstream::eprintln!("{}", self.nothing);
                Ok(())
            }
            None | Some(Format::Wide | Format::Name) => Ok(()),
            Some(Format::Json) => self
                .document()
                .map_or(Ok(()), |document| output::json(&document)),
            Some(Format::Yaml) => self
                .document()
                .map_or(Ok(()), |document| output::yaml(&document)),
        }
    }

    /// One object, or a `List`, also of none; nothing if the one object was not there.
    fn document(&mut self) -> Option<Value> {
        if self.single {
            self.documents.pop()
        } else {
            let items = std::mem::take(&mut self.documents);
            Some(json!({"apiVersion": "v1", "kind": "List", "items": items}))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use podplane_api::{
        core::{Namespace, Pod},
        strict,
    };

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn printer(line: &str) -> Printer {
        let args = Line::parse_from(line.split(' ')).args;
        let Subject::Objects(what) = args.what.clone() else {
            panic!("{line}");
        };
        let targets = Targets::new(what, &args.names).unwrap();
        Printer::new(&args, &targets)
    }

    fn pods() -> Vec<Pod> {
        let pod = |namespace: &str, name: &str| {
            let pod = json!({"metadata": {"namespace": namespace, "name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"nodeName": "node-0", "containers": [{"name": "c"}]}, "status": {"phase": "Pending"}});
            strict::decode(pod).unwrap()
        };
        vec![pod("default", "web-0"), pod("kube-system", "dns")]
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:05Z".parse().unwrap()
    }

    #[test]
    fn pods_as_a_table() {
        assert_eq!(
            printer("get pods").rows(Kind::Pod, &pods(), now()).unwrap(),
            "NAME    READY   STATUS              RESTARTS   AGE\n\
             web-0   0/1     ContainerCreating   0          5s\n\
             dns     0/1     ContainerCreating   0          5s"
        );
        assert_eq!(
            printer("get pods -A -o wide")
                .rows(Kind::Pod, &pods(), now())
                .unwrap(),
            "NAMESPACE     NAME    READY   STATUS              RESTARTS   AGE   IP       NODE     NOMINATED NODE   READINESS GATES\n\
             default       web-0   0/1     ContainerCreating   0          5s    <none>   node-0   <none>           <none>\n\
             kube-system   dns     0/1     ContainerCreating   0          5s    <none>   node-0   <none>           <none>"
        );
    }

    #[test]
    fn several_kinds_are_told_apart() {
        let mut printer = printer("get pod/web-0 ns/default");
        let first = printer.rows(Kind::Pod, &pods()[..1], now()).unwrap();
        assert!(first.contains("\npod/web-0   0/1"), "{first}");
        let namespace: Namespace =
            strict::decode(json!({"metadata": {"name": "default"}, "status": {"phase": "Active"}}))
                .unwrap();
        let second = printer.rows(Kind::Namespace, &[namespace], now()).unwrap();
        assert_eq!(
            second,
            "\nNAME                STATUS   AGE\nnamespace/default   Active   <unknown>"
        );
    }

    #[test]
    fn json_is_a_list_unless_one_name_is_given() {
        assert_eq!(
            printer("get pods -o json").document(),
            Some(json!({"apiVersion": "v1", "kind": "List", "items": []}))
        );
        let mut list = printer("get pods -o json");
        list.add(Kind::Pod, pods()).unwrap();
        assert_eq!(
            list.document().unwrap()["items"][1]["metadata"]["name"],
            "dns"
        );
        let mut one = printer("get pod web-0 -o json");
        one.add(Kind::Pod, pods()[..1].to_vec()).unwrap();
        assert_eq!(
            one.document(),
            Some(json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "default", "name": "web-0", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"nodeName": "node-0", "containers": [{"name": "c"}]}, "status": {"phase": "Pending"}}))
        );
    }
}
