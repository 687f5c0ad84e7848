//! Bearer tokens from a file, in the format of Kubernetes' `--token-auth-file`.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use podplane_host::fs;
use podplane_service_runtime::identity::{AUTHENTICATED, Identity};
use sha2::{Digest as _, Sha256};

/// The users of bearer tokens.
#[derive(Default)]
pub(crate) struct TokenFile {
    users: Vec<(TokenDigest, Arc<Identity>)>,
}

type TokenDigest = [u8; 32];

/// A token file that cannot be used. Its content is not in the message: it may be a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file cannot be read.
    #[error("failed to read the token file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// A line is not valid.
    #[error("invalid token file {}: line {line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// The fault, and what to do.
        why: String,
    },
}

/// Without tokens and their digests.
impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = self.users.iter().map(|(_, identity)| &identity.user);
        f.debug_list().entries(users).finish()
    }
}

impl TokenFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`TokenFileError`] names the file, and the line.
    pub(crate) fn read(path: &Path) -> Result<Self, TokenFileError> {
        let text = fs::read_to_string(path).map_err(|source| TokenFileError::Read {
            path: path.into(),
            source,
        })?;
        let tokens = Self::parse(path, &text)?;
        tracing::info!(file = %path.display(), tokens = tokens.users.len(), "read bearer tokens");
        Ok(tokens)
    }

    /// Parses the text of the file `path`.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, TokenFileError> {
        let mut tokens = Self::default();
        for (index, line) in text.lines().enumerate() {
            if line.is_empty() {
                continue;
            }
            let invalid = |why: String| TokenFileError::Line {
                path: path.into(),
                line: index + 1,
                why,
            };
            let (token, identity) = parse_line(line).map_err(invalid)?;
            let digest = digest(token.as_bytes());
            if tokens.users.iter().any(|(known, _)| *known == digest) {
                let why = "the token is that of an earlier line: give each user one of their own";
                return Err(invalid(why.to_owned()));
            }
            tokens.users.push((digest, Arc::new(identity)));
        }
        Ok(tokens)
    }

    /// The user of a token. Takes the same time for every token of a length.
    pub(crate) fn user(&self, token: &[u8]) -> Option<Arc<Identity>> {
        let digest = digest(token);
        let mut found = None;
        for (known, identity) in &self.users {
            if is_equal(known, &digest) {
                found = Some(identity);
            }
        }
        found.map(Arc::clone)
    }
}

/// Tokens are compared by their digests, which have one length.
fn digest(token: &[u8]) -> TokenDigest {
    Sha256::digest(token).into()
}

/// Compares all bytes, wherever the first difference is.
fn is_equal(one: &TokenDigest, other: &TokenDigest) -> bool {
    let pairs = one.iter().zip(other);
    let difference = pairs.fold(0, |all, (one, other)| {
        // So that the compiler does not end the loop early.
        std::hint::black_box(all | (one ^ other))
    });
    difference == 0
}

fn parse_line(line: &str) -> Result<(String, Identity), String> {
    const WANTED: &str = "token,user,uid,\"group1,group2\"";
    let columns = columns(line)?;
    let (token, user, uid, groups) = match &columns[..] {
        [token, user, uid] => (token, user, uid, ""),
        [token, user, uid, groups] => (token, user, uid, groups.as_str()),
        other if other.len() < 3 => {
            return Err(format!(
                "has {} columns, and needs at least 3: write {WANTED}",
                other.len()
            ));
        }
        other => {
            return Err(format!(
                "has {} columns, and may have 4: put several groups in quotes, as in {WANTED}",
                other.len()
            ));
        }
    };
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(
            "column 1, the token, must not be empty, and must have no spaces and only ASCII characters, as no header can carry others".to_owned(),
        );
    }
    if user.trim().is_empty() || user.trim() != user {
        return Err(
            "column 2, the user, must not be empty, and must not begin or end with a space"
                .to_owned(),
        );
    }
    let mut identity = Identity::new(user.as_str(), [""; 0]);
    identity.uid.clone_from(uid);
    for group in groups.split(',').filter(|_| !groups.is_empty()) {
        if group.trim().is_empty() || group.trim() != group {
            return Err(format!(
                "column 4, the groups, has a name that is empty, or begins or ends with a space: separate names by commas only, as in {WANTED}"
            ));
        }
        identity.groups.push(group.to_owned());
    }
    if !identity.is_in(AUTHENTICATED) {
        identity.groups.push(AUTHENTICATED.to_owned());
    }
    Ok((token.clone(), identity))
}

