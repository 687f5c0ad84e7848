//! Containers of Debian's busybox, started by the helper.

#![expect(clippy::unwrap_used, reason = "a test")]

#[path = "containers/launcher.rs"]
mod launcher;

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    process::Command,
};

use podplane_container_init::{
    LaunchRequest, ProcessSpec,
    spec::{BeneathPath, ImageFiles},
};

use launcher::{Image, USER};

/// The exit code and the output of a shell script in a new container.
fn shell(image: &Image, script: &str) -> (i32, String) {
    image.run(&image.container(), image.process(&["sh", "-c", script]))
}

#[test]
fn a_program_runs_in_the_images_tree_as_its_own_first_process() {
    let Some(image) = Image::new() else { return };
    let script =
        "echo pid $$; id; pwd; hostname; cat /etc/hostname; ls /; echo to stderr >&2; exit 7";
    let (code, output) = shell(&image, script);
    assert_eq!(code, 7, "{output}");
    for line in [
        "pid 1\n",
        &format!("uid={USER} gid={USER}\n"),
        "web-0\nweb-0\n",
        "to stderr\n",
    ] {
        assert!(output.contains(line), "{line:?} in {output}");
    }
    assert!(!output.contains("usr"), "the machine's: {output}");
}

#[test]
fn a_program_has_no_rights_and_cannot_gain_any() {
    let Some(image) = Image::new() else { return };
    let (code, status) = shell(&image, "cat /proc/self/status");
    assert_eq!(code, 0, "{status}");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_once(':').unwrap().1.trim().to_owned()
    };
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    assert_eq!(field("NoNewPrivs"), "1");
    assert_eq!(field("Seccomp"), "2", "a filter");
    assert_eq!(field("Uid"), format!("{USER}\t{USER}\t{USER}\t{USER}"));
    for (script, refused) in [
        ("mount -t tmpfs tmpfs /tmp", "permission denied"),
        ("unshare -U true", "Operation not permitted"),
        ("chroot / true", "Operation not permitted"),
        ("su", "must be suid"),
        ("ulimit -n 9999999", "Operation not permitted"),
        (
            "echo 1 > /proc/sys/kernel/hostname",
            "Read-only file system",
        ),
    ] {
        let (code, output) = shell(&image, &format!("( {script} ) 2>&1"));
        assert!(code != 0, "{script}: {output}");
        assert!(output.contains(refused), "{script}: {output}");
    }
}

#[test]
fn a_program_has_its_standard_streams_and_nothing_else_open() {
    let Some(image) = Image::new() else { return };
    let (code, output) = shell(&image, "exec ls -l /proc/self/fd");
    assert_eq!(code, 0, "{output}");
    let links: Vec<_> = output.lines().filter(|line| line.contains("->")).collect();
    assert_eq!(
        links.len(),
        3,
        "the directory that ls reads is closed again: {output}"
    );
}

#[test]
fn the_image_stays_as_it_is() {
    let Some(image) = Image::new() else { return };
    let before = image.files();
    fs::set_permissions(image.tree().join("bin"), PermissionsExt::from_mode(0o777)).unwrap();
    let script = "echo x > /tmp/x && rm /bin/busybox && cat /tmp/x 2>&1; ls -d /tmp/x /bin/busybox";
    shell(&image, script);
    assert_eq!(image.files(), before);
    let mut readonly = image.container();
    readonly.readonly = true;
    let (code, output) = image.run(&readonly, image.process(&["sh", "-c", "echo x > /tmp/x"]));
    assert!(code != 0 && output.contains("Read-only"), "{output}");
}

