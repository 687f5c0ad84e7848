use podplane_api::{
    IntOrString, Object as _,
    apps::{Deployment, ReplicaSet},
    jiff::SignedDuration,
};

use super::{
    conditions,
    revision::{self, DESIRED_REPLICAS, MAX_REPLICAS, REVISION},
    simulation::{Simulation, recreate, rolling},
};

fn number(value: i32) -> IntOrString {
    IntOrString::Int(value)
}

fn condition(deployment: &Deployment, r#type: &str) -> (String, String, String) {
    let status = deployment.status.as_ref().unwrap();
    let condition =
        conditions::get(status, r#type).unwrap_or_else(|| panic!("no {}: {status:?}", r#type));
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (
        condition.status.clone(),
        text(&condition.reason),
        text(&condition.message),
    )
}

fn of_image<'a>(world: &'a Simulation, image: &str) -> &'a ReplicaSet {
    let mut sets = world.sets.values();
    sets.find(|set| world.image(set) == image).unwrap()
}

fn expected_condition(status: &str, reason: &str, message: &str) -> (String, String, String) {
    (status.into(), reason.into(), message.into())
}

#[test]
fn reports_each_step_of_the_first_rollout() {
    let mut world = Simulation::new(2, rolling(number(1), number(0)));
    world.plan_and_write();
    let set = of_image(&world, "1").clone();
    let name = set.name();
    let hash = name.strip_prefix("web-").unwrap();
    let spec = set.spec.as_ref().unwrap();
    assert_eq!(
        spec.selector.match_labels.as_ref().unwrap()["pod-template-hash"],
        hash
    );
    assert_eq!(
        spec.template
            .as_ref()
            .unwrap()
            .metadata
            .as_ref()
            .unwrap()
            .labels
            .as_ref()
            .unwrap()["pod-template-hash"],
        hash
    );
    assert_eq!(set.metadata.labels.as_ref().unwrap()["app"], "web");
    let annotation = |key| revision::number(&set.metadata, key);
    assert_eq!(
        (
            annotation(REVISION),
            annotation(DESIRED_REPLICAS),
            annotation(MAX_REPLICAS)
        ),
        (Some(1), Some(2), Some(3))
    );
    assert_eq!(
        revision::number(&world.deployment.metadata, REVISION),
        Some(1)
    );
    let progressing = |world: &Simulation| condition(&world.deployment, conditions::PROGRESSING);
    let available = |world: &Simulation| condition(&world.deployment, conditions::AVAILABLE);
    assert_eq!(
        progressing(&world),
        expected_condition(
            "True",
            "NewReplicaSetCreated",
            &format!("Created new replica set \"{name}\"")
        )
    );
    assert_eq!(
        available(&world),
        expected_condition(
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability."
        )
    );
    world.act(0);
    world.plan_and_write();
    assert_eq!(
        progressing(&world),
        expected_condition(
            "True",
            "ReplicaSetUpdated",
            &format!("ReplicaSet \"{name}\" is progressing.")
        )
    );
    assert_eq!(
        world
            .deployment
            .status
            .as_ref()
            .unwrap()
            .unavailable_replicas,
        Some(2)
    );
    world.settle();
    assert_eq!(
        progressing(&world),
        expected_condition(
            "True",
            "NewReplicaSetAvailable",
            &format!("ReplicaSet \"{name}\" has successfully progressed.")
        )
    );
    assert_eq!(
        available(&world),
        expected_condition(
            "True",
            "MinimumReplicasAvailable",
            "Deployment has minimum availability."
        )
    );
    let status = world.deployment.status.clone().unwrap();
    assert_eq!(
        (
            status.replicas,
            status.updated_replicas,
            status.ready_replicas,
            status.available_replicas
        ),
        (Some(2), Some(2), Some(2), Some(2))
    );
    assert_eq!(
        (status.unavailable_replicas, status.observed_generation),
        (None, Some(1))
    );
    assert_eq!(world.log, ["+1 2"]);
}

