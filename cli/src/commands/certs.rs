//! `certs`: the certificate authority of a cluster, and the certificates of its processes.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use jiff::Timestamp;
use podplane_pki::{
    CertificateFile, CertificateInfo, CertificateOwner, PkiDir, Recipient, Renewal, ServerName,
    Usage,
    owner::{self, LONGEST_LIFETIME},
};

use super::duration;
use crate::{
    output::{self, table::TextTable},
    report::UnusableInput,
};

/// Make a certificate authority, and certificates for the processes, nodes and people of a cluster
///
/// DIR has ca.crt and ca.key, and for each certificate one file NAME.pem with its key and itself,
/// mode 0600. Processes read their file again when it changes.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  podplane certs init --dir pki --san apiserver.example.com\n  podplane certs issue node/node-0 --dir pki\n  podplane apiserver --data-dir data --authentication credentials --tls-cert-file pki/apiserver.pem --tls-private-key-file pki/apiserver.pem --client-ca-file pki/ca.crt"
)]
pub(crate) struct CertsArgs {
    #[command(subcommand)]
    action: CertsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CertsCommand {
    /// Make an authority, and certificates for the API server, each controller and an administrator
    ///
    /// Certificates that exist are kept, unless they expire soon or have other names.
    #[command(
        after_help = "Examples:\n  podplane certs init --dir pki --san apiserver.example.com,10.0.0.1\n  podplane certs init --dir pki --deliver scheduler=/out/scheduler --deliver nodes=/out/nodes\n  podplane certs init --dir pki --deliver etcd/10.0.0.1=/out/etcd --deliver etcd-client=/out/apiserver"
    )]
    Init {
        /// Copy what a process needs, and nothing else, into a directory of its own:
        /// RECIPIENT=DIR; repeatable
        ///
        /// RECIPIENT is apiserver, scheduler, controller-manager, ipam-controller, kubelets,
        /// route-agent, admin, monitoring (which reads metrics), or nodes, which get a token to
        /// join with; for several API servers on etcd also service-account-key (the key that they
        /// share), etcd-client (their certificate for etcd) and etcd/HOST (the member at that host).
        /// Files that are right stay as they are.
        #[arg(long, value_name = "RECIPIENT=DIR", value_parser = delivery)]
        deliver: Vec<(Recipient, PathBuf)>,
        #[command(flatten)]
        dir: DirArgs,
        #[command(flatten)]
        terms: TermArgs,
    },
    /// Issue certificates; one that is there is replaced
    #[command(
        after_help = "Examples:\n  podplane certs issue node/node-0 node/node-1 --dir pki\n  podplane certs issue apiserver --san 10.0.0.1 --dir pki"
    )]
    Issue {
        /// Issue for apiserver, scheduler, controller-manager, ipam-controller, kubelets,
        /// route-agent, admin (who may do everything), monitoring (which reads metrics), node/NAME,
        /// or serving/NAME (for the port of a process)
        #[arg(value_name = "OWNER", required = true, value_parser = owner_named)]
        owners: Vec<CertificateOwner>,
        #[command(flatten)]
        dir: DirArgs,
        #[command(flatten)]
        terms: TermArgs,
    },
    /// Show the certificates, and when they expire
    #[command(after_help = "Examples:\n  podplane certs show --dir pki")]
    Show {
        #[command(flatten)]
        dir: DirArgs,
    },
    /// Issue certificates anew that have less than a third of their life left
    ///
    /// The authority's own certificate is not renewed.
    #[command(
        after_help = "Examples:\n  podplane certs renew --dir pki\n  podplane certs renew --all --dir pki"
    )]
    Renew {
        /// Renew those that are still good, too
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        dir: DirArgs,
    },
}

#[derive(Debug, clap::Args)]
struct DirArgs {
    /// Use the authority and the certificates in this directory
    #[arg(long, env = "PODPLANE_CERTS_DIR", value_name = "DIR")]
    dir: PathBuf,
}

#[derive(Debug, clap::Args)]
struct TermArgs {
    /// Add these names to a server's certificate: DNS names or IP addresses [default: none besides
    /// localhost, 127.0.0.1 and ::1, and for the API server podplane-apiserver and those of the
    /// Service kubernetes]
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',')]
    san: Vec<ServerName>,

    /// Let certificates expire after this long, such as 720h
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "8760h",
        value_parser = lifetime
    )]
    lifetime: Duration,
}