#[test]
fn links_of_an_image_lead_nowhere_else() {
    let Some(image) = Image::new() else { return };
    let outside = image.dir().join("outside");
    fs::write(&outside, "machine").unwrap();
    for target in [
        outside.to_str().unwrap(),
        "../../../../../../etc/passwd",
        "/proc/1/fd/7/x",
    ] {
        let link = image.tree().join("etc/resolv.conf");
        _ = fs::remove_file(&link);
        symlink(target, &link).unwrap();
        let mut container = image.container();
        container.files = vec![("/etc/resolv.conf".into(), "nameserver 10.0.0.10\n".into())];
        let (_, output) = image.run(&container, image.process(&["cat", "/etc/resolv.conf"]));
        assert_eq!(output, "nameserver 10.0.0.10\n");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }
    assert_eq!(fs::read_to_string(&outside).unwrap(), "machine");
    // A directory of the image that is a link to the machine's.
    fs::remove_dir_all(image.tree().join("etc")).unwrap();
    symlink(image.dir(), image.tree().join("etc")).unwrap();
    let refused = image
        .launch(&image.container(), image.process(&["true"]))
        .unwrap_err();
    assert!(refused.contains("write /etc/hostname"), "{refused}");
    assert!(!image.dir().join("hostname").exists());
    fs::remove_file(image.tree().join("etc")).unwrap();
    fs::remove_dir_all(image.tree().join("proc")).ok();
    symlink("/tmp", image.tree().join("proc")).unwrap();
    let refused = image
        .launch(&image.container(), image.process(&["true"]))
        .unwrap_err();
    assert!(
        refused.contains("/proc that is not a directory"),
        "{refused}"
    );
}

#[test]
fn paths_that_lead_out_of_their_root_are_refused() {
    let Some(image) = Image::new() else { return };
    fs::create_dir(image.dir().join("outside")).unwrap();
    symlink("../outside", image.root().join("link")).unwrap();
    for path in ["../outside", "link", "/etc", "busybox/../../outside", ""] {
        let mut container = image.container();
        container.image = ImageFiles::Tree(image.beneath(path));
        let refused = image
            .launch(&container, image.process(&["true"]))
            .unwrap_err();
        assert!(refused.contains("beneath"), "{path}: {refused}");
    }
    for target in ["/proc/1/fd/7/x", "/proc", "relative", "/a/../../b", "/"] {
        let mut container = image.container();
        container.mounts = vec![image.bind("volume", target, false)];
        let refused = image
            .launch(&container, image.process(&["true"]))
            .unwrap_err();
        assert!(
            refused.contains("must be an absolute path"),
            "{target}: {refused}"
        );
    }
}

#[test]
fn mounts_are_there_and_are_read_only_if_they_should_be() {
    let Some(image) = Image::new() else { return };
    let volume = image.root().join("volume");
    fs::set_permissions(&volume, PermissionsExt::from_mode(0o777)).unwrap();
    fs::write(image.root().join("hosts"), "10.0.0.1 web-0\n").unwrap();
    let mut container = image.container();
    container.mounts = vec![
        image.bind("volume", "/var/lib/data", false),
        image.bind("volume", "/frozen", true),
        image.bind("hosts", "/etc/hosts", false),
    ];
    let script = "cat /etc/hosts; echo kept > /var/lib/data/x; cat /frozen/x; echo y > /frozen/x";
    let (_, output) = image.run(&container, image.process(&["sh", "-c", script]));
    assert!(output.starts_with("10.0.0.1 web-0\nkept\n"), "{output}");
    assert!(output.contains("Read-only file system"), "{output}");
    assert_eq!(fs::read_to_string(volume.join("x")).unwrap(), "kept\n");
}

#[test]
fn paths_are_hidden_and_protected_on_request() {
    let Some(image) = Image::new() else { return };
    let mut container = image.container();
    container.masked_paths = vec!["/etc/secret".into(), "/lib".into(), "/missing".into()];
    container.readonly_paths = vec!["/tmp".into(), "/missing".into()];
    fs::write(image.tree().join("etc/secret"), "secret").unwrap();
    fs::create_dir_all(image.tree().join("lib/secret")).unwrap();
    let script = "cat /etc/secret; ls -A /lib; echo x > /tmp/x";
    let (_, output) = image.run(
        &container,
        image.process(&["sh", "-c", &format!("({script}) 2>&1")]),
    );
    assert!(
        output.ends_with("/tmp/x: Read-only file system\n"),
        "{output}"
    );
    assert_eq!(output.lines().count(), 1, "{output}");
}

#[test]
fn a_program_of_the_machine_is_alone_in_its_tree() {
    let Some(image) = Image::new() else { return };
    let mut container = image.container();
    container.image = ImageFiles::Program(BeneathPath {
        root: "/bin".into(),
        path: "busybox".into(),
    });
    let (code, output) = image.run(&container, image.process(&["/busybox", "ls", "/"]));
    assert_eq!(code, 0, "{output}");
    assert_eq!(output, "busybox\ndev\netc\nproc\ntmp\n");
}

