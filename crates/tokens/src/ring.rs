//! The keys of an issuer: the newest signs, and older ones verify until no token of theirs is left.

use std::time::Duration;

use jiff::Timestamp;

use crate::{
    claims::Claims,
    key::{Jwk, SigningKey},
    token::{self, SignError, TokenExpectation, TokenRefusal},
};

/// The lives of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPolicy {
    /// The age at which a key is replaced.
    pub rotation: Duration,
    /// The longest life of a token: a key is retired when it has not signed for that long.
    pub longest_token: Duration,
}

/// The keys of an issuer, from the oldest to the newest.
#[derive(Clone, Debug)]
pub struct KeyRing {
    policy: KeyPolicy,
    keys: Vec<(Timestamp, SigningKey)>,
}

/// The changes that a ring needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyRingPlan {
    /// True if a new key is to be made.
    pub rotates: bool,
    /// The times at which the keys were made that are retired.
    pub retired: Vec<Timestamp>,
}

impl KeyRing {
    /// The ring of keys that someone else replaces: the last signs, and all verify. No change is
    /// ever due.
    pub fn fixed(keys: Vec<SigningKey>) -> Self {
        let policy = KeyPolicy {
            rotation: Duration::MAX,
            longest_token: Duration::MAX,
        };
        // Sorting keeps the order of equal times.
        let keys = keys.into_iter().map(|key| (Timestamp::UNIX_EPOCH, key));
        Self::new(policy, keys.collect())
    }

    /// The ring of these keys, each with the time at which it was made.
    pub fn new(policy: KeyPolicy, mut keys: Vec<(Timestamp, SigningKey)>) -> Self {
        keys.sort_by_key(|(made, _)| *made);
        Self { policy, keys }
    }

    /// The ring with a further key.
    #[must_use]
    pub fn with(&self, made: Timestamp, key: SigningKey) -> Self {
        let mut keys = self.keys.clone();
        keys.push((made, key));
        Self::new(self.policy, keys)
    }

    /// The ring without the retired keys of a plan.
    #[must_use]
    pub fn without(&self, retired: &[Timestamp]) -> Self {
        let keys = self.keys.iter();
        let keys = keys.filter(|(made, _)| !retired.contains(made)).cloned();
        Self {
            policy: self.policy,
            keys: keys.collect(),
        }
    }

    /// The changes that are due.
    pub fn plan(&self, now: Timestamp) -> KeyRingPlan {
        let newest = self.keys.last();
        let rotates = newest.is_none_or(|(made, _)| is_past(*made, self.policy.rotation, now));
        let retired = self.keys.iter().enumerate();
        let retired = retired.filter(|(index, _)| self.is_retired(*index, now));
        KeyRingPlan {
            rotates,
            retired: retired.map(|(_, (made, _))| *made).collect(),
        }
    }

    /// A key is retired if its successor was made so long ago that no token of it can be left.
    fn is_retired(&self, index: usize, now: Timestamp) -> bool {
        let successor = self.keys.get(index + 1);
        successor.is_some_and(|(made, _)| is_past(*made, self.policy.longest_token, now))
    }

    /// Signs claims by the newest key.
    ///
    /// # Errors
    ///
    /// [`SignError`], also without a key.
    pub fn sign(&self, claims: &Claims) -> Result<String, SignError> {
        let (_, key) = self.keys.last().ok_or(SignError)?;
        token::sign(key, claims)
    }

    /// Verifies a token: its header, its signature by a key that is not retired, and its claims.
    /// The audiences that it shares with the expected ones are in its claims.
    ///
    /// # Errors
    ///
    /// [`TokenRefusal`]: the first check that fails.
    pub fn verify(
        &self,
        token: &str,
        expected: &TokenExpectation<'_>,
    ) -> Result<Claims, TokenRefusal> {
        let id = token::key_id(token)?;
        let now = Timestamp::from_second(expected.now).map_err(|_| TokenRefusal::Expired)?;
        let mut known = self.keys.iter().enumerate();
        let found = known.find(|(_, (_, key))| key.id() == id);
        match found {
            Some((index, (_, key))) if !self.is_retired(index, now) => {
                token::verify(key, token, expected)
            }
            _ => Err(TokenRefusal::UnknownKey),
        }
    }

    /// The public keys that verify, the newest first.
    pub fn public_keys(&self, now: Timestamp) -> Vec<Jwk> {
        let keys = self.keys.iter().enumerate().rev();
        let keys = keys.filter(|(index, _)| !self.is_retired(*index, now));
        keys.map(|(_, (_, key))| key.jwk()).collect()
    }
}

/// Returns true if `after` has passed since `from`. Times beyond the calendar never come.
fn is_past(from: Timestamp, after: Duration, now: Timestamp) -> bool {
    from.checked_add(after).is_ok_and(|end| end <= now)
}

#[cfg(test)]
mod tests;
