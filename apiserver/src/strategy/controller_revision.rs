use podplane_api::apps::ControllerRevision;

use super::Strategy;

impl Strategy for ControllerRevision {
    const SERVICE: &'static str = "podplane.apps.v1.ControllerRevisionService";
}
