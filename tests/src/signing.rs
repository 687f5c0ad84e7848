//! Requests for certificates, as OpenSSL makes them.

use std::{fs, path::Path, process::Command};

use podplane_api::ByteString;
use serde_json::{Value, json};

use crate::programs::finish;

/// Makes a key, `NAME.key` in `dir`, and returns a CertificateSigningRequest for that subject, such
/// as `/O=dev/CN=ada`, and signer.
///
/// # Panics
///
/// If OpenSSL fails.
pub fn signing_request(dir: &Path, name: &str, signer: &str, subject: &str) -> Value {
    let (key, file) = (dir.join(format!("{name}.key")), dir.join("request.pem"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-new", "-nodes", "-newkey", "ec", "-pkeyopt"]);
    openssl.args(["ec_paramgen_curve:P-256", "-subj", subject]);
    finish(openssl.arg("-keyout").arg(key).arg("-out").arg(&file)).ok();
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": ByteString(fs::read(file).expect("OpenSSL wrote the request")),
            "signerName": signer,
            "usages": ["digital signature", "client auth"],
            "expirationSeconds": 86400,
        },
    })
}
