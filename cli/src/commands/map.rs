//! `map`: the address space of a cluster, or the network of one node, as text and pictures.

mod form;
mod interactive;
pub(crate) mod source;

use std::process::ExitCode;

use clap::ColorChoice;
use podplane_cluster::data_dir::DataDir;
use podplane_map::{
    AddressDetail, AddressSpace, ColorMode, MapTarget, Scene, SceneMark, ShownPart, SpaceParts,
    TextGrid, TextSize, View, svg,
};
use podplane_progress::{PlainLines, Progress};
use serde_json::json;

use self::{
    form::{MapFormat, MapOutput},
    source::{MapSource, SourceArgs},
};
use super::completion::candidates;
use crate::{
    any_cluster::ANY_CLUSTER,
    global::{GlobalOptions, block_on},
    kind::ResourceKind,
    output, picture,
    report::UsageError,
    topology,
};

/// Show the address space of a cluster: the blocks of nodes, and each address by its state
///
/// The map has every address of the shown part in it: a cell stands for a prefix, and shows the
/// most urgent state in it and the part in use in eighths. A single duplicate is visible in a /8.
/// Ranges of IPv6 with more than 65,536 addresses show the used prefixes instead. On a terminal it
/// has colours, unless NO_COLOR is set.
///
/// Reads the running podplane cluster, unless --kubeconfig, --in-cluster, --from or --recording
/// names another source.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane map\n  podplane map 10.244.1.0/24\n  podplane map 10.244.1.7\n  podplane map services\n  kubectl get nodes,pods,services,servicecidrs -A -o json | podplane map --from - -o svg=map.svg\n  podplane map --kubeconfig ~/.kube/config -o png=map.png\n  podplane map --recording ./runs/exhaustion --at 12.5\n  podplane map --interactive 10.244.1.0/24\n  podplane map --node node-0"
)]
pub(crate) struct MapArgs {
    /// Show this part: a prefix such as 10.244.1.0/24, an address, the name of a network, or the
    /// first network of pods, services or nodes [default: pods]
    #[arg(value_name = "NETWORK|PREFIX", add = candidates::networks_and_blocks())]
    part: Option<MapTarget>,

    #[command(flatten)]
    source: SourceArgs,

    /// Show the network of this node instead: its namespace with bridge, veths, pods and routes;
    /// the node must run on this machine, in kernel mode
    #[arg(
        long,
        value_name = "NODE",
        add = candidates::of(ResourceKind::Node),
        conflicts_with_all = ["part", "from", "recording", "cluster_cidr", "service_cidr", ANY_CLUSTER]
    )]
    node: Option<String>,

    /// Move through the map on the terminal, from cell to cell and from the largest prefix to one
    /// address, as `podplane top map` does; a live cluster is followed
    #[arg(short, long, conflicts_with_all = ["node", "output"])]
    interactive: bool,

    /// Print in this format, or write it to FILE: text, json, svg or png
    #[arg(short, long, value_name = "FORMAT[=FILE]", default_value = "text")]
    output: MapOutput,

    /// Use colours on the terminal: auto, on a terminal unless NO_COLOR is set; always; or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    color: ColorChoice,
}

pub(crate) fn run(args: MapArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    if args.interactive {
        return interactive::run(args, global);
    }
    args.output.check()?;
    match &args.node {
        Some(name) => {
            let dir = DataDir::new(&global.data_dir)?;
            let topology = topology::enter_and_read(&dir, name)?;
            match args.output.format {
                MapFormat::Text => args.output.write_text(&format!("{topology}\n"))?,
                MapFormat::Json => args.output.write_json(&serde_json::to_value(&topology)?)?,
                MapFormat::Svg => args.output.write(svg::topology(&topology).as_bytes())?,
                MapFormat::Png => args
                    .output
                    .write(&picture::png(&svg::topology(&topology))?)?,
            }
        }
        None => {
            let parts = block_on(async { MapSource::new(&args.source, global).read().await })?;
            show(&args, &measured(parts))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Counts the addresses, which takes a while for a large cluster.
fn measured(parts: SpaceParts) -> AddressSpace {
    let _progress = Progress::with_lines("counting the addresses", PlainLines::IfSlow);
    AddressSpace::new(parts)
}

fn show(args: &MapArgs, space: &AddressSpace) -> anyhow::Result<()> {
    let output = &args.output;
    let part = ShownPart::new(space, args.part.as_ref());
    if let Some(MapTarget::Address(ip)) = args.part {
        let detail = AddressDetail::new(space, ip);
        match output.format {
            MapFormat::Text => return output.write_text(&format!("{detail}\n")),
            MapFormat::Json => return output.write_json(&serde_json::to_value(&detail)?),
            MapFormat::Svg | MapFormat::Png => {}
        }
    }
    let ShownPart { network, prefix } = part.map_err(UsageError)?;
    match output.format {
        MapFormat::Text => {
            let size = text_size(output)?;
            let scene = Scene::new(space, network, prefix, size.limits())?;
            let text = TextGrid::new(&scene, size).to_text(color_mode(args.color, output));
            output.write(text.as_bytes())
        }
        MapFormat::Json => {
            let view = View::new(space, network, prefix, svg::limits().main)?;
            output.write_json(&document(space, &view)?)
        }
        MapFormat::Svg | MapFormat::Png => {
            let scene = Scene::new(space, network, prefix, svg::limits())?;
            let scene = scene.with_marks(SceneMark::of_overlaps(space));
            let picture = svg::picture(&scene);
            match output.format {
                MapFormat::Png => output.write(&picture::png(&picture)?),
                _ => output.write(picture.as_bytes()),
            }
        }
    }
}

/// The view, and the addresses of it that have a state of their own.
fn document(space: &AddressSpace, view: &View) -> anyhow::Result<serde_json::Value> {
    let prefix = view.prefix();
    let records = space.records(&prefix);
    let addresses = records.map(|record| AddressDetail::new(space, record.ip));
    let addresses: Vec<_> = addresses
        .map(serde_json::to_value)
        .collect::<Result<_, _>>()?;
    Ok(json!({"view": view, "addresses": addresses}))
}

/// The size of the terminal, less a row for the prompt; 80 by 24 where there is none.
fn text_size(output: &MapOutput) -> anyhow::Result<TextSize> {
    let least = TextSize::MIN;
    let terminal = output.is_terminal().then(output::terminal_size).flatten();
    Ok(match terminal {
        Some((columns, _)) if columns < least.columns() => {
            let least = least.columns();
            let why = format!(
                "the map needs {least} columns, and this terminal has {columns}: enlarge it, write a picture with -o svg=FILE, or scroll with `podplane map | less -S`"
            );
            return Err(UsageError(why).into());
        }
        Some((columns, rows)) => TextSize::new(columns, rows.saturating_sub(1).max(least.rows()))?,
        None => TextSize::new(80, 24)?,
    })
}

fn color_mode(choice: ColorChoice, output: &MapOutput) -> ColorMode {
    let is_colored = match choice {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => output.wants_color(),
    };
    match is_colored {
        true => ColorMode::Ansi256,
        false => ColorMode::Plain,
    }
}
