use podplane_api::{
    core::Event,
    jiff::{SignedDuration, Timestamp},
};

use super::Strategy;

/// How long an event is kept after it last happened, as in Kubernetes.
const TTL: SignedDuration = SignedDuration::from_hours(1);

impl Strategy for Event {
    const SERVICE: &'static str = "podplane.core.v1.EventService";
    const CREATE_ON_UPDATE: bool = true;

    fn expires(&self) -> Option<Timestamp> {
        let times = [
            self.last_timestamp.as_ref().map(|time| time.0),
            self.first_timestamp.as_ref().map(|time| time.0),
            self.event_time.as_ref().map(|time| time.0),
            self.series
                .as_ref()
                .and_then(|series| series.last_observed_time.as_ref())
                .map(|time| time.0),
            self.metadata.creation_timestamp.as_ref().map(|time| time.0),
        ];
        times.into_iter().flatten().max()?.checked_add(TTL).ok()
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::meta::Time;

    use super::*;

    #[test]
    fn an_event_expires_an_hour_after_it_last_happened() {
        let at = |text: &str| Some(Time(text.parse().unwrap()));
        let mut event = Event::default();
        assert_eq!(event.expires(), None);
        event.metadata.creation_timestamp = at("2026-01-01T00:00:00Z");
        event.last_timestamp = at("2026-01-01T02:00:00Z");
        assert_eq!(event.expires().unwrap().to_string(), "2026-01-01T03:00:00Z");
    }
}
