//! Programs that the Go tool chain built: stripped ones are known as well as others.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use darc_symbols::{Image, LookupError, SymbolSource};

use crate::harness::{Workshop, resolve_in};

const SOURCE: &str = r#"
package main

import "fmt"

type Server struct{ served int }

//go:noinline
func (s *Server) handle(n int) func() int {
	s.served += n
	return func() int {
		fmt.Println(s.served)
		return n
	}
}

//go:noinline
func largest[T int | string](a, b T) T {
	if a > b {
		return a
	}
	return b
}

func main() {
	s := &Server{}
	fmt.Println(s.handle(3)(), largest("a", "b"), largest(1, 2))
}
"#;

/// The Go tool chain: that of `DARC_TEST_GO`, else the one that is installed.
fn go() -> Option<PathBuf> {
    let go = std::env::var_os("DARC_TEST_GO").map_or_else(|| PathBuf::from("go"), PathBuf::from);
    let works = Command::new(&go).arg("version").output();
    let works = works.is_ok_and(|output| output.status.success());
    if !works {
        // Not by a macro: those are captured.
        let said = b"not tested: there is no Go tool chain; name one with DARC_TEST_GO\n";
        let _ = std::io::stderr().write_all(said);
    }
    works.then_some(go)
}

/// Builds the program; `None` where this tool chain cannot do it in this way.
fn build(workshop: &Workshop, name: &str, options: &[&str]) -> Option<Image> {
    workshop.write("prog.go", SOURCE);
    build_with("0", workshop, name, options)
}

/// As [`build`], what is written as its source, with C code ("1") or without it ("0").
fn build_with(cgo: &str, workshop: &Workshop, name: &str, options: &[&str]) -> Option<Image> {
    let mut command = Command::new(go()?);
    command
        .args(["build", "-o", name])
        .args(options)
        .arg("prog.go");
    for (variable, value) in [
        ("GOTOOLCHAIN", "local"),
        ("CGO_ENABLED", cgo),
        ("GOFLAGS", ""),
    ] {
        command.env(variable, value);
    }
    // What is compiled of Go's own packages is kept for the next test.
    let kept = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("go");
    command
        .env("GOCACHE", kept.join("cache"))
        .env("GOPATH", kept.join("path"));
    let output = command.current_dir(workshop.path("")).output().unwrap();
    assert!(
        output.status.success(),
        "{options:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(workshop.open(name))
}

#[test]
fn a_stripped_program_is_known_as_well_as_another() {
    let workshop = Workshop::new();
    let Some(full) = build(&workshop, "full", &[]) else {
        return;
    };
    for mode in ["exe", "pie"] {
        let mode = format!("-buildmode={mode}");
        let full = build(&workshop, "full", &[&mode]).unwrap();
        let stripped = build(&workshop, "stripped", &[&mode, "-ldflags=-s -w"]).unwrap();
        assert!(!stripped.is_stripped() && stripped.is_go());
        let version = stripped.go_version().expect("it says so");
        assert!(version.starts_with("go1."), "{version}");
        for name in [
            "main.(*Server).handle",
            "main.(*Server).handle.func1",
            "main.main",
        ] {
            assert!(stripped.symbol(name).is_some(), "{mode} {name}");
        }
        let own = |image: &Image| {
            let all = image.functions().iter();
            let named = all.filter(|f| f.raw_name().is_some_and(|name| name.starts_with("main.")));
            let shown = named.map(|f| {
                let frames = image.frames(f.addr);
                let last = frames.last().unwrap().clone();
                // Go's table has `largest[...]` for `largest[go.shape.int]`, before version 1.21.
                let name = f.raw_name().unwrap().split('[').next();
                (name.unwrap().to_owned(), last.file, last.line)
            });
            let mut shown: Vec<_> = shown.collect();
            shown.sort();
            shown
        };
        assert_eq!(own(&full), own(&stripped), "{mode}");
        let sources = stripped.functions().iter().map(|f| f.source);
        assert!(sources.collect::<Vec<_>>().contains(&SymbolSource::GoTable));
    }
    assert!(
        full.functions()
            .iter()
            .all(|f| f.source == SymbolSource::Symtab)
    );
}

/// The C compiler's linker does not say where the code of Go's begins, nor, where the program may lie anywhere, where the table is.
#[test]
fn a_program_that_another_linker_made_is_known_as_well() {
    const IN_C: &str = "package main\n\n// static int twice(int x) { return 2 * x; }\nimport \"C\"\n\nfunc main() { println(C.twice(2)) }\n";
    let workshop = Workshop::new();
    workshop.write("prog.go", IN_C);
    for (mode, linker) in [
        ("exe", "internal"),
        ("exe", "external"),
        ("pie", "external"),
    ] {
        let mode = format!("-buildmode={mode}");
        let flags = |more| format!("-ldflags=-linkmode={linker}{more}");
        let full = build_with("1", &workshop, "full", &[&mode, &flags("")]);
        let Some(full) = full else {
            return;
        };
        let stripped = build_with("1", &workshop, "stripped", &[&mode, &flags(" -s -w")]).unwrap();
        let [main, _] = ["main.main", "runtime.systemstack"].map(|name| {
            let named = stripped.go_functions_named(&[name]);
            assert!(
                !named.is_empty() && named.iter().all(|it| !it.is_c),
                "{mode} {linker} {name}"
            );
            named[0].code.start
        });
        assert_eq!(full.symbol("main.main"), Some(main), "{mode} {linker}");
        // Go's linker puts C code among its own.
        let mut in_c = full
            .go_functions()
            .filter(|it| it.name.ends_with("_Cfunc_twice") && it.is_c);
        assert_eq!(in_c.next().is_some(), linker == "internal", "{mode}");
    }
}

#[test]
fn functions_are_found_by_the_names_that_people_type() {
    let workshop = Workshop::new();
    for options in [&[][..], &["-ldflags=-s -w"]] {
        let Some(image) = build(&workshop, "named", options) else {
            return;
        };
        for (typed, symbol) in [
            ("Server.handle", "main.(*Server).handle"),
            ("(*Server).handle", "main.(*Server).handle"),
            ("main.Server.handle", "main.(*Server).handle"),
            ("(*Server).handle.func1", "main.(*Server).handle.func1"),
        ] {
            let addr = resolve_in(&image, typed).unwrap();
            assert_eq!(Some(addr), image.symbol(symbol), "{typed}");
        }
        // There is one for numbers and one for text.
        for typed in ["main.largest", "largest", "main.largest[...]"] {
            let Err(LookupError::Ambiguous { candidates, .. }) = resolve_in(&image, typed) else {
                panic!("{typed}");
            };
            assert_eq!(candidates.len(), 2, "{typed}: {candidates:?}");
        }
        // Before version 1.21 Go's own table has no type arguments.
        let mut names = image.functions().iter().flat_map(|it| it.names());
        let is_told = names.any(|name| name.starts_with("main.largest[go."));
        let found = resolve_in(&image, "main.largest[int]");
        assert_eq!(found.is_ok(), is_told, "{found:?}");
    }
}