/// At least a minute: a process sees a renewed certificate within seconds.
fn lifetime(text: &str) -> Result<Duration, String> {
    let lifetime = duration(text)?;
    let range = Duration::from_secs(60)..=LONGEST_LIFETIME;
    match range.contains(&lifetime) {
        true => Ok(lifetime),
        false => Err("must be between 1m and 87600h, the life of the authority".to_owned()),
    }
}

/// A recipient and its directory.
fn delivery(text: &str) -> Result<(Recipient, PathBuf), String> {
    let parts = text.split_once('=').filter(|(_, dir)| !dir.is_empty());
    let (recipient, dir) = parts.ok_or("want RECIPIENT=DIR, such as scheduler=/out/scheduler")?;
    Ok((recipient.parse()?, dir.into()))
}

/// An owner; the name of a node is checked.
fn owner_named(text: &str) -> Result<CertificateOwner, String> {
    let owner: CertificateOwner = text.parse()?;
    if let CertificateOwner::Node(name) = &owner {
        let name = name.parse::<podplane_api::node::NodeName>();
        name.map_err(|error| error.to_string())?;
    }
    Ok(owner)
}

pub(crate) fn run(args: CertsArgs) -> anyhow::Result<ExitCode> {
    let now = Timestamp::now();
    let opened = |dir: DirArgs| PkiDir::existing(&dir.dir, now).map_err(|error| hint(error, &dir));
    match args.action {
        CertsCommand::Init {
            deliver,
            dir,
            terms,
        } => {
            let opened = PkiDir::open(&dir.dir, owner::AUTHORITY, now);
            let dir = opened.map_err(|error| UnusableInput(error.into()))?;
            let owners = [CertificateOwner::Apiserver, CertificateOwner::Admin];
            for owner in owners.iter().chain(&CertificateOwner::PROCESSES) {
                let name = owner.to_string();
                let renewal = dir.ensure(&name, &owner.terms(&terms.san, terms.lifetime), now)?;
                report(&dir, &name, renewal)?;
            }
            for (recipient, to) in deliver {
                for name in dir.deliver(&recipient, &to, terms.lifetime, now)? {
                    output::line(format_args!("delivered {}", to.join(name).display()))?;
                }
            }
        }
        CertsCommand::Issue { owners, dir, terms } => {
            let dir = opened(dir)?;
            for owner in owners {
                let name = owner.to_string();
                dir.issue(&name, &owner.terms(&terms.san, terms.lifetime), now)?;
                report(&dir, &name, Renewal::Issued)?;
            }
        }
        CertsCommand::Show { dir } => show(&opened(dir)?)?,
        CertsCommand::Renew { all, dir } => {
            let dir = opened(dir)?;
            for CertificateFile { name, info } in dir.certificates()? {
                let terms = info?.terms;
                let renewal = match all {
                    true => dir.issue(&name, &terms, now).map(|()| Renewal::Issued)?,
                    false => dir.ensure(&name, &terms, now)?,
                };
                report(&dir, &name, renewal)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds what to do about a directory without an authority.
fn hint(error: podplane_pki::PkiError, dir: &DirArgs) -> anyhow::Error {
    let has_authority = dir.dir.join("ca.crt").exists();
    let error = anyhow::Error::new(error);
    match has_authority {
        true => error,
        false => error.context(format!(
            "no certificates in {}: make them with `podplane certs init`",
            dir.dir.display()
        )),
    }
}

fn report(dir: &PkiDir, name: &str, renewal: Renewal) -> anyhow::Result<()> {
    let path = dir.certificate(name);
    let done = match renewal {
        Renewal::Issued => "issued",
        Renewal::Kept => "kept",
    };
    output::line(format_args!("{done} {}", path.display()))
}

fn show(dir: &PkiDir) -> anyhow::Result<()> {
    let or_none = |text: String| match text.as_str() {
        "" => "<none>".to_owned(),
        _ => text,
    };
    let row = |CertificateFile { name, info }| -> Vec<String> {
        match info {
            Ok(CertificateInfo {
                terms, not_after, ..
            }) => {
                let names: Vec<_> = terms.names.iter().map(ToString::to_string).collect();
                let usage = match terms.usage {
                    Usage::Client => "client",
                    Usage::Server => "server",
                    Usage::Both => "server,client",
                };
                vec![
                    name,
                    terms.subject.user,
                    or_none(terms.subject.group),
                    usage.to_owned(),
                    not_after.to_string(),
                    or_none(names.join(",")),
                ]
            }
            Err(error) => {
                let unknown = || "<unknown>".to_owned();
                let why = podplane_pki::PkiError::to_string(&error);
                vec![name, why, unknown(), unknown(), unknown(), unknown()]
            }
        }
    };
    let rows = dir.certificates()?.into_iter().map(row);
    let mut table = TextTable::new(vec!["NAME", "USER", "GROUP", "USAGE", "EXPIRES", "NAMES"]);
    output::line(table.rows(rows))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        certs: CertsArgs,
    }

    fn certs(dir: &Path, line: &str) -> anyhow::Result<ExitCode> {
        let dir = dir.to_str().unwrap();
        let words = ["certs"].into_iter().chain(line.split(' '));
        let words = words.chain(["--dir", dir]);
        run(<Line as clap::Parser>::try_parse_from(words)?.certs)
    }

    #[test]
    fn makes_keeps_and_renews_certificates() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("pki");
        let error = certs(&dir, "show").unwrap_err();
        assert!(
            error.to_string().contains("`podplane certs init`"),
            "{error}"
        );
        assert!(!dir.exists());
        certs(&dir, "init --san example.com,10.0.0.1").unwrap();
        certs(&dir, "issue node/node-0").unwrap();
        let files = || {
            let files = fs::read_dir(&dir).unwrap().map(|entry| {
                let path = entry.unwrap().path();
                let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
                let is_public = path.ends_with("ca.crt");
                assert_eq!(mode, if is_public { 0o644 } else { 0o600 }, "{path:?}");
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, fs::read_to_string(&path).unwrap())
            });
            files.collect::<std::collections::BTreeMap<_, _>>()
        };
        let first = files();
        let names: Vec<&str> = first.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "admin.pem",
                "apiserver.pem",
                "ca.crt",
                "ca.key",
                "controller-manager.pem",
                "ipam-controller.pem",
                "kubelets.pem",
                "node-node-0.pem",
                "route-agent.pem",
                "scheduler.pem"
            ]
        );
        certs(&dir, "renew").unwrap();
        certs(&dir, "init --san 10.0.0.1,example.com").unwrap();
        certs(&dir, "show").unwrap();
        assert_eq!(files(), first, "they are good");
        certs(&dir, "renew --all").unwrap();
        let renewed = files();
        for (name, text) in &first {
            let is_authority = name.starts_with("ca.");
            assert_eq!(renewed[name] == *text, is_authority, "{name}");
            if !is_authority {
                let terms = |text| CertificateInfo::from_pem(name, text).unwrap().terms;
                assert_eq!(terms(text), terms(&renewed[name]), "{name}");
            }
        }
        fs::write(dir.join("scheduler.pem"), "nonsense").unwrap();
        let error = certs(&dir, "renew").unwrap_err().to_string();
        assert!(
            error.contains("scheduler.pem: it has no certificate"),
            "{error}"
        );
    }

    #[test]
    fn delivers_to_each_what_it_needs() {
        let temporary = tempfile::tempdir().unwrap();
        let (dir, out) = (temporary.path().join("pki"), temporary.path().join("out"));
        let recipients = [
            "apiserver",
            "scheduler",
            "controller-manager",
            "monitoring",
            "nodes",
        ];
        let of_etcd = [
            ("service-account-key", "apiserver-on-etcd"),
            ("etcd-client", "apiserver-on-etcd"),
            ("etcd/etcd-1", "etcd-1"),
            ("etcd/10.0.0.2", "etcd-2"),
        ];
        let deliveries = recipients.map(|name| (name, name)).into_iter();
        let line: Vec<_> = deliveries
            .chain(of_etcd)
            .map(|(name, to)| format!(" --deliver {name}={}", out.join(to).display()))
            .collect();
        let line = line.concat();
        let init = format!("init --san apiserver{line}");
        certs(&dir, &init).unwrap();
        let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
        let stamps = || {
            let files = fs::read_dir(&out).unwrap().flat_map(|entry| {
                let (name, path) = {
                    let entry = entry.unwrap();
                    (entry.file_name().into_string().unwrap(), entry.path())
                };
                let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
                assert_eq!(mode, 0o700, "{name}");
                fs::read_dir(path).unwrap().map(move |file| {
                    let file = file.unwrap();
                    let metadata = file.metadata().unwrap();
                    let own = file.file_name().into_string().unwrap();
                    let mode = metadata.permissions().mode() & 0o777;
                    let is_public = own.ends_with("ca.crt");
                    assert_eq!(mode, if is_public { 0o644 } else { 0o600 }, "{own}");
                    (format!("{name}/{own}"), metadata.modified().unwrap())
                })
            });
            files.collect::<std::collections::BTreeMap<_, _>>()
        };
        let first = stamps();
        let names: Vec<_> = first.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "apiserver-on-etcd/etcd-ca.crt",
                "apiserver-on-etcd/etcd-client.pem",
                "apiserver-on-etcd/service-account.key",
                "apiserver/apiserver.pem",
                "apiserver/ca.crt",
                "apiserver/tokens.csv",
                "controller-manager/ca.crt",
                "controller-manager/ca.key",
                "controller-manager/controller-manager.pem",
                "controller-manager/serving-controller-manager.pem",
                "etcd-1/ca.crt",
                "etcd-1/member.pem",
                "etcd-2/ca.crt",
                "etcd-2/member.pem",
                "monitoring/ca.crt",
                "monitoring/monitoring.pem",
                "nodes/bootstrap-token",
                "nodes/ca.crt",
                "nodes/serving-node.pem",
                "scheduler/ca.crt",
                "scheduler/scheduler.pem",
                "scheduler/serving-scheduler.pem",
            ]
        );
        let token = read("nodes/bootstrap-token");
        let token = token.trim();
        assert_eq!(token.len(), 64);
        assert_eq!(
            read("apiserver/tokens.csv"),
            format!("{token},system:bootstrap:podplane,,system:bootstrappers\n")
        );
        let terms = |name: &str| CertificateInfo::from_pem(name, &read(name)).unwrap().terms;
        let names = |name: &str| terms(name).names;
        let named = |name: &str| name.parse::<ServerName>().unwrap();
        let scheduler = names("scheduler/serving-scheduler.pem");
        assert!(scheduler.contains(&named("scheduler")), "{scheduler:?}");
        assert!(!scheduler.contains(&named("apiserver")), "{scheduler:?}");
        assert!(names("nodes/serving-node.pem").contains(&named("node")));
        let monitoring = terms("monitoring/monitoring.pem");
        assert_eq!(monitoring.subject.group, "system:monitoring");
        assert_eq!(monitoring.usage, Usage::Client);

        // etcd trusts its own authority alone.
        let authority = read("etcd-1/ca.crt");
        assert_eq!(read("apiserver-on-etcd/etcd-ca.crt"), authority);
        assert_ne!(read("apiserver/ca.crt"), authority);
        let member = terms("etcd-1/member.pem");
        assert_eq!(member.usage, Usage::Both);
        assert!(member.names.contains(&named("etcd-1")), "{member:?}");
        assert!(names("etcd-2/member.pem").contains(&named("10.0.0.2")));
        let client = terms("apiserver-on-etcd/etcd-client.pem");
        assert_eq!(client.usage, Usage::Client);
        certs(&dir.join("etcd"), "show").unwrap();

        // Once more: nothing changes; and after a renewal, what was renewed.
        certs(&dir, &init).unwrap();
        assert_eq!(stamps(), first);
        certs(&dir, "issue scheduler").unwrap();
        certs(&dir, &init).unwrap();
        let changed: Vec<_> = stamps()
            .into_iter()
            .filter(|(name, at)| first[name] != *at)
            .collect();
        assert!(
            matches!(&*changed, [(name, _)] if name == "scheduler/scheduler.pem"),
            "{changed:?}"
        );
        for wrong in [
            "scheduler",
            "scheduler=",
            "nobody=/a",
            "node/n1=/a",
            "etcd/a_b c=/a",
        ] {
            let error = certs(&dir, &format!("init --deliver {wrong}")).unwrap_err();
            assert!(error.is::<clap::Error>(), "{wrong}: {error}");
        }
    }

    #[test]
    fn rejects_owners_and_names_that_are_not_valid() {
        for line in [
            "issue nobody",
            "issue node/",
            "issue node/../x",
            "issue node/A",
            "issue apiserver --san a/b",
            "issue admin --lifetime 1s",
        ] {
            let error = certs(Path::new("/nonexistent"), line).unwrap_err();
            assert!(error.is::<clap::Error>(), "{line}: {error}");
        }
    }
}
