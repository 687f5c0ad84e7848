use serde_json::Value;

use super::*;

fn budget(spec: Value) -> PodDisruptionBudget {
    let document = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
    PodDisruptionBudget::from_json(document).unwrap()
}

#[test]
fn accepts_numbers_and_percentages() {
    for spec in [
        json!({}),
        json!({"minAvailable": 0}),
        json!({"maxUnavailable": "100%", "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
        json!({"minAvailable": "30%", "selector": {"matchLabels": {"app": "web"}}}),
        json!({"maxUnavailable": 7, "selector": {}, "unhealthyPodEvictionPolicy": "IfHealthyBudget"}),
    ] {
        let errors = budget(spec).validate();
        assert!(errors.is_empty(), "{errors}");
    }
}

#[test]
fn refuses_contradictory_and_malformed_specs() {
    let percent = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
    let cases = [
        (
            json!({"minAvailable": 1, "maxUnavailable": 1}),
            r#"spec: Invalid value: {"maxUnavailable":1,"minAvailable":1}: minAvailable and maxUnavailable cannot be both set"#.to_owned(),
        ),
        (
            json!({"minAvailable": -1}),
            "spec.minAvailable: Invalid value: -1: must be greater than or equal to 0".to_owned(),
        ),
        (
            json!({"maxUnavailable": "a"}),
            format!(r#"spec.maxUnavailable: Invalid value: "a": {percent}"#),
        ),
        (
            json!({"maxUnavailable": "101%"}),
            r#"spec.maxUnavailable: Invalid value: "101%": must not be greater than 100%"#.to_owned(),
        ),
        (
            json!({"unhealthyPodEvictionPolicy": "Never"}),
            r#"spec.unhealthyPodEvictionPolicy: Unsupported value: "Never": supported values: "AlwaysAllow", "IfHealthyBudget""#.to_owned(),
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'".to_owned(),
        ),
    ];
    for (spec, expected) in cases {
        assert_eq!(budget(spec).validate().to_string(), expected);
    }
}

#[test]
fn refuses_negative_counts_and_malformed_conditions_in_the_status() {
    let old = budget(json!({}));
    let condition = |reason: &str| Condition {
        type_: DISRUPTION_ALLOWED.into(),
        status: "Maybe".into(),
        reason: reason.into(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    };
    let new = PodDisruptionBudget {
        status: Some(PodDisruptionBudgetStatus {
            disruptions_allowed: Some(-1),
            conditions: Some(vec![condition("")]),
            ..PodDisruptionBudgetStatus::default()
        }),
        ..old.clone()
    };
    assert_eq!(
        new.validate_update(&old).to_string(),
        r#"[status.conditions[0].status: Unsupported value: "Maybe": supported values: "False", "True", "Unknown", status.conditions[0].reason: Required value, status.disruptionsAllowed: Invalid value: -1: must be greater than or equal to 0]"#
    );
}

#[test]
fn no_selector_selects_nothing_and_an_empty_one_everything() {
    let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
    let selects = |selector: Value| {
        let budget = budget(json!({"selector": selector}));
        (
            selects_labels(&budget, Some(&labels)),
            selects_labels(&budget, None),
        )
    };
    assert_eq!(selects(Value::Null), (false, false));
    assert_eq!(selects(json!({})), (true, true));
    assert_eq!(
        selects(json!({"matchLabels": {"app": "web"}})),
        (true, false)
    );
    assert_eq!(
        selects(json!({"matchLabels": {"app": "db"}})),
        (false, false)
    );
}

#[test]
fn the_condition_follows_the_count_and_keeps_its_time() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut status = PodDisruptionBudgetStatus {
        observed_generation: Some(3),
        ..PodDisruptionBudgetStatus::default()
    };
    let mut reasons = Vec::new();
    let failed = DisruptionState::SyncFailed("why".into());
    for (second, allowed, state) in [
        (1, 0, &DisruptionState::Counted),
        (2, 0, &failed),
        (3, 2, &DisruptionState::Counted),
        (4, 1, &DisruptionState::Counted),
    ] {
        status.disruptions_allowed = Some(allowed);
        set_disruption_allowed(&mut status, state, at(second));
        let condition = disruption_allowed(&status).unwrap();
        assert_eq!(condition.observed_generation, Some(3));
        reasons.push((
            condition.status.clone(),
            condition.reason.clone(),
            condition.last_transition_time.0.as_second(),
            sync_failure(&status).map(str::to_owned),
        ));
    }
    let state = |status: &str, reason: &str, since, failure: Option<&str>| {
        (
            status.to_owned(),
            reason.to_owned(),
            since,
            failure.map(str::to_owned),
        )
    };
    assert_eq!(
        reasons,
        [
            state("False", "InsufficientPods", 1, None),
            state("False", "SyncFailed", 1, Some("why")),
            state("True", "SufficientPods", 3, None),
            state("True", "SufficientPods", 3, None),
        ]
    );
    assert_eq!(status.conditions.unwrap().len(), 1);
}

#[test]
fn shows_limits_and_allowed_disruptions() {
    let mut budget = budget(json!({"minAvailable": "50%"}));
    budget.prepare_for_create();
    assert_eq!(
        budget.cells(Timestamp::UNIX_EPOCH),
        ["a", "50%", "N/A", "0", "<unknown>"]
    );
}
