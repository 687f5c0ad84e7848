use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use podplane_tokens::{KeyDir, KeyPolicy, read_key_files};

use super::AccountTokens;
use crate::ApiserverRunError;

/// The directory of the signing keys in the data directory.
const KEYS: &str = "service-account-keys";
/// The shortest time after which keys are replaced and the shortest that tokens may live.
const SHORTEST: Duration = Duration::from_secs(600);

/// The tokens of ServiceAccounts.
#[derive(Clone, Debug, clap::Args)]
pub struct AccountTokenFlags {
    /// Issue the tokens of ServiceAccounts as this issuer, and accept only its own
    ///
    /// Tokens are issued and accepted with --authentication=credentials. For clients that discover
    /// the keys (OpenID Connect), it is the URL at which they reach this server, with https.
    #[arg(
        long,
        env = "PODPLANE_SERVICE_ACCOUNT_ISSUER",
        value_name = "URL",
        default_value = "https://kubernetes.default.svc",
        value_parser = issuer
    )]
    pub service_account_issuer: String,

    /// Accept the tokens for these audiences, and issue tokens for them if a request names none
    /// [default: the issuer]
    #[arg(
        long,
        env = "PODPLANE_API_AUDIENCES",
        value_name = "AUDIENCE[,AUDIENCE]",
        value_delimiter = ','
    )]
    pub api_audiences: Vec<String>,

    /// Shorten the tokens of ServiceAccounts to this life, such as 24h, at least 10m
    #[arg(
        long,
        env = "PODPLANE_SERVICE_ACCOUNT_MAX_TOKEN_EXPIRATION",
        value_name = "DURATION",
        default_value = "24h",
        value_parser = long_enough
    )]
    pub service_account_max_token_expiration: Duration,

    /// Sign tokens by a new key after this time, such as 30days, at least 10m
    ///
    /// Older keys verify until their last token has expired. They are in the directory
    /// service-account-keys of --data-dir; with --store memory, they are in memory.
    #[arg(
        long,
        env = "PODPLANE_SERVICE_ACCOUNT_KEY_ROTATION",
        value_name = "DURATION",
        default_value = "30days",
        value_parser = long_enough
    )]
    pub service_account_key_rotation: Duration,

    /// Sign tokens by the private key in this file (PEM, PKCS #8, P-256) instead, and never replace
    /// it
    ///
    /// API servers that have the same key accept each other's tokens. The file is read at the start,
    /// and only its owner may have the right to read it.
    #[arg(
        long,
        env = "PODPLANE_SERVICE_ACCOUNT_SIGNING_KEY_FILE",
        value_name = "FILE"
    )]
    pub service_account_signing_key_file: Option<PathBuf>,

    /// Accept the tokens that the private keys in these files have signed, besides those of
    /// --service-account-signing-key-file
    #[arg(
        long,
        env = "PODPLANE_SERVICE_ACCOUNT_KEY_FILE",
        value_name = "FILE[,FILE]",
        value_delimiter = ',',
        requires = "service_account_signing_key_file"
    )]
    pub service_account_key_file: Vec<PathBuf>,
}

impl Default for AccountTokenFlags {
    fn default() -> Self {
        Self {
            service_account_issuer: "https://kubernetes.default.svc".to_owned(),
            api_audiences: Vec::new(),
            service_account_max_token_expiration: Duration::from_secs(24 * 3600),
            service_account_key_rotation: Duration::from_secs(30 * 24 * 3600),
            service_account_signing_key_file: None,
            service_account_key_file: Vec::new(),
        }
    }
}

impl AccountTokenFlags {
    /// The issuer, with its keys in the given files, in `data_dir` or in memory.
    ///
    /// # Errors
    ///
    /// Keys that cannot be read or made.
    pub(crate) fn issuer(
        &self,
        data_dir: Option<&Path>,
    ) -> Result<Arc<AccountTokens>, ApiserverRunError> {
        let Self {
            service_account_issuer: issuer,
            api_audiences,
            service_account_max_token_expiration: longest_token,
            service_account_key_rotation: rotation,
            service_account_signing_key_file: signing_key,
            service_account_key_file: other_keys,
        } = self;
        let audiences = match api_audiences.is_empty() {
            true => vec![issuer.clone()],
            false => api_audiences.clone(),
        };
        if let Some(signing_key) = signing_key {
            let keys = read_key_files(signing_key, other_keys)?;
            let tokens = AccountTokens::with_keys(issuer.clone(), audiences, *longest_token, keys);
            return Ok(Arc::new(tokens));
        }
        let policy = KeyPolicy {
            rotation: *rotation,
            longest_token: *longest_token,
        };
        let dir = match data_dir {
            Some(dir) => KeyDir::at(dir.join(KEYS)),
            None => KeyDir::in_memory(),
        };
        let tokens = AccountTokens::open(issuer.clone(), audiences, policy, dir)?;
        Ok(Arc::new(tokens))
    }
}

fn issuer(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains(|char: char| char.is_control() || char == ' ') {
        true => Err("must not be empty, and must not have spaces".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn long_enough(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text).map_err(|error| error.to_string())? {
        short if short < SHORTEST => Err("must be at least 10m".to_owned()),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TokenProgram {
        #[command(flatten)]
        flags: AccountTokenFlags,
    }

    #[test]
    fn flags_and_tests_have_the_same_defaults() {
        let flags = TokenProgram::parse_from(["line"]).flags;
        assert_eq!(
            format!("{flags:?}"),
            format!("{:?}", AccountTokenFlags::default())
        );
    }

    #[test]
    fn refuses_short_lives_and_empty_issuers() {
        for (flag, value) in [
            ("--service-account-max-token-expiration", "9m"),
            ("--service-account-key-rotation", "1s"),
            ("--service-account-issuer", ""),
            ("--service-account-issuer", "https://a b"),
            ("--service-account-key-file", "without-the-other-flag.pem"),
        ] {
            TokenProgram::try_parse_from(["line", flag, value]).unwrap_err();
        }
    }
}
