//! The trace of a pod's creation, as the last lines of its log.

use std::time::Duration;

use podplane_api::jiff::Timestamp;
use podplane_host::clock;
use podplane_service_runtime::trace::{Journey, ReceivedSpan, waterfall};

use super::{LifeStage, LogLine};
use crate::journeys::{Journeys, TraceSnapshot};

/// The width in columns. A client does not send its own.
const WIDTH: usize = 120;
/// The time without a new span after which a trace is complete. Processes send their spans a little
/// after they ended.
const QUIET: Duration = Duration::from_secs(1);
/// The step after which a pod has arrived.
const ARRIVED: &str = "status Running";

/// The lines, all with the time at which the journey ended.
pub(super) fn lines(journeys: &Journeys, uid: &str) -> Vec<LogLine> {
    let trace = Journey::creation(uid).and_then(|journey| journeys.get(journey));
    let Some(TraceSnapshot {
        id, spans, dropped, ..
    }) = trace
    else {
        return Vec::new();
    };
    let end = spans.iter().map(|span| span.end_unix_nano).max();
    let time = Timestamp::from_nanosecond(end.unwrap_or_default().into()).unwrap_or_default();
    let line = |text: String| LogLine {
        time,
        stage: LifeStage::Traced,
        what: String::new(),
        how: text,
    };
    let heading = format!("trace {id:032x}:");
    let more = dropped.remark().map(|remark| format!("({remark})"));
    let shown = waterfall::lines(&spans, &dropped, WIDTH);
    let texts = std::iter::once(heading).chain(shown).chain(more);
    texts.map(line).collect()
}

fn arrived(trace: &TraceSnapshot) -> bool {
    let is_arrival = |span: &ReceivedSpan| span.name == ARRIVED;
    trace.spans.iter().any(is_arrival)
}

/// Waits until the trace of an arrived pod is complete, but only for a short time.
pub(super) async fn soon_settled(journeys: &Journeys, uid: &str) {
    let trace = Journey::creation(uid).and_then(|journey| journeys.get(journey));
    if trace.as_ref().is_some_and(arrived) {
        // After that the present spans are shown.
        _ = clock::timeout(2 * QUIET, settled(journeys, uid)).await;
    }
}

/// Waits until the pod has arrived and its trace is complete.
pub(super) async fn settled(journeys: &Journeys, uid: &str) {
    let Some(journey) = Journey::creation(uid) else {
        return std::future::pending().await;
    };
    let mut turns = journeys.turns();
    loop {
        turns.borrow_and_update();
        let trace = journeys.get(journey).filter(arrived);
        let quiet = trace.map(|trace| {
            clock::system_time()
                .duration_since(trace.received)
                .unwrap_or_default()
        });
        match quiet {
            Some(quiet) if quiet >= QUIET => return,
            // Other traces may change all the time.
            Some(quiet) => clock::sleep(QUIET - quiet).await,
            None => {
                if turns.changed().await.is_err() {
                    return;
                }
            }
        }
    }
}