#[test]
fn rolls_out_in_steps_within_the_bounds() {
    let mut world = Simulation::new(3, rolling(number(1), number(0)));
    world.settle();
    world.log.clear();
    world.set_image("2");
    world.settle();
    assert_eq!(
        world.log,
        ["+2 1", "1 3-2", "2 1-2", "1 2-1", "2 2-3", "1 1-0"]
    );

    let mut world = Simulation::new(4, rolling(number(0), number(2)));
    world.settle();
    world.log.clear();
    world.set_image("2");
    world.settle();
    assert_eq!(world.log, ["+2 0", "1 4-2", "2 0-2", "1 2-0", "2 2-4"]);
}

#[test]
fn removes_unhealthy_old_pods_first() {
    let mut world = Simulation::new(10, rolling(number(0), number(2)));
    world.settle();
    // An update that never becomes ready, and then another.
    world.set_image("2");
    world.plan_and_write();
    world.plan_and_write();
    world.act(0);
    world.act(1);
    world.plan_and_write();
    world.act(0);
    world.act(1);
    assert_eq!(world.sizes(), [("1".into(), 8), ("2".into(), 2)].into());
    world.log.clear();
    world.set_image("3");
    world.plan_and_write();
    world.plan_and_write();
    assert_eq!(world.log, ["+3 0", "2 2-0"]);
}

#[test]
fn recreate_waits_for_the_last_old_pod() {
    let mut world = Simulation::new(2, recreate());
    world.settle();
    world.log.clear();
    world.set_image("2");
    world.plan_and_write();
    world.plan_and_write();
    assert_eq!(world.log, ["1 2-0"], "its pods still exist");
    world.settle();
    assert_eq!(world.log, ["1 2-0", "+2 2"]);
}

#[test]
fn undone_rollout_is_a_new_revision_with_a_history() {
    let mut world = Simulation::new(1, rolling(number(1), number(0)));
    for image in ["1", "2", "1", "2"] {
        world.set_image(image);
        world.settle();
    }
    let annotations = |image| {
        of_image(&world, image)
            .metadata
            .annotations
            .clone()
            .unwrap()
    };
    assert_eq!(annotations("1")[REVISION], "3");
    assert_eq!(
        annotations("1")["deployment.kubernetes.io/revision-history"],
        "1"
    );
    assert_eq!(annotations("2")[REVISION], "4");
    assert_eq!(
        annotations("2")["deployment.kubernetes.io/revision-history"],
        "2"
    );
    assert_eq!(
        revision::number(&world.deployment.metadata, REVISION),
        Some(4)
    );
    assert_eq!(world.sets.len(), 2);
}

#[test]
fn keeps_old_revisions_up_to_the_limit() {
    let mut world = Simulation::new(1, rolling(number(1), number(0)));
    world.change(|spec| spec.revision_history_limit = Some(2));
    for image in ["1", "2", "3", "4", "5"] {
        world.set_image(image);
        world.settle();
    }
    assert_eq!(
        world.sizes(),
        [("3".into(), 0), ("4".into(), 0), ("5".into(), 1)].into()
    );
}

#[test]
fn distributes_a_scale_during_a_rollout_in_proportion() {
    // Kubernetes' documentation: 10 replicas, maxSurge 3, maxUnavailable 2, a rollout that is stuck
    // at 8 and 5, scaled to 15: 11 and 7.
    let mut world = Simulation::new(10, rolling(number(3), number(2)));
    world.settle();
    world.set_image("2");
    for _ in 0..4 {
        world.plan_and_write();
        world.act(0);
        world.act(1);
    }
    assert_eq!(world.sizes(), [("1".into(), 8), ("2".into(), 5)].into());
    world.change(|spec| spec.replicas = Some(15));
    world.plan_and_write();
    assert_eq!(world.sizes(), [("1".into(), 11), ("2".into(), 7)].into());
    assert_eq!(
        revision::number(&of_image(&world, "1").metadata, MAX_REPLICAS),
        Some(18)
    );
    world.change(|spec| spec.replicas = Some(0));
    world.plan_and_write();
    assert_eq!(world.sizes(), [("1".into(), 0), ("2".into(), 0)].into());
}

