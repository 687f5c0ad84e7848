use podplane_api::{core::Event, jiff::Timestamp};

use super::Strategy;

impl Strategy for Event {
    const SERVICE: &'static str = "podplane.core.v1.EventService";
    const CREATE_ON_UPDATE: bool = true;

    fn last_happened(&self) -> Option<Timestamp> {
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
        times.into_iter().flatten().max()
    }
}

#[cfg(test)]
mod tests {
    use podplane_api::meta::Time;

    use super::*;

    #[test]
    fn an_event_last_happened_at_the_latest_of_its_times() {
        let at = |text: &str| Some(Time(text.parse().unwrap()));
        let mut event = Event::default();
        assert_eq!(event.last_happened(), None);
        event.metadata.creation_timestamp = at("2026-01-01T00:00:00Z");
        event.last_timestamp = at("2026-01-01T02:00:00Z");
        assert_eq!(
            event.last_happened().unwrap().to_string(),
            "2026-01-01T02:00:00Z"
        );
    }
}
