//! `get`: lists and prints objects, as kubectl does.

use std::{io::IsTerminal as _, process::ExitCode, str::FromStr, sync::Arc};

use jiff::Timestamp;
use podplane_api::{
    Object,
    table::{Column, TableRow},
};
use podplane_client::{Api, CacheChange, Client, ListParams, reflector};
use serde_json::{Value, json};

use super::{BatchOutcome, NamespaceArgs, api, blocks, completion::candidates};
use crate::{
    global::{GlobalOptions, block_on},
    kind::{KindOperand, ResourceKind, Targets, UnknownKind, with_kind},
    output::{self, OutputFormat, table::TextTable},
    report::UsageError,
};

/// The column that has the kind before the name if objects of several kinds are shown.
const NAME: &str = "NAME";

/// Show objects, or the pod CIDRs of nodes and their holders (blocks)
///
/// `ls` is an alias. Kinds: nodes (no), pods (po), events (ev), namespaces (ns), services (svc),
/// leases, deployments (deploy), replicasets (rs), controllerrevisions, poddisruptionbudgets (pdb),
/// priorityclasses (pc), serviceaccounts (sa), roles, clusterroles, rolebindings,
/// clusterrolebindings, certificatesigningrequests (csr), clustercidrs; and blocks: the pod CIDRs
/// assigned to nodes, with their holders.
#[derive(Debug, clap::Args)]
#[command(
    visible_alias = "ls",
    after_help = "Examples:\n  podplane get nodes -o wide\n  podplane get pods -A -l app=web\n  podplane get pod web-0 -o yaml\n  podplane get node/node-0 pod/web-0\n  podplane get pods -w\n  podplane get blocks\n  podplane get blocks node-0 10.244.3.0/24"
)]
pub(crate) struct GetArgs {
    /// Show objects of this kind, such as pods, one object, such as pod/web-0, or blocks
    #[arg(value_name = "KIND[/NAME]", add = candidates::kind_and_name())]
    what: Subject,

    /// Names of objects; for blocks: CIDRs or node names [default: all]
    #[arg(value_name = "NAME", add = candidates::of_the_kind_before())]
    names: Vec<String>,

    #[command(flatten)]
    namespace: NamespaceArgs,

    /// Show objects of all namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,

    /// Show only objects that match this label selector, such as app=web, tier!=db or 'env in
    /// (a,b)'
    #[arg(
        short = 'l',
        long,
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    selector: String,

    /// Show only objects that match this field selector, such as spec.nodeName=node-0
    ///
    /// All kinds have metadata.name and metadata.namespace; the other fields are those that
    /// Kubernetes supports for the kind.
    #[arg(
        long,
        value_name = "SELECTOR",
        default_value = "",
        hide_default_value = true
    )]
    field_selector: String,

    /// Print in this format [default: a table]
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<OutputFormat>,

    /// Show metadata.managedFields, the writers of each field, with -o yaml or json
    #[arg(long)]
    show_managed_fields: bool,

    /// Watch: after the list, print each change until Ctrl-C
    #[arg(short, long)]
    watch: bool,
}

/// The objects to show.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Objects(KindOperand),
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

pub(crate) fn run(args: GetArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
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
    block_on(async { Box::pin(get(&global.client()?, &args, targets)).await })
}

