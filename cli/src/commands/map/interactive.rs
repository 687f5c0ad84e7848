//! `map --interactive`: the map of `podplane top`, of any source.

use std::{process::ExitCode, sync::Arc};

use podplane_api::pod_ips::PodIpResource;
use podplane_map::ColorMode;
use podplane_tui::{MapSettings, Theme, View};

use super::{MapArgs, color_mode, measured, source::MapSource};
use crate::{
    commands::{
        explain::ExplainerFlags,
        top::{self, LiveView},
    },
    global::{GlobalOptions, block_on},
    report::UsageError,
};

/// Follows a live cluster, and reads any other source once.
pub(super) fn run(args: MapArgs, global: &GlobalOptions) -> anyhow::Result<ExitCode> {
    let theme = match color_mode(args.color, &args.output) {
        ColorMode::Plain => Theme::Plain,
        ColorMode::Ansi256 => Theme::Colored,
    };
    let source = MapSource::new(&args.source, global);
    if args.source.reads_standard_input() {
        let why = "--from - with --interactive: standard input has the dump, and cannot have the \
                   keys; pass the dump as a file";
        return Err(UsageError(why.to_owned()).into());
    }
    if let Some(name) = source.fixed_name() {
        let parts = block_on(source.read())?;
        return top::show_map(MapSettings {
            space: Arc::new(measured(parts)),
            source: name,
            part: args.part,
            theme,
        });
    }
    let ranges = source.ranges();
    if !ranges.services.is_empty() {
        let why = "--service-cidr with --interactive needs --from or --recording: the ranges of \
                   Services of a live cluster are those of its objects";
        return Err(UsageError(why.to_owned()).into());
    }
    top::show(
        LiveView {
            view: View::Map,
            part: args.part,
            namespace: None,
            source: ExplainerFlags::of_cluster(args.source.cluster()),
            resource: PodIpResource::default(),
            ranges: ranges.clone(),
            theme,
        },
        global,
    )
}
