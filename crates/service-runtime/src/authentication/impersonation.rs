//! Impersonation: a request that is to be carried out as another user, by the headers
//! `Impersonate-User`, `-Group`, `-Uid` and `-Extra-KEY`, or gRPC metadata of the same names.

use std::{collections::BTreeMap, fmt};

use tonic::codegen::http::{HeaderMap, HeaderName, HeaderValue};

use crate::identity::{ANONYMOUS, AUTHENTICATED, Identity, UNAUTHENTICATED};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// The prefix of the user names of ServiceAccounts.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// Returns true for the name of a header that asks for an impersonation.
pub(super) fn is_header(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, USER | GROUP | UID) || name.starts_with(EXTRA)
}

/// The user as whom a request is to be carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Impersonation {
    user: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// An impersonation that is not complete or not unambiguous: 500, as in Kubernetes, or `INTERNAL`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Internal error occurred: {0}")]
pub struct InvalidImpersonation(String);

/// One value of an [`Impersonation`], which the sender needs the verb `impersonate` for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Impersonated<'a> {
    /// The API group of the resource.
    pub group: &'static str,
    /// `users`, `groups`, `serviceaccounts`, `uids` or `userextras`
    pub resource: &'static str,
    /// The key of an extra field, which is a subresource of `userextras`; else empty.
    pub subresource: &'a str,
    /// The namespace of a ServiceAccount; else empty.
    pub namespace: &'a str,
    /// The value.
    pub name: &'a str,
}

/// Says that a user may not impersonate this, in Kubernetes' words.
impl Impersonated<'_> {
    /// The message of the refusal for the user `sender`.
    pub fn forbidden(&self, sender: &str) -> String {
        let Self {
            group,
            resource,
            subresource,
            namespace,
            name,
        } = self;
        let qualified = match *group {
            "" => (*resource).to_owned(),
            group => format!("{resource}.{group}"),
        };
        let scope = match *namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        let resource = match *subresource {
            "" => (*resource).to_owned(),
            key => format!("{resource}/{key}"),
        };
        format!(
            "{qualified} {name:?} is forbidden: User {sender:?} cannot impersonate resource {resource:?} in API group {group:?} {scope}"
        )
    }
}

impl fmt::Display for Impersonated<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            resource,
            subresource,
            name,
            ..
        } = self;
        match *subresource {
            "" => write!(f, "{resource} {name:?}"),
            key => write!(f, "{resource}/{key} {name:?}"),
        }
    }
}

impl Impersonation {
    /// Parses the headers of a request; `None` if they ask for no impersonation. As in Kubernetes,
    /// an empty user or uid is none.
    ///
    /// # Errors
    ///
    /// [`InvalidImpersonation`] for a group, uid or extra field without a user, and
    /// for a user or uid that is given twice; values must be UTF-8.
    pub fn parse(headers: &HeaderMap) -> Result<Option<Self>, InvalidImpersonation> {
        if !headers.keys().any(is_header) {
            return Ok(None);
        }
        let user = single(headers, USER)?;
        let mut impersonation = Self {
            user: user.unwrap_or_default(),
            uid: single(headers, UID)?,
            ..Self::default()
        };
        for value in headers.get_all(GROUP) {
            impersonation.groups.push(text(GROUP, value)?);
        }
        for (name, value) in headers {
            if let Some(key) = name.as_str().strip_prefix(EXTRA) {
                let value = text(name.as_str(), value)?;
                let values = impersonation.extra.entry(unescaped(key)).or_default();
                values.push(value);
            }
        }
        if !impersonation.user.is_empty() {
            return Ok(Some(impersonation));
        }
        let asked: Vec<_> = impersonation.each().map(|one| one.to_string()).collect();
        match asked.is_empty() {
            true => Ok(None),
            false => Err(InvalidImpersonation(format!(
                "requested [{}] without impersonating a user",
                asked.join(" ")
            ))),
        }
    }

    /// The values, each of which the sender must be allowed to impersonate.
    pub fn each(&self) -> impl Iterator<Item = Impersonated<'_>> {
        const AUTHENTICATION: &str = "authentication.k8s.io";
        let one = |group, resource, subresource, name| Impersonated {
            group,
            resource,
            subresource,
            namespace: "",
            name,
        };
        let user = match service_account(&self.user) {
            Some((namespace, name)) => Impersonated {
                namespace,
                ..one("", "serviceaccounts", "", name)
            },
            None => one("", "users", "", self.user.as_str()),
        };
        let user = Some(user).filter(|user| !user.name.is_empty());
        let groups = self.groups.iter();
        let groups = groups.map(move |group| one("", "groups", "", group.as_str()));
        let extra = self.extra.iter().flat_map(move |(key, values)| {
            let values = values.iter();
            values.map(move |value| one(AUTHENTICATION, "userextras", key, value.as_str()))
        });
        let uid = self.uid.as_deref();
        let uid = uid.map(|uid| one(AUTHENTICATION, "uids", "", uid));
        user.into_iter().chain(groups).chain(extra).chain(uid)
    }

    /// The identity of the impersonated user. Without groups, a ServiceAccount has its own; every
    /// user but the anonymous one is authenticated.
    pub fn identity(&self) -> Identity {
        let mut groups = self.groups.clone();
        if groups.is_empty()
            && let Some((namespace, _)) = service_account(&self.user)
        {
            groups.push("system:serviceaccounts".to_owned());
            groups.push(format!("system:serviceaccounts:{namespace}"));
        }
        let everyone = match self.user.as_str() {
            ANONYMOUS => UNAUTHENTICATED,
            _ => AUTHENTICATED,
        };
        let is_known = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
        if !groups.iter().any(is_known) {
            groups.push(everyone.to_owned());
        }
        Identity {
            user: self.user.clone(),
            uid: self.uid.clone().unwrap_or_default(),
            groups,
            extra: self.extra.clone(),
        }
    }
}

