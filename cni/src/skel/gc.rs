//! The input of a GC.

use serde::Deserialize;

use crate::{
    runtime::ValidAttachment,
    types::{CniError, json},
};

/// The valid attachments of a GC: `cni.dev/valid-attachments`, or `cni.dev/attachments`. `None` if
/// both are absent, which differs from an empty list.
///
/// # Errors
/// Code 999, where the configuration cannot be read.
pub fn valid_attachments(stdin: &[u8]) -> Result<Option<Vec<ValidAttachment>>, CniError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct AttachmentKeys {
        #[serde(rename = "cni.dev/valid-attachments")]
        valid: Option<Vec<ValidAttachment>>,
        #[serde(rename = "cni.dev/attachments")]
        attachments: Option<Vec<ValidAttachment>>,
    }
    let folded =
        json::parse_folded(stdin).map_err(|error| CniError::internal(json::go_error(&error)))?;
    let keys: AttachmentKeys = serde_json::from_value(folded).map_err(|error| {
        CniError::internal(format!("invalid cni.dev/valid-attachments: {error}"))
    })?;
    Ok(keys.valid.or(keys.attachments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_a_missing_list_of_attachments_from_an_empty_one() {
        assert_eq!(valid_attachments(b"{}").unwrap(), None);
        assert_eq!(
            valid_attachments(br#"{"cni.dev/valid-attachments": []}"#).unwrap(),
            Some(vec![])
        );
        let one = valid_attachments(
            br#"{"cni.dev/valid-attachments": [{"containerID": "c", "ifname": "eth0"}]}"#,
        );
        assert_eq!(one.unwrap().unwrap()[0].container_id, "c");
    }
}