/// The columns of a line of CSV (RFC 4180): a quote in a quoted column is doubled.
fn columns(line: &str) -> Result<Vec<String>, String> {
    let mut columns = Vec::new();
    let mut rest = line;
    loop {
        let number = columns.len() + 1;
        let (column, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted_column(quoted)
                .ok_or_else(|| format!("column {number} begins with a quote that does not end"))?,
            None => {
                let end = rest.find(',').unwrap_or(rest.len());
                let (column, after) = rest.split_at(end);
                if column.contains('"') {
                    return Err(format!(
                        "column {number} has a quote: quote the whole column, without spaces around it"
                    ));
                }
                (column.to_owned(), after)
            }
        };
        columns.push(column);
        rest = match after.strip_prefix(',') {
            Some(rest) => rest,
            None if after.is_empty() => return Ok(columns),
            None => return Err(format!("column {number} goes on after its closing quote")),
        };
    }
}

/// The column after an opening quote, and what follows its closing quote.
fn quoted_column(quoted: &str) -> Option<(String, &str)> {
    let mut column = String::new();
    let mut rest = quoted;
    loop {
        let (part, after) = rest.split_once('"')?;
        column.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                column.push('"');
                rest = after;
            }
            None => return Some((column, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<TokenFile, TokenFileError> {
        TokenFile::parse(Path::new("/etc/tokens.csv"), text)
    }

    #[test]
    fn reads_users_uids_and_groups() {
        let tokens = parse(
            "t1,ada,1001,\"dev,ops\"\r\n\nt2,bob,\nt3,eve,7,dev\n\"t\"\"4\",\"x, y\",,system:authenticated",
        )
        .unwrap();
        let user = |token: &str| {
            let identity = tokens.user(token.as_bytes()).unwrap();
            let Identity {
                user, uid, groups, ..
            } = (*identity).clone();
            (user, uid, groups.join(" "))
        };
        let all = |user: &str, uid: &str, groups: &str| {
            (user.to_owned(), uid.to_owned(), groups.to_owned())
        };
        assert_eq!(
            user("t1"),
            all("ada", "1001", "dev ops system:authenticated")
        );
        assert_eq!(user("t2"), all("bob", "", "system:authenticated"));
        assert_eq!(user("t3"), all("eve", "7", "dev system:authenticated"));
        assert_eq!(user("t\"4"), all("x, y", "", "system:authenticated"));
        for unknown in ["", "t", "t11", "ada", "T1"] {
            assert!(tokens.user(unknown.as_bytes()).is_none(), "{unknown}");
        }
    }

    #[test]
    fn errors_name_the_file_and_the_line_and_never_the_token() {
        for (line, why) in [
            ("s3cret", "has 1 columns, and needs at least 3"),
            ("s3cret,ada", "has 2 columns"),
            ("s3cret,ada,1,dev,ops", "put several groups in quotes"),
            (",ada,1", "column 1, the token"),
            ("s3 cret,ada,1", "column 1, the token"),
            ("s3crét,ada,1", "column 1, the token"),
            ("s3cret,,1", "column 2, the user"),
            ("s3cret, ada,1", "column 2, the user"),
            ("s3cret,ada,1,\"dev, ops\"", "column 4, the groups"),
            ("s3cret,ada,1,\"dev,\"", "column 4, the groups"),
            ("s3cret,ada,1,\"dev", "column 4 begins with a quote"),
            ("s3cret,ada,1,\"dev\"x", "column 4 goes on after"),
            ("s3cret,ada,1, \"dev\"", "column 4 has a quote"),
            ("first,bob,2", "the token is that of an earlier line"),
        ] {
            let error = parse(&format!("first,bob,2\n\n{line}\n")).unwrap_err();
            let error = error.to_string();
            let prefix = "invalid token file /etc/tokens.csv: line 3: ";
            assert!(error.starts_with(prefix) && error.contains(why), "{error}");
            assert!(!error.contains("s3c"), "{error}");
        }
        let missing = TokenFile::read(Path::new("/nonexistent/tokens.csv")).unwrap_err();
        let missing = missing.to_string();
        assert_eq!(
            missing,
            "failed to read the token file /nonexistent/tokens.csv"
        );
    }

    #[test]
    fn tokens_are_not_shown() {
        let tokens = parse("s3cret,ada,1").unwrap();
        assert_eq!(format!("{tokens:?}"), "[\"ada\"]");
    }

    #[test]
    fn digests_are_equal_only_in_all_bytes() {
        let one = digest(b"a");
        assert!(is_equal(&one, &digest(b"a")));
        for index in 0..one.len() {
            let mut other = one;
            other[index] ^= 1;
            assert!(!is_equal(&one, &other), "{index}");
        }
    }
}