/// The namespace and name of a ServiceAccount, by its user name.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    let is_name = |name: &str| !name.is_empty() && !name.contains([':', '/']);
    (is_name(namespace) && is_name(name)).then_some((namespace, name))
}

/// The value of a header that may be given once. A proxy and this server could see different ones
/// of several.
fn single(headers: &HeaderMap, name: &str) -> Result<Option<String>, InvalidImpersonation> {
    let mut values = headers.get_all(name).iter();
    let value = values.next().map(|value| text(name, value)).transpose()?;
    match values.next() {
        Some(_) => Err(InvalidImpersonation(format!(
            "the header {name} is given more than once"
        ))),
        None => Ok(value.filter(|value| !value.is_empty())),
    }
}

fn text(name: &str, value: &HeaderValue) -> Result<String, InvalidImpersonation> {
    let text = std::str::from_utf8(value.as_bytes());
    text.map(str::to_owned)
        .map_err(|_| InvalidImpersonation(format!("the header {name} is not UTF-8")))
}

/// The key of an extra field, which is percent-encoded because header names have few characters. As
/// in Kubernetes, a key that is not encoded correctly is used as it is.
fn unescaped(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((&first, others)) = rest.split_first() {
        rest = others;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let digit = |at: usize| char::from(*others.get(at)?).to_digit(16);
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return key.to_owned();
        };
        bytes.extend(u8::try_from(high * 16 + low));
        rest = &others[2..];
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(headers: &[(&str, &str)]) -> Result<Option<Impersonation>, InvalidImpersonation> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: HeaderName = name.parse().unwrap();
            map.append(name, value.parse().unwrap());
        }
        Impersonation::parse(&map)
    }

    #[test]
    fn parses_all_values() {
        let parsed = parse(&[
            ("Impersonate-User", "ada"),
            ("Impersonate-Uid", "7"),
            ("Impersonate-Group", "dev"),
            ("Impersonate-Group", "ops"),
            ("Impersonate-Extra-Acme.com%2Fproject", "x"),
            ("Impersonate-Extra-Bad%zz", "y"),
        ]);
        let impersonation = parsed.unwrap().unwrap();
        let each: Vec<_> = impersonation.each().map(|one| one.to_string()).collect();
        assert_eq!(
            each,
            [
                "users \"ada\"",
                "groups \"dev\"",
                "groups \"ops\"",
                "userextras/acme.com/project \"x\"",
                "userextras/bad%zz \"y\"",
                "uids \"7\"",
            ]
        );
        let identity = impersonation.identity();
        assert_eq!(identity.groups, ["dev", "ops", AUTHENTICATED]);
        assert_eq!(
            (identity.user.as_str(), identity.uid.as_str()),
            ("ada", "7")
        );
    }

    #[test]
    fn nothing_is_asked_without_values() {
        assert_eq!(parse(&[("accept", "*/*")]), Ok(None));
        assert_eq!(parse(&[("impersonate-user", "")]), Ok(None));
    }

    #[test]
    fn a_group_needs_a_user() {
        for (headers, message) in [
            (
                vec![("impersonate-group", "dev")],
                "requested [groups \"dev\"] without impersonating a user",
            ),
            (
                vec![("impersonate-user", ""), ("impersonate-uid", "1")],
                "requested [uids \"1\"] without impersonating a user",
            ),
            (
                vec![("impersonate-extra-a", "b")],
                "requested [userextras/a \"b\"] without impersonating a user",
            ),
            (
                vec![("impersonate-user", "a"), ("impersonate-user", "b")],
                "the header impersonate-user is given more than once",
            ),
        ] {
            let refused = InvalidImpersonation(message.to_owned());
            assert_eq!(parse(&headers), Err(refused));
        }
    }

    #[test]
    fn a_service_account_is_a_resource_of_its_namespace() {
        let user = "system:serviceaccount:prod:ci";
        let impersonation = parse(&[("impersonate-user", user)]).unwrap().unwrap();
        let forbidden = impersonation.each().next().unwrap().forbidden("eve");
        assert_eq!(
            forbidden,
            "serviceaccounts \"ci\" is forbidden: User \"eve\" cannot impersonate resource \"serviceaccounts\" in API group \"\" in the namespace \"prod\""
        );
        assert_eq!(
            impersonation.identity().groups,
            [
                "system:serviceaccounts",
                "system:serviceaccounts:prod",
                AUTHENTICATED
            ]
        );
        let odd = parse(&[("impersonate-user", "system:serviceaccount:prod")]);
        assert_eq!(
            odd.unwrap().unwrap().each().next().unwrap().resource,
            "users"
        );
        let anonymous = parse(&[("impersonate-user", ANONYMOUS)]).unwrap().unwrap();
        assert_eq!(anonymous.identity().groups, [UNAUTHENTICATED]);
    }
}
