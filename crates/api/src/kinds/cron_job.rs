//! CronJobs: jobs at times of a schedule.

use jiff::Timestamp;

use crate::{
    batch::CronJob,
    kinds::{job, pod::one_of},
    names,
    object::{Object, Scope, json_conversions_through_values},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource, generation_of, separate_status},
    table::{Column, NONE, TableRow, UNSET, age, always, created, integer, wide, workload},
    validation::{ErrorList, FieldPath, Validate, metadata, values, workload as rules},
};

const NAME_MAX: usize = 52;
const POLICIES: [&str; 3] = ["Allow", "Forbid", "Replace"];

impl Object for CronJob {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "cronjob";
    const SHORT_NAMES: &'static [&'static str] = &["cj"];
    const CATEGORIES: &'static [&'static str] = &["all"];

    json_conversions_through_values!();
}

impl FieldSelectable for CronJob {}

impl Validate for CronJob {
    fn validate(&self) -> ErrorList {
        let mut errors = metadata::validate(self, names::dns1123_subdomain);
        // The names of its jobs have eleven characters more.
        if self.name().len() > NAME_MAX {
            let path = FieldPath::new("metadata").child("name");
            errors.invalid(&path, self.name(), "must be no more than 52 characters");
        }
        let path = FieldPath::new("spec");
        if self.spec.schedule.is_empty() {
            errors.required(&path.child("schedule"), "");
        } else if self.spec.schedule.contains("TZ") {
            let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
            errors.invalid(&path.child("schedule"), self.spec.schedule.as_str(), detail);
        }
        if self.spec.time_zone.as_deref() == Some("") {
            let detail = "timeZone must be nil or non-empty string";
            errors.invalid(&path.child("timeZone"), "", detail);
        }
        let policy = self.spec.concurrency_policy.as_deref();
        one_of(
            &path.child("concurrencyPolicy"),
            policy,
            &POLICIES,
            &mut errors,
        );
        for (field, number) in [
            (
                "startingDeadlineSeconds",
                self.spec.starting_deadline_seconds,
            ),
            (
                "successfulJobsHistoryLimit",
                self.spec.successful_jobs_history_limit.map(i64::from),
            ),
            (
                "failedJobsHistoryLimit",
                self.spec.failed_jobs_history_limit.map(i64::from),
            ),
        ] {
            rules::non_negative(&path.child(field), number, &mut errors);
        }
        let path = path.child("jobTemplate").child("spec");
        let job = self.spec.job_template.spec.clone().unwrap_or_default();
        job::validation::spec(&path, &job, &mut errors);
        errors
    }
}

impl TableRow for CronJob {
    const COLUMNS: &'static [Column] = &[
        always("NAME"),
        always("SCHEDULE"),
        always("TIMEZONE"),
        always("SUSPEND"),
        integer("ACTIVE"),
        always("LAST SCHEDULE"),
        always("AGE"),
        wide("CONTAINERS"),
        wide("IMAGES"),
        wide("SELECTOR"),
    ];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let status = self.status.clone().unwrap_or_default();
        let job = self.spec.job_template.spec.clone().unwrap_or_default();
        let last = status.last_schedule_time.as_ref();
        let [containers, images] = workload::containers(Some(&job.template));
        let suspend = match self.spec.suspend {
            None => UNSET,
            Some(true) => "True",
            Some(false) => "False",
        };
        vec![
            self.name().into(),
            self.spec.schedule.clone(),
            self.spec.time_zone.clone().unwrap_or_else(|| NONE.into()),
            suspend.into(),
            status.active.as_ref().map_or(0, Vec::len).to_string(),
            last.map_or_else(|| NONE.into(), |_| age::since(last, now)),
            created(self, now),
            containers,
            images,
            workload::selector(&job.selector.unwrap_or_default()),
        ]
    }
}

impl Strategy for CronJob {
    const SERVICE: &'static str = "podplane.batch.v1.CronJobService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Status];

    fn set_defaults(&mut self) {
        let spec = &mut self.spec;
        values::default_word(&mut spec.concurrency_policy, "Allow");
        spec.suspend.get_or_insert(false);
        spec.successful_jobs_history_limit.get_or_insert(3);
        spec.failed_jobs_history_limit.get_or_insert(1);
        job::set_spec_defaults(spec.job_template.spec.get_or_insert_default());
    }

    separate_status!();

    generation_of!(spec);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cron(more: serde_json::Value) -> CronJob {
        let pods = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
        let mut spec =
            json!({"schedule": "*/5 * * * *", "jobTemplate": {"spec": {"template": pods}}});
        spec.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let document = json!({"metadata": {"name": "a", "namespace": "default"}, "spec": spec});
        let mut cron = CronJob::from_json(document).unwrap();
        cron.set_defaults();
        cron
    }

    #[test]
    fn a_schedule_has_no_time_zone_in_it() {
        let good = cron(json!({}));
        assert!(good.validate().is_empty(), "{}", good.validate());
        assert_eq!(
            good.cells(Timestamp::UNIX_EPOCH),
            [
                "a",
                "*/5 * * * *",
                "<none>",
                "False",
                "0",
                "<none>",
                "<unknown>",
                "c",
                "i",
                "<none>"
            ]
        );
        for (more, refused) in [
            (json!({"schedule": ""}), "spec.schedule: Required value"),
            (
                json!({"schedule": "TZ=UTC 0 * * * *"}),
                "use timeZone field instead",
            ),
            (json!({"timeZone": ""}), "spec.timeZone: Invalid value"),
            (
                json!({"concurrencyPolicy": "x"}),
                "spec.concurrencyPolicy: Unsupported value",
            ),
            (
                json!({"failedJobsHistoryLimit": -1}),
                "spec.failedJobsHistoryLimit: Invalid value: -1",
            ),
        ] {
            let errors = cron(more).validate().to_string();
            assert!(errors.contains(refused), "{errors}");
        }
    }
}