fn set_uid(process: &mut ProcessSpec, id: u32) {
    process.uid = id;
}

fn set_gid(process: &mut ProcessSpec, id: u32) {
    process.gid = id;
}

fn add_group(process: &mut ProcessSpec, id: u32) {
    process.groups.push(id);
}

#[test]
fn the_reason_of_a_failed_start_is_reported() {
    let Some(image) = Image::new() else { return };
    let missing = image
        .launch(&image.container(), image.process(&["/no/such"]))
        .unwrap_err();
    assert!(missing.contains("execute \"/no/such\""), "{missing}");
    assert!(missing.contains("No such file"), "{missing}");
    for id in [0, u32::MAX] {
        for set in [set_uid, set_gid, add_group] {
            let mut root = image.process(&["true"]);
            set(&mut root, id);
            let refused = image.launch(&image.container(), root).unwrap_err();
            assert!(refused.contains("user or group 0"), "{id}: {refused}");
        }
    }
    let mut process = image.process(&["true"]);
    process.cwd = "/bin/busybox".into();
    let refused = image.launch(&image.container(), process).unwrap_err();
    assert!(refused.contains("working directory"), "{refused}");
}

#[test]
fn a_process_can_enter_a_container_and_ends_with_it() {
    let Some(image) = Image::new() else { return };
    let sleeper = image.process(&["sh", "-c", "echo inside > /tmp/x; exec sleep 1000"]);
    let container = image.launch(&image.container(), sleeper).unwrap();
    // The file is there once the shell has become the program that sleeps.
    let script = "until [ -s /tmp/x ]; do :; done; cat /tmp/x; id -u; hostname; ps";
    let request = LaunchRequest::Enter(image.process(&["sh", "-c", script]));
    let entered = image.request(&request, &container.pidfd).unwrap();
    let (code, output) = entered.finish();
    assert_eq!(code, 0, "{output}");
    let start = format!("inside\n{USER}\nweb-0\n");
    assert!(output.starts_with(&start), "{output}");
    assert!(output.contains("sleep 1000"), "{output}");
    let status = image.process(&["sh", "-c", "cat /proc/self/status; exec sleep 1000"]);
    let entered = image
        .request(&LaunchRequest::Enter(status), &container.pidfd)
        .unwrap();
    let output = entered.read_until("Seccomp:");
    assert!(
        output.contains("NoNewPrivs:\t1") && output.contains("Seccomp:\t2"),
        "{output}"
    );
    let (code, _) = container.kill();
    assert_eq!(code, 128 + 9);
    let (code, output) = entered.finish();
    assert_eq!(code, 128 + 9, "{output}");
}

#[test]
fn a_program_does_not_outlive_its_launcher() {
    let Some(image) = Image::new() else { return };
    let container = image
        .launch(&image.container(), image.process(&["sleep", "1000"]))
        .unwrap();
    assert_eq!(container.abandon(), 128 + 9);
}

#[test]
fn a_fork_bomb_hits_its_limit_and_ends_with_its_container() {
    let Some(image) = Image::new() else { return };
    let script =
        "(i=0; while [ $i -lt 2000 ]; do sleep 1000 & i=$((i+1)); done) 2>&1; exec sleep 1000";
    let mut bomb = image.process(&["sh", "-c", script]);
    // The limit is one of the user.
    bomb.uid = USER + 1;
    let container = image.launch(&image.container(), bomb).unwrap();
    let read = container.read_until("can't fork");
    assert!(read.contains("can't fork"), "{read}");
    let (code, _) = container.kill();
    assert_eq!(code, 128 + 9);
    let left = Command::new("pgrep")
        .args(["-u", &(USER + 1).to_string()])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(left.stdout).unwrap(),
        "",
        "processes of the user"
    );
}

#[test]
fn a_terminal_is_the_containers_own() {
    let Some(image) = Image::new() else { return };
    let mut process = image.process(&["sh", "-c", "tty; [ -t 0 ] && [ -t 2 ] && echo terminal"]);
    process.terminal = true;
    let (code, output) = image.run(&image.container(), process);
    assert_eq!(code, 0, "{output}");
    assert_eq!(output, "/dev/pts/0\r\nterminal\r\n");
}
