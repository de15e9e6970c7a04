//! Frames with inlining, DWARF 4 and 5, source lines to functions.

use darc_symbols::{FileAddr, Image, LookupError};

use crate::harness::{Workshop, function_named, resolve_in};

/// Lines matter here.
const SOURCE: &str = r#"#include <stdio.h>
static volatile int sink;
static inline __attribute__((always_inline)) int innermost(int x) {
    sink += x;
    return sink;
}
static inline __attribute__((always_inline)) int middle(int x) {
    return innermost(x + 1) * 2;
}
__attribute__((noinline)) int outer(int x) {
    return middle(x) + 1;
}
int main(int argc, char **argv) {
    (void)argv;
    return outer(argc);
}
"#;

fn inline_chain(image: &Image) -> Vec<(String, u32)> {
    let outer = image
        .function_at(image.symbol("outer").unwrap())
        .unwrap()
        .range()
        .unwrap();
    let chains = (outer.start.0..outer.end.0).map(|addr| image.frames(FileAddr(addr)));
    let deepest = chains.max_by_key(Vec::len).unwrap();
    let file = |frame: &darc_symbols::Frame| frame.file.as_ref().unwrap().ends_with("/prog.c");
    assert!(deepest.iter().all(file), "{deepest:?}");
    deepest
        .into_iter()
        .map(|frame| (frame.function, frame.line.unwrap()))
        .collect()
}

#[test]
fn inline_chains_in_both_dwarf_versions() {
    for options in [
        "-gdwarf-4 -O2",
        "-gdwarf-5 -O2",
        "-gdwarf-4 -O0",
        "-gdwarf-5 -O0",
        "-gdwarf-5 -O2 -static",
        "-gdwarf-5 -O2 -gz=zlib",
    ] {
        let workshop = Workshop::c(options, SOURCE);
        let chain = inline_chain(&workshop.prog());
        let names: Vec<&str> = chain.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["innermost", "middle", "outer"], "{options}");
        assert!(matches!(chain[0].1, 4 | 5), "{options}: {chain:?}");
        assert_eq!((chain[1].1, chain[2].1), (8, 11), "{options}");
    }
}

#[test]
fn without_debugging_information_the_symbol_remains() {
    let workshop = Workshop::c("-O1", SOURCE);
    let image = workshop.prog();
    let frames = image.frames(image.symbol("outer").unwrap());
    assert_eq!(frames.len(), 1);
    assert_eq!(
        (frames[0].function.as_str(), &frames[0].file, frames[0].line),
        ("outer", &None, None)
    );
    assert!(!image.has_lines());
    assert_eq!(image.inlined_in(image.symbol("outer").unwrap()), None);
    assert!(image.frames(FileAddr(0)).is_empty() && image.frames(FileAddr(u64::MAX)).is_empty());
}

#[test]
fn lines_name_the_function_that_contains_them() {
    for options in [
        "-gdwarf-4 -O0",
        "-gdwarf-5 -O2",
        "-gdwarf-5 -O0 -static-pie",
    ] {
        let workshop = Workshop::c(options, SOURCE);
        let image = workshop.prog();
        assert_eq!(function_named(&image, "prog.c:11"), "outer", "{options}");
        let directory = workshop.path("prog.c");
        assert_eq!(
            function_named(&image, &format!("{}:15", directory.display())),
            "main",
            "{options}"
        );
        // Nothing begins on line 14's closing part, the next statement does.
        assert_eq!(function_named(&image, "prog.c:10"), "outer", "{options}");
        let error = resolve_in(&image, "prog.c:4").unwrap_err();
        assert!(
            matches!(&error, LookupError::OnlyInlined { copies, .. } if copies[0].caller == "outer"),
            "{options}: {error:?}"
        );
        let error = resolve_in(&image, "rog.c:11").unwrap_err();
        assert!(
            matches!(error, LookupError::NoCodeAtLine { .. }),
            "{options}: {error:?}"
        );
        assert!(resolve_in(&image, "prog.c:4000").is_err());
    }
}

#[test]
fn inlined_functions_are_reported_as_such() {
    for options in ["-gdwarf-4 -O2", "-gdwarf-5 -O1"] {
        let workshop = Workshop::c(options, SOURCE);
        let image = workshop.prog();
        let error = resolve_in(&image, "innermost").unwrap_err();
        let LookupError::OnlyInlined { copies, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(
            (copies.len(), copies[0].caller.as_str(), copies[0].line),
            (1, "outer", Some(8)),
            "{options}"
        );
        assert!(copies[0].file.as_ref().unwrap().ends_with("prog.c"));
        let text = error.to_string();
        assert!(
            text.contains("inlined everywhere (1 place") && text.contains("prog.c:8"),
            "{text}"
        );
        assert_eq!(image.inlined_into("outer"), []);
        let inlined_in = |name| image.inlined_in(image.symbol(name).unwrap());
        let names = inlined_in("outer").expect("of what is known");
        assert_eq!(names, ["middle"], "{options}: by its own calls");
        assert_eq!(inlined_in("main"), Some(Vec::new()), "{options}");
    }
}

#[test]
fn inlined_members_and_namespaces() {
    let source = r#"
        struct Counter { int n; int bump(int by); };
        inline int Counter::bump(int by) { n += by; return n; }
        namespace deep { namespace er { static inline int twice(int x) { return 2 * x; } } }
        __attribute__((noinline)) int user(Counter &c, volatile int &v) { v = deep::er::twice(v); return c.bump(v); }
        int main(int argc, char **) { Counter c{argc}; volatile int v = argc; return user(c, v); }
    "#;
    for options in ["-O2 -gdwarf-4", "-O2 -gdwarf-5"] {
        let workshop = Workshop::cxx(options, source);
        let image = workshop.prog();
        for name in [
            "Counter::bump",
            "bump",
            "Counter::bump(int)",
            "deep::er::twice",
            "er::twice",
            "twice",
        ] {
            let copies = image.inlined_into(name);
            assert!(!copies.is_empty(), "{name} {options}");
            assert!(
                copies
                    .iter()
                    .all(|copy| copy.caller == "user(Counter&, int volatile&)"),
                "{copies:?}"
            );
        }
        for name in [
            "Other::bump",
            "deep::twice",
            "Counter::bump(char)",
            "operator+",
        ] {
            assert_eq!(image.inlined_into(name), [], "{name} {options}");
        }
    }
}

#[test]
fn a_function_that_begins_with_an_inlined_call_behind_another_section() {
    // The end of the first section's rows and the beginning of the next one's have the same address.
    let source = r#"static volatile int sink;
static inline __attribute__((always_inline)) void inner(void) {
    sink = 1;
}
__attribute__((section(".text.a"), noinline)) void first(void) {
    sink = 2;
}
__attribute__((section(".text.b"), noinline)) void second(void) {
    inner();
}
int main(void) { first(); second(); return 0; }
"#;
    for options in ["-gdwarf-4", "-gdwarf-5"] {
        let workshop = Workshop::c(&format!("-O1 -fno-align-functions {options}"), source);
        let image = workshop.prog();
        let first = image.function_at(image.symbol("first").unwrap()).unwrap();
        assert_eq!(Some(first.range().unwrap().end), image.symbol("second"));
        assert_eq!(function_named(&image, "prog.c:8"), "second", "{options}");
    }
}
