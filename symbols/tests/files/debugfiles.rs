//! Separate debug files.

use darc_symbols::{DebugSearch, Image};

use crate::harness::{Workshop, open_with};

const SOURCE: &str = "static __attribute__((noinline)) int hidden(int x) { return x * 3; }\nint main(int c, char **v) { (void)v; return hidden(c); }\n";

fn built() -> Workshop {
    let workshop = Workshop::c("-g -O1 -Wl,--build-id", SOURCE);
    workshop.run("objcopy --only-keep-debug prog prog.debug");
    workshop
}

fn is_complete(image: &Image) -> bool {
    let Some(addr) = image.symbol("hidden") else {
        return false;
    };
    let frames = image.frames(addr);
    assert!(!image.is_stripped());
    frames.len() == 1
        && frames[0].line == Some(1)
        && image.function_at(addr).unwrap().size.is_some()
}

#[test]
fn by_build_id() {
    let workshop = built();
    workshop.run("strip prog");
    let id = workshop.prog().build_id().unwrap().to_string();
    assert!(!is_complete(&workshop.prog()));
    let (head, tail) = id.split_at(2);
    workshop.write(&format!("usr/lib/debug/.build-id/{head}/{tail}.debug"), "");
    let place = workshop.path(&format!("usr/lib/debug/.build-id/{head}/{tail}.debug"));
    let image = workshop.prog();
    assert!(!is_complete(&image));
    assert!(
        image.warnings()[0].contains("not an ELF file"),
        "{:?}",
        image.warnings()
    );
    std::fs::copy(workshop.path("prog.debug"), &place).unwrap();
    let image = workshop.prog();
    assert!(is_complete(&image));
    assert_eq!(image.warnings(), Vec::<String>::new());
    // A debug file of another build.
    workshop.write("prog.c", &SOURCE.replace('3', "5"));
    workshop.run("cc -g -O1 -Wl,--build-id -o other prog.c");
    std::fs::copy(workshop.path("other"), &place).unwrap();
    let image = workshop.prog();
    assert!(!is_complete(&image));
    assert!(
        image.warnings()[0].contains("another build"),
        "{:?}",
        image.warnings()
    );
    // Looking nowhere finds nothing.
    assert!(!is_complete(&open_with(
        &workshop.path("prog"),
        "/prog".as_ref(),
        &DebugSearch::nowhere()
    )));
}

/// Symbols that were packed into the stripped file itself.
#[test]
fn in_the_file_itself() {
    if std::process::Command::new("xz")
        .arg("--version")
        .output()
        .is_err()
    {
        return eprintln!("not tested: xz does not run here; install xz-utils");
    }
    let workshop = Workshop::c("-O1", SOURCE);
    workshop.run("objcopy --only-keep-debug prog names");
    workshop.run("xz names");
    workshop.run("strip prog");
    workshop.run("cp prog damaged");
    workshop.run("objcopy --add-section .gnu_debugdata=names.xz prog");
    let image = workshop.prog();
    assert!(image.symbol("hidden").is_some() && !image.is_stripped());
    assert_eq!(image.lacks_names(), None);
    assert_eq!(image.warnings(), Vec::<String>::new());
    let names = std::fs::read(workshop.path("names.xz")).unwrap();
    for end in [0, 10, names.len() / 2] {
        std::fs::write(workshop.path("part"), &names[..end]).unwrap();
        workshop.run("objcopy --add-section .gnu_debugdata=part damaged prog");
        let image = workshop.prog();
        assert!(image.symbol("hidden").is_none() && image.is_stripped());
        let warnings = image.warnings();
        assert!(
            end == 0 || warnings[0].contains(".gnu_debugdata"),
            "{warnings:?}"
        );
    }
}

#[test]
fn by_debug_link() {
    for place in [
        "usr/bin/prog.debug",
        "usr/bin/.debug/prog.debug",
        "usr/lib/debug/usr/bin/prog.debug",
    ] {
        for build_id in ["", "-Wl,--build-id=none"] {
            let workshop = built();
            workshop.run(&format!("cc -g -O1 {build_id} -o prog prog.c"));
            workshop.run("objcopy --only-keep-debug prog prog.debug");
            workshop.run("objcopy --strip-all --add-gnu-debuglink=prog.debug prog");
            let open = || {
                open_with(
                    &workshop.path("prog"),
                    "/usr/bin/prog".as_ref(),
                    &workshop.search(),
                )
            };
            assert!(!is_complete(&open()));
            let place = workshop.write(place, "");
            std::fs::copy(workshop.path("prog.debug"), &place).unwrap();
            assert!(is_complete(&open()), "{place:?} {build_id}");
            // One changed byte, at the end where it does no other harm.
            let mut bytes = std::fs::read(&place).unwrap();
            bytes.push(0);
            std::fs::write(&place, &bytes).unwrap();
            let image = open();
            assert!(!is_complete(&image));
            assert!(
                image.warnings()[0].contains("checksum"),
                "{:?}",
                image.warnings()
            );
        }
    }
}

#[test]
fn compressed_sections() {
    for format in ["zlib", "zstd"] {
        let workshop = Workshop::c("-g -O1", SOURCE);
        let supported = std::process::Command::new("objcopy")
            .args([
                &format!("--compress-debug-sections={format}"),
                "prog",
                "small",
            ])
            .current_dir(workshop.path("."))
            .status()
            .unwrap();
        if !supported.success() {
            eprintln!("objcopy cannot compress with {format}: not tested");
            continue;
        }
        assert!(is_complete(&workshop.open("small")), "{format}");
    }
}

#[test]
fn a_pipe_in_place_of_a_debug_file_does_not_block() {
    let workshop = built();
    workshop.run("strip prog");
    let id = workshop.prog().build_id().unwrap().to_string();
    let (head, tail) = id.split_at(2);
    workshop.run(&format!("mkdir -p usr/lib/debug/.build-id/{head}"));
    workshop.run(&format!(
        "mkfifo usr/lib/debug/.build-id/{head}/{tail}.debug"
    ));
    let image = workshop.prog();
    assert!(!is_complete(&image));
    assert!(
        image.warnings()[0].contains("not a regular file"),
        "{:?}",
        image.warnings()
    );
}