#[test]
fn scales_but_does_not_roll_out_a_paused_deployment() {
    let mut world = Simulation::new(2, rolling(number(1), number(0)));
    world.settle();
    world.log.clear();
    world.change(|spec| spec.paused = Some(true));
    world.set_image("2");
    world.settle();
    let progressing = condition(&world.deployment, conditions::PROGRESSING);
    assert_eq!(
        progressing,
        expected_condition("Unknown", "DeploymentPaused", "Deployment is paused")
    );
    world.change(|spec| spec.replicas = Some(3));
    world.settle();
    assert_eq!(world.log, ["1 2-3"]);
    world.change(|spec| spec.paused = None);
    world.plan_and_write();
    world.settle();
    assert_eq!(world.sizes(), [("1".into(), 0), ("2".into(), 3)].into());
    assert_eq!(
        condition(&world.deployment, conditions::PROGRESSING).1,
        "NewReplicaSetAvailable"
    );
}

#[test]
fn reports_a_rollout_without_progress_after_the_deadline() {
    let mut world = Simulation::new(1, rolling(number(1), number(0)));
    world.settle();
    world.set_image("2");
    world.plan_and_write();
    world.act(0);
    world.act(1);
    world.plan_and_write();
    let wake = world.plan().wake.unwrap();
    assert_eq!(wake, SignedDuration::from_secs(601));
    world.now += wake;
    world.plan_and_write();
    let name = of_image(&world, "2").name().to_owned();
    let late = expected_condition(
        "False",
        "ProgressDeadlineExceeded",
        &format!("ReplicaSet \"{name}\" has timed out progressing."),
    );
    assert_eq!(condition(&world.deployment, conditions::PROGRESSING), late);
    assert_eq!(world.plan().wake, None);
    // Progress after the deadline is reported too.
    world.settle();
    assert_eq!(
        condition(&world.deployment, conditions::PROGRESSING).1,
        "NewReplicaSetAvailable"
    );
}

#[test]
fn reports_the_failure_of_a_replica_set() {
    let mut world = Simulation::new(1, rolling(number(1), number(0)));
    world.plan_and_write();
    let failure: podplane_api::apps::ReplicaSetCondition =
        serde_json::from_value(serde_json::json!({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "no"})).unwrap();
    let name = of_image(&world, "1").name().to_owned();
    let status = world
        .sets
        .get_mut(&name)
        .unwrap()
        .status
        .get_or_insert_default();
    status.conditions = Some(vec![failure]);
    world.plan_and_write();
    assert_eq!(
        condition(&world.deployment, conditions::REPLICA_FAILURE),
        expected_condition("True", "FailedCreate", "no")
    );
    world.sets.get_mut(&name).unwrap().status = None;
    world.settle();
    assert!(
        conditions::get(
            world.deployment.status.as_ref().unwrap(),
            conditions::REPLICA_FAILURE
        )
        .is_none()
    );
}

#[test]
fn only_updates_counts_of_a_deployment_in_deletion() {
    let mut world = Simulation::new(1, rolling(number(1), number(0)));
    world.settle();
    world.log.clear();
    world.deployment.metadata.deletion_timestamp = Some(podplane_api::meta::Time(world.now));
    world.set_image("2");
    world.change(|spec| spec.replicas = Some(5));
    world.settle();
    assert_eq!(world.log, [""; 0]);
    let status = world.deployment.status.clone().unwrap();
    assert_eq!(
        status.observed_generation,
        world.deployment.metadata.generation
    );
}
