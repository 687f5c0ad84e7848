use super::*;

/// A step from `start` to `end` in milliseconds.
fn step(id: u64, parent: u64, name: &str, start: u64, end: u64) -> TraceStep<'_, u64> {
    TraceStep {
        id,
        parent: Some(parent).filter(|parent| *parent != 0),
        name,
        process: "kubelet",
        error: None,
        start: start * 1_000_000,
        end: end * 1_000_000,
    }
}

/// The root, and `count` attempts of four steps each, ten seconds apart, which fail. The error of
/// the call repeats that of the innermost step.
fn attempts(count: u64) -> Vec<TraceStep<'static, u64>> {
    let mut steps = vec![step(1, 0, "create", 0, 1)];
    for attempt in 1..=count {
        let (id, start) = (attempt * 10, 100 + (attempt - 1) * 10_000);
        let why = match attempt % 2 {
            0 => "sandbox a: no address",
            _ => "sandbox b: no address",
        };
        steps.push(step(id, 1, "sync", start, start + 500));
        steps.push(TraceStep {
            error: Some(why),
            ..step(id + 1, id, "add", start, start + 400)
        });
        steps.push(TraceStep {
            error: Some("no address"),
            ..step(id + 2, id + 1, "allocate", start, start + 300)
        });
        steps.push(step(id + 3, id + 1, "clean", start + 300, start + 400));
    }
    steps
}

