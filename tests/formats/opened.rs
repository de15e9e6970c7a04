//! A page is opened by the person's own opener, and never by root.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use darc_report::fixture;

use crate::harness::{darc, execute, wait_until, write_program};

#[test]
fn a_page_is_opened_as_the_person() {
    let folder = tempfile::tempdir().expect("a folder");
    let here = folder.path();
    fs::set_permissions(here, fs::Permissions::from_mode(0o777)).expect("ours");
    fs::write(
        here.join("results"),
        darc_report::state::write(&fixture::report(1_000)),
    )
    .expect("room");
    let opener = format!(
        "#!/bin/sh\necho \"$(id -u) $HOME $SECRET $1\" > {0}/opening && mv {0}/opening {0}/opened\n",
        here.display()
    );
    write_program(opener, &here.join("xdg-open"));
    let report = |more: &[(&str, &str)]| {
        let mut report = darc(&["report", "results", "--open"]);
        report
            .current_dir(here)
            .env_remove("SUDO_UID")
            .env_remove("DISPLAY");
        report.env_remove("WAYLAND_DISPLAY").env("SECRET", "root's");
        let path = std::env::var("PATH").unwrap_or_default();
        report.env("PATH", format!("{}:{path}", here.display()));
        let finished = execute(report.envs(more.iter().copied()));
        assert_eq!(finished.code(), 0, "{finished:#?}");
        let page = fs::read_to_string(here.join("out.html")).expect("a page");
        assert!(page.contains("<title>Latency of put"));
        finished.stderr
    };
    let told = report(&[]);
    assert!(
        told.contains("no screen here") && told.contains("/out.html"),
        "{told}"
    );
    let opened = |more: &[(&str, &str)]| {
        assert_eq!(report(more), "");
        wait_until("somebody who opens it", || here.join("opened").exists());
        let opened = fs::read_to_string(here.join("opened")).expect("written");
        fs::remove_file(here.join("opened")).expect("ours");
        opened
    };
    if !nix::unistd::geteuid().is_root() {
        assert!(opened(&[("DISPLAY", ":9")]).ends_with("/out.html\n"));
        return;
    }
    let told = report(&[("DISPLAY", ":9")]);
    assert!(told.contains("root opens no browser"), "{told}");
    let nobody = nix::unistd::User::from_name("nobody").ok().flatten();
    let nobody = nobody.expect("there is one").uid.to_string();
    let opened = opened(&[("DISPLAY", ":9"), ("SUDO_UID", &nobody)]);
    assert!(opened.starts_with(&format!("{nobody} /")), "{opened}");
    assert!(!opened.contains("root's"), "{opened}");
}
