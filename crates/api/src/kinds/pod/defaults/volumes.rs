use crate::core::{DownwardAPIVolumeFile, Volume};

use super::{default, default_word, pull_policy, set_field, set_resource_field};

/// Readable and writable by the owner, readable by everybody else.
const FILE_MODE: i32 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

pub(super) fn set(volume: &mut Volume) {
    let nothing = Volume {
        name: volume.name.clone(),
        ..Volume::default()
    };
    if *volume == nothing {
        volume.empty_dir.get_or_insert_default();
    }
    let Volume {
        azure_disk,
        config_map,
        downward_api,
        ephemeral,
        host_path,
        image,
        iscsi,
        projected,
        rbd,
        scale_io,
        secret,
        ..
    } = volume;
    if let Some(path) = host_path {
        default(&mut path.type_, "");
    }
    if let Some(secret) = secret {
        default(&mut secret.default_mode, FILE_MODE);
    }
    if let Some(map) = config_map {
        default(&mut map.default_mode, FILE_MODE);
    }
    if let Some(api) = downward_api {
        default(&mut api.default_mode, FILE_MODE);
        files(&mut api.items);
    }
    if let Some(projected) = projected {
        default(&mut projected.default_mode, FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            if let Some(token) = &mut source.service_account_token {
                default(&mut token.expiration_seconds, TOKEN_SECONDS);
            }
            if let Some(api) = &mut source.downward_api {
                files(&mut api.items);
            }
        }
    }
    if let Some(claim) = ephemeral
        .as_mut()
        .and_then(|ephemeral| ephemeral.volume_claim_template.as_mut())
    {
        default(&mut claim.spec.volume_mode, "Filesystem");
    }
    if let Some(image) = image {
        let policy = pull_policy(image.reference.as_deref().unwrap_or_default());
        default_word(&mut image.pull_policy, policy);
    }
    if let Some(disk) = iscsi {
        default_word(&mut disk.iscsi_interface, "default");
    }
    if let Some(device) = rbd {
        default_word(&mut device.pool, "rbd");
        default_word(&mut device.user, "admin");
        default_word(&mut device.keyring, "/etc/ceph/keyring");
    }
    if let Some(disk) = azure_disk {
        default(&mut disk.caching_mode, "ReadWrite");
        default(&mut disk.kind, "Shared");
        default(&mut disk.fs_type, "ext4");
        default(&mut disk.read_only, false);
    }
    if let Some(disk) = scale_io {
        default_word(&mut disk.storage_mode, "ThinProvisioned");
        default_word(&mut disk.fs_type, "xfs");
    }
}

fn files(items: &mut Option<Vec<DownwardAPIVolumeFile>>) {
    for file in items.iter_mut().flatten() {
        if let Some(field) = &mut file.field_ref {
            set_field(field);
        }
        if let Some(resource) = &mut file.resource_field_ref {
            set_resource_field(resource);
        }
    }
}
