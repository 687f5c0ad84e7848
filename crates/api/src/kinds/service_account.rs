//! ServiceAccounts: the identities of pods.

use jiff::Timestamp;

use crate::{
    core::{ObjectReference, ServiceAccount},
    object::{Object, Scope, json_conversions},
    selector::FieldSelectable,
    strategy::{Strategy, Subresource},
    table::{Column, TableRow, always, created},
    validation::Validate,
};

/// The name of the account that each namespace has, and that pods have by default.
pub const DEFAULT_ACCOUNT: &str = "default";

/// The default account of a namespace.
pub fn default_account(namespace: &str) -> ServiceAccount {
    let mut account = ServiceAccount::default();
    account.metadata.name = Some(DEFAULT_ACCOUNT.to_owned());
    account.metadata.namespace = Some(namespace.to_owned());
    account
}

impl Object for ServiceAccount {
    const SCOPE: Scope = Scope::Namespaced;
    const SINGULAR: &'static str = "serviceaccount";
    const SHORT_NAMES: &'static [&'static str] = &["sa"];

    json_conversions!();
}

impl FieldSelectable for ServiceAccount {}

impl Validate for ServiceAccount {}

impl TableRow for ServiceAccount {
    const COLUMNS: &'static [Column] = &[always("NAME"), always("SECRETS"), always("AGE")];

    fn cells(&self, now: Timestamp) -> Vec<String> {
        let secrets = self.secrets.iter().flatten().count();
        vec![self.name().into(), secrets.to_string(), created(self, now)]
    }
}

impl Strategy for ServiceAccount {
    const SERVICE: &'static str = "podplane.core.v1.ServiceAccountService";
    const SUBRESOURCES: &'static [Subresource] = &[Subresource::Token];
    const RETURNS_DELETED: bool = true;

    fn prepare_for_create(&mut self) {
        keep_names(self.secrets.as_mut());
    }

    fn prepare_for_update(&mut self, _: &Self) {
        keep_names(self.secrets.as_mut());
    }
}

/// Secrets are in the account's namespace: only their names count.
fn keep_names(secrets: Option<&mut Vec<ObjectReference>>) {
    for secret in secrets.into_iter().flatten() {
        *secret = ObjectReference {
            name: secret.name.take(),
            ..ObjectReference::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keeps_only_the_names_of_secrets() {
        let secret = json!({"name": "s", "namespace": "other", "kind": "Secret"});
        let document = json!({"metadata": {"name": "a"}, "secrets": [secret]});
        let mut account = ServiceAccount::from_json(document).unwrap();
        let mut changed = account.clone();
        account.prepare_for_create();
        assert_eq!(json!(account.secrets), json!([{"name": "s"}]));
        changed.prepare_for_update(&account);
        assert_eq!(changed, account);
        assert_eq!(
            account.cells(Timestamp::UNIX_EPOCH),
            ["a", "1", "<unknown>"]
        );
    }
}