fn outline(steps: &[TraceStep<'_, u64>]) -> Outline {
    Outline::of(steps, &DroppedSteps::default())
}

fn dropped(count: u64, name: &str, attempts: u64) -> DroppedSteps {
    DroppedSteps {
        count,
        attempts: vec![DroppedAttempts {
            name: name.into(),
            process: "kubelet".into(),
            count: attempts,
        }],
    }
}

fn fold(outline: &Outline) -> &StepFold {
    match outline.folds.as_slice() {
        [fold] => fold,
        folds => panic!("{folds:?}"),
    }
}

#[test]
fn steps_are_before_their_parts_and_within_the_root() {
    let steps = [
        step(5, 3, "part", 60, 70),
        step(3, 1, "sync", 50, 100),
        step(9, 8, "its parent is not known", 40, 45),
        step(1, 0, "create", 0, 10),
        step(6, 7, "circle", 0, 1),
        step(7, 6, "circle", 0, 1),
    ];
    let outline = outline(&steps);
    let shown: Vec<_> = outline
        .steps
        .iter()
        .map(|step| (steps[step.source].id, step.parent, step.depth))
        .collect();
    assert_eq!(
        shown,
        [
            (1, None, 0),
            (9, Some(0), 1),
            (3, Some(0), 1),
            (5, Some(2), 2),
            (7, None, 0),
            (6, None, 0),
        ],
        "none is lost"
    );
}

#[test]
fn a_chain_of_any_length_is_shown() {
    let steps: Vec<_> = (1..=1000)
        .map(|id| step(id, id - 1, "part", id, id))
        .collect();
    let outline = outline(&steps);
    assert_eq!(outline.steps.len(), 1000);
    let depths = outline.steps.iter().map(|step| step.depth);
    assert_eq!(depths.max(), Some(DEEPEST));
}

#[test]
fn attempts_between_the_first_and_the_last_one_are_folded() {
    let steps = attempts(9);
    let nine = outline(&steps);
    let found = fold(&nine);
    assert_eq!(found.places, 5..33, "the root and an attempt are before it");
    assert_eq!(found.attempts, [5, 9, 13, 17, 21, 25, 29]);
    assert_eq!(
        found.text(),
        "7 attempts in between, each failed: no address"
    );
    assert_eq!(nine.steps.len(), 37);
    assert_eq!(outline(&attempts(3)).folds, []);
}

#[test]
fn attempts_that_are_not_kept_are_counted_with_those_between() {
    let of = |dropped| {
        let outline = Outline::of(&attempts(9), &dropped);
        fold(&outline).text()
    };
    assert_eq!(
        of(dropped(80, "sync", 20)),
        "27 attempts in between, 7 kept, each failed: no address"
    );
    let of_others = "7 attempts in between, each failed: no address";
    assert_eq!(of(dropped(80, "schedule", 20)), of_others);
}

#[test]
fn different_attempts_in_turn_are_one_fold_in_the_name_of_those_that_failed() {
    let mut steps = vec![step(1, 0, "create", 0, 1)];
    for number in 1..=6 {
        steps.push(step(number * 10, 1, "queue", number * 10, number * 10 + 9));
        steps.push(TraceStep {
            error: Some("no node"),
            ..step(
                number * 10 + 1,
                1,
                "schedule",
                number * 10 + 9,
                number * 10 + 9,
            )
        });
    }
    let outline = outline(&steps);
    let found = fold(&outline);
    assert_eq!(found.places, 3..11);
    assert_eq!(found.text(), "4 attempts in between, each failed: no node");
    assert_eq!(found.attempts, [4, 6, 8, 10]);
}

#[test]
fn steps_without_parts_are_folded_though_they_did_not_fail() {
    let mut steps = vec![step(1, 0, "create", 0, 1)];
    steps.extend((2..=6).map(|id| step(id, 1, "status", id, id)));
    let outline = outline(&steps);
    assert_eq!(fold(&outline).text(), "3 similar steps in between");
    let lines = outline.lines(true);
    let shown: Vec<_> = lines
        .iter()
        .map(|(depth, line)| (*depth, matches!(line, OutlineLine::Fold(_))))
        .collect();
    assert_eq!(shown, [(0, false), (1, false), (1, true), (1, false)]);
    assert_eq!(outline.lines(false).len(), 6);
}

#[test]
fn a_wait_after_a_failed_attempt_is_a_gap_with_its_cause() {
    let mut steps = attempts(2);
    steps.push(step(99, 1, "late", 12_700, 12_701));
    let outline = outline(&steps);
    let gaps: Vec<_> = outline
        .gaps
        .iter()
        .map(|gap| {
            let took = (gap.end - gap.start) / 1_000_000;
            (gap.before, gap.start / 1_000_000, took, gap.text.as_str())
        })
        .collect();
    let cause = "without a step: the back-off of kubelet after its failed sync";
    assert_eq!(
        gaps,
        [(5, 600, 9500, cause), (9, 10_600, 2100, "without a step")]
    );
    let lines = outline.lines(true);
    let places = lines.iter().enumerate();
    let places = places.filter(|(_, (_, line))| matches!(line, OutlineLine::Gap(_)));
    assert_eq!(places.map(|(place, _)| place).collect::<Vec<_>>(), [5, 10]);
}

#[test]
fn gaps_are_between_steps_and_within_one_around_all() {
    let steps = [
        step(1, 0, "all", 0, 20_000),
        step(2, 1, "a", 0, 2000),
        step(3, 1, "b", 1000, 3000),
        step(4, 1, "c", 10_000, 12_000),
        step(5, 1, "d", 12_500, 20_000),
    ];
    let outline = outline(&steps);
    let gaps = outline.gaps.iter().map(|gap| (gap.start, gap.end));
    assert_eq!(
        gaps.collect::<Vec<_>>(),
        [(3_000_000_000, 10_000_000_000)],
        "shorter ones are not said"
    );
    assert_eq!(
        Outline::of::<u64>(&[], &DroppedSteps::default()),
        Outline::default()
    );
}

#[test]
fn steps_that_are_not_kept_are_missing_in_the_longest_gap() {
    let mut steps = attempts(9);
    steps.retain(|step| !(40..60).contains(&step.id));
    let outline = Outline::of(&steps, &dropped(8, "sync", 2));
    let missing: Vec<_> = outline
        .gaps
        .iter()
        .filter(|gap| gap.text == "in which 8 steps in between are not kept")
        .collect();
    assert_eq!(missing.len(), 1);
    assert_eq!(missing[0].end - missing[0].start, 29_500_000_000);
    let found = fold(&outline);
    assert!(found.places.contains(&missing[0].before));
    assert_eq!(
        found.text(),
        "7 attempts in between, 5 kept, each failed: no address"
    );
}