async fn get(client: &Client, args: &GetArgs, targets: Targets) -> anyhow::Result<ExitCode> {
    let namespace = (!args.all_namespaces).then_some(args.namespace.namespace.as_str());
    let params = ListParams {
        label_selector: args.selector.clone(),
        field_selector: args.field_selector.clone(),
        ..ListParams::default()
    };
    let mut printer = Printer::new(args, &targets);
    let mut outcome = BatchOutcome::default();
    let has_footer = targets == Targets::All(ResourceKind::Node)
        && !args.watch
        && matches!(args.output, None | Some(OutputFormat::Wide))
        && std::io::stdout().is_terminal();
    match targets {
        Targets::All(kind) => with_kind!(kind, K => {
            let api = api::<K>(client, namespace);
            // Errors such as a bad selector are reported at once; a reflector would retry for ever.
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

/// Prints the present objects and then each change, over reconnects, until the command is ended.
async fn watch<K: TableRow>(
    api: Api<K>,
    params: ListParams,
    printer: &mut Printer,
    kind: ResourceKind,
) -> anyhow::Result<()> {
    let (cache, driver) = reflector(api, params);
    let show = async {
        cache.synced().await;
        let mut changes = cache.subscribe();
        // A subscription begins with all present objects; printed together, they make one table.
        let mut present = Vec::new();
        while let Some(CacheChange::Applied { new, .. }) = changes.try_next() {
            present.push(Arc::unwrap_or_clone(new));
        }
        printer.add(kind, present)?;
        loop {
            let object = match changes.next().await {
                CacheChange::Applied { new, .. } => new,
                CacheChange::Deleted(last) => last,
            };
            printer.add(kind, vec![Arc::unwrap_or_clone(object)])?;
        }
    };
    tokio::select! {
        () = driver => Ok(()),
        ended = show => ended,
    }
}

/// The object as JSON, without `metadata.managedFields`.
pub(super) fn document<K: Object>(object: &K) -> anyhow::Result<Value> {
    let mut document = object.to_json()?;
    if let Some(metadata) = document.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    Ok(document)
}

/// Prints objects as they come: rows and names at once, documents at the end, or one by one in a
/// watch.
#[derive(Debug)]
struct Printer {
    format: Option<OutputFormat>,
    watch: bool,
    show_managed_fields: bool,
    /// True if one object was requested, not a list.
    single: bool,
    show_namespace: bool,
    /// True to print names as `KIND/NAME`, since there are several kinds.
    show_kind: bool,
    /// The message in place of an empty table.
    nothing: String,
    table: Option<(ResourceKind, TextTable)>,
    documents: Vec<Value>,
}

impl Printer {
    fn new(args: &GetArgs, targets: &Targets) -> Self {
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
            show_managed_fields: args.show_managed_fields,
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

    fn add<K: TableRow>(&mut self, kind: ResourceKind, mut objects: Vec<K>) -> anyhow::Result<()> {
        match self.format {
            None | Some(OutputFormat::Wide) => {
                K::sort(&mut objects);
                if let Some(rows) = self.rows(kind, &objects, Timestamp::now()) {
                    output::line(rows)?;
                }
            }
            Some(OutputFormat::Name) => {
                for object in objects {
                    output::line(format_args!("{kind}/{}", object.name()))?;
                }
            }
            Some(format @ (OutputFormat::Json | OutputFormat::Yaml)) => {
                for object in &objects {
                    let document = match self.show_managed_fields {
                        true => object.to_json()?,
                        false => document(object)?,
                    };
                    match format {
                        OutputFormat::Yaml if self.watch => {
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

    /// The rows, with a header at the beginning of a table.
    fn rows<K: TableRow>(
        &mut self,
        kind: ResourceKind,
        objects: &[K],
        now: Timestamp,
    ) -> Option<String> {
        if objects.is_empty() {
            return None;
        }
        let wide = self.format == Some(OutputFormat::Wide);
        let is_shown = |column: &Column| wide || !column.wide;
        let cells: Vec<_> = objects
            .iter()
            .map(|object| {
                let columns = K::COLUMNS.iter().zip(object.cells(now));
                let mut cells: Vec<_> = columns
                    .filter(|(column, _)| is_shown(column))
                    .map(
                        |(column, cell)| match self.show_kind && column.name == NAME {
                            true => format!("{kind}/{cell}"),
                            false => cell,
                        },
                    )
                    .collect();
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
            let columns = K::COLUMNS.iter().filter(|column| is_shown(column));
            let mut columns: Vec<_> = columns.map(|column| column.name).collect();
            if self.show_namespace {
                columns.insert(0, "NAMESPACE");
            }
            self.table = Some((kind, TextTable::new(columns)));
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
            None | Some(OutputFormat::Wide) if self.table.is_none() && !self.single => {
                anstream::eprintln!("{}", self.nothing);
                Ok(())
            }
            None | Some(OutputFormat::Wide | OutputFormat::Name) => Ok(()),
            Some(OutputFormat::Json) => self
                .document()
                .map_or(Ok(()), |document| output::json(&document)),
            Some(OutputFormat::Yaml) => self
                .document()
                .map_or(Ok(()), |document| output::yaml(&document)),
        }
    }

    /// One object, or a `List`, which may be empty; `None` if the one object was not found.
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
    use podplane_api::{
        core::{Event, Namespace, Pod},
        strict,
    };

    use super::*;
    use crate::commands::parse_args;

    fn printer(line: &str) -> Printer {
        let args = parse_args::<GetArgs>(line.split(' ')).unwrap();
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
    fn shows_pods_as_a_table() {
        assert_eq!(
            printer("get pods")
                .rows(ResourceKind::Pod, &pods(), now())
                .unwrap(),
            "NAME    READY   STATUS              RESTARTS   AGE\n\
             web-0   0/1     ContainerCreating   0          5s\n\
             dns     0/1     ContainerCreating   0          5s"
        );
        assert_eq!(
            printer("get pods -A -o wide")
                .rows(ResourceKind::Pod, &pods(), now())
                .unwrap(),
            "NAMESPACE     NAME    READY   STATUS              RESTARTS   AGE   IP       NODE     NOMINATED NODE   READINESS GATES\n\
             default       web-0   0/1     ContainerCreating   0          5s    <none>   node-0   <none>           <none>\n\
             kube-system   dns     0/1     ContainerCreating   0          5s    <none>   node-0   <none>           <none>"
        );
    }

    #[test]
    fn puts_the_kind_only_before_names() {
        let mut printer = printer("get event/a pod/web-0 -o wide");
        let event = json!({"metadata": {"namespace": "default", "name": "a"}, "involvedObject": {},
            "lastTimestamp": "2026-01-01T00:00:00Z", "reason": "Scheduled"});
        let event: Event = strict::decode(event).unwrap();
        let table = printer.rows(ResourceKind::Event, &[event], now()).unwrap();
        let row = table.lines().nth(1).unwrap();
        assert!(row.starts_with("5s ") && row.ends_with(" event/a"), "{row}");
    }

    #[test]
    fn several_kinds_have_tables_of_their_own() {
        let mut printer = printer("get pod/web-0 ns/default");
        let first = printer
            .rows(ResourceKind::Pod, &pods()[..1], now())
            .unwrap();
        assert!(first.contains("\npod/web-0   0/1"), "{first}");
        let namespace: Namespace =
            strict::decode(json!({"metadata": {"name": "default"}, "status": {"phase": "Active"}}))
                .unwrap();
        let second = printer
            .rows(ResourceKind::Namespace, &[namespace], now())
            .unwrap();
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
        list.add(ResourceKind::Pod, pods()).unwrap();
        assert_eq!(
            list.document().unwrap()["items"][1]["metadata"]["name"],
            "dns"
        );
        let mut one = printer("get pod web-0 -o json");
        one.add(ResourceKind::Pod, pods()[..1].to_vec()).unwrap();
        assert_eq!(
            one.document(),
            Some(json!({"apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "default", "name": "web-0", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"nodeName": "node-0", "containers": [{"name": "c"}]}, "status": {"phase": "Pending"}}))
        );
    }
}
