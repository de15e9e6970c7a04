//! Symbols, sizes, aliases, cold parts, unwind tables.

use darc_symbols::{FileAddr, ImageKind, SymbolSource};

use crate::harness::{Workshop, resolve_in};

const SOURCE: &str = r#"
#include <stdlib.h>
#include <unistd.h>
int sink;
__attribute__((noinline)) static int small(int x) { return x * 3 + sink; }
__attribute__((noinline)) int entry_point(int x) { return small(x) + small(x + 1); }
int entry_alias(int x) __attribute__((alias("entry_point")));
int main(int argc, char **argv) { (void)argv; return entry_point(argc) & write(1, "", 0); }
"#;

#[test]
fn functions_of_every_kind_of_program() {
    let kinds = [
        ("-no-pie", ImageKind::Executable),
        ("-pie -fPIE", ImageKind::PositionIndependent),
        ("-static", ImageKind::Executable),
        ("-static-pie -fPIE", ImageKind::PositionIndependent),
        ("-shared -fPIC", ImageKind::SharedLibrary),
    ];
    for (options, kind) in kinds {
        let workshop = Workshop::c(&format!("-O1 -fno-ipa-icf {options}"), SOURCE);
        let image = workshop.prog();
        assert_eq!(image.kind(), kind, "{options}");
        assert!(!image.is_stripped() && !image.is_go(), "{options}");
        assert_eq!(
            image.interpreter().is_some(),
            ["-no-pie", "-pie -fPIE"].contains(&options),
            "{options}"
        );
        assert!(image.build_id().is_some(), "{options}");
        let addr = image.symbol("entry_point").unwrap();
        let function = image.function_at(addr).unwrap();
        assert_eq!(function.addr, addr);
        assert_eq!(function.source, SymbolSource::Symtab);
        let mut names: Vec<&str> = function.names().collect();
        names.sort();
        assert_eq!(names, ["entry_alias", "entry_point"], "{options}");
        let last = FileAddr(addr.0 + function.size.unwrap() - 1);
        assert_eq!(image.function_at(last).unwrap().addr, addr, "{options}");
        assert_ne!(
            image.function_at(FileAddr(last.0 + 1)).map(|f| f.addr),
            Some(addr),
            "{options}"
        );
        assert!(image.functions().is_sorted_by_key(|function| function.addr));
        assert!(image.is_code(addr) && !image.is_code(image.symbol("sink").unwrap()));
        let segment = image
            .segments()
            .iter()
            .find(|s| s.executable && s.addr <= addr && addr.0 < s.addr.0 + s.mem_size);
        let segment = segment.unwrap();
        assert_eq!(
            image.addr_of_offset(segment.file_offset + (addr.0 - segment.addr.0)),
            Some(addr)
        );
        assert_eq!(image.warnings(), Vec::<String>::new(), "{options}");
    }
}

#[test]
fn a_stripped_program_has_functions_without_names() {
    let workshop = Workshop::c("-O1 -pie -fPIE", SOURCE);
    let full = workshop.prog();
    let known = ["main", "entry_point", "small"].map(|name| full.symbol(name).unwrap());
    workshop.run("strip prog");
    let image = workshop.prog();
    assert!(image.is_stripped());
    for addr in known {
        let (before, after) = (
            full.function_at(addr).unwrap(),
            image.function_at(addr).unwrap(),
        );
        assert_eq!((after.addr, after.size), (before.addr, before.size));
        assert_eq!(
            (after.source, after.raw_name()),
            (SymbolSource::UnwindTable, None)
        );
        assert_eq!(image.name_of(after), format!("prog+0x{addr:x}"));
        assert_eq!(resolve_in(&image, &format!("prog:{addr}")), Ok(addr));
        assert_eq!(image.frames(addr)[0].function, image.name_of(after));
    }
    let error = resolve_in(&image, "entry_point").unwrap_err().to_string();
    assert!(error.contains("prog has no symbol table"), "{error}");
    // PLT stubs have unwind entries and are no functions.
    assert!(
        image
            .functions()
            .iter()
            .all(|function| image.plt_name(function.addr).is_none())
    );
}

#[test]
fn a_library_keeps_its_exports_when_stripped() {
    let workshop = Workshop::c("-O1 -shared -fPIC", SOURCE);
    workshop.run("strip prog");
    let image = workshop.prog();
    assert!(image.is_stripped());
    let exported = image
        .function_at(resolve_in(&image, "entry_point").unwrap())
        .unwrap();
    assert_eq!(exported.source, SymbolSource::Dynsym);
    assert!(
        image
            .functions()
            .iter()
            .any(|function| function.source == SymbolSource::UnwindTable)
    );
}

#[test]
fn cold_parts_belong_to_their_function() {
    let source = r#"
        #include <stdio.h>
        #include <stdlib.h>
        __attribute__((cold, noinline)) void fail(const char *why) { fputs(why, stderr); }
        __attribute__((noinline)) int hot(int x) {
            if (__builtin_expect(x == 12345, 0)) { fail("a"); fail("b"); printf("%d", x); abort(); }
            return x * 7;
        }
        int main(int argc, char **argv) { (void)argv; return hot(argc); }
    "#;
    let workshop = Workshop::c("-O2 -freorder-blocks-and-partition", source);
    let image = workshop.prog();
    let hot = image.symbol("hot").unwrap();
    let function = image.function_at(hot).unwrap();
    assert_eq!(function.cold_parts.len(), 1, "{function:?}");
    let part = function.cold_parts[0];
    assert_eq!(image.symbol("hot.cold"), Some(part.start));
    assert_eq!(image.function_at(part.start).unwrap().addr, hot);
    assert!(
        image
            .functions()
            .iter()
            .all(|function| function.addr != part.start)
    );
}

#[test]
fn cold_parts_of_statics_of_one_name_are_told_apart() {
    let source = |value: u32| {
        format!(
            r#"
        #include <stdlib.h>
        __attribute__((cold, noinline)) static void fail(int x) {{ exit(x); }}
        __attribute__((noinline)) static int same(int x) {{ if (x == {value}) {{ fail(x); fail(x + 1); abort(); }} return x * {value}; }}
        int user{value}(int x) {{ return same(x); }}
    "#
        )
    };
    let workshop = Workshop::new();
    workshop.write("a.c", &source(11));
    workshop.write("b.c", &source(22));
    workshop.write("m.c", "int user11(int); int user22(int); int main(int c, char **v) { (void)v; return user11(c) + user22(c); }");
    workshop.run("cc -O2 -freorder-blocks-and-partition -o prog m.c a.c b.c");
    let image = workshop.prog();
    let same: Vec<_> = image
        .functions()
        .iter()
        .filter(|function| function.raw_name() == Some("same"))
        .collect();
    assert_eq!(same.len(), 2);
    assert!(
        same.iter().all(|function| function.cold_parts.len() == 1),
        "{same:?}"
    );
    assert_ne!(same[0].cold_parts, same[1].cold_parts);
}

#[test]
fn landing_pads_are_found() {
    let source = r#"
        #include <cstdio>
        __attribute__((noinline)) void thrower(int x) { if (x > 5) throw x; }
        __attribute__((noinline)) int catcher(int x) { try { thrower(x); } catch (int y) { return y; } return 0; }
        __attribute__((noinline)) int plain(int x) { return x + 1; }
        int main(int argc, char **) { return catcher(argc) + plain(argc); }
    "#;
    for options in ["-O2", "-O0", "-O2 -s"] {
        let workshop = Workshop::cxx("-O2 -o full", source);
        workshop.run(&format!("c++ {options} -o prog prog.cc"));
        let image = workshop.prog();
        if options == "-O2 -s" {
            // In the function, or in its cold part, which nothing ties to it any more.
            let (text, _) = image.section(".text").unwrap();
            assert!(!image.landing_pads(text).is_empty());
            continue;
        }
        for (name, expected) in [("catcher", true), ("thrower", false), ("plain", false)] {
            let addr = resolve_in(&image, name).unwrap();
            let function = image.function_at(addr).unwrap();
            let parts = function.range().into_iter();
            let mut parts = parts.chain(function.cold_parts.iter().copied());
            let found = parts.any(|part| !image.landing_pads(part).is_empty());
            assert_eq!(found, expected, "{name} {options}");
        }
    }
}

#[test]
fn assembly_without_types_and_sizes() {
    let source = r#"
        __asm__(".text\n.globl bare\nbare: nop\nnop\nlocal_label: ret\n"
                ".globl typed\n.type typed,@function\ntyped: nop\ninner: ret\n.size typed, .-typed\n");
        void bare(void); void typed(void);
        int sink;
        int main(void) { bare(); typed(); return 0; }
    "#;
    let image_of = Workshop::c("-O1", source);
    let image = image_of.prog();
    let bare = image.function_at(image.symbol("bare").unwrap()).unwrap();
    assert_eq!((bare.raw_name(), bare.size), (Some("bare"), None));
    assert_eq!(
        image
            .function_at(FileAddr(bare.addr.0 + 1))
            .unwrap()
            .raw_name(),
        Some("bare")
    );
    let next = image.symbol("typed").unwrap();
    assert_eq!(image.limit_of(bare.addr), Some(next), "not the label");
    assert_eq!(image.limit_of(FileAddr(next.0 - 1)), Some(next));
    assert_eq!(image.limit_of(image.symbol("sink").unwrap()), None);
    let typed = image.function_at(image.symbol("inner").unwrap()).unwrap();
    assert_eq!((typed.raw_name(), typed.size), (Some("typed"), Some(2)));
}

#[test]
fn nothing_sized_reaches_into_the_next_section() {
    // `_init` has no size; the PLT comes next.
    let workshop = Workshop::c("-O1 -no-pie", SOURCE);
    let image = workshop.prog();
    let init = image.symbol("_init").unwrap();
    let plt = (init.0..init.0 + 256)
        .map(FileAddr)
        .find(|addr| image.plt_name(*addr).is_some())
        .unwrap();
    assert_eq!(
        image
            .function_at(plt)
            .map(|function| image.name_of(function)),
        None
    );
}

#[test]
fn a_file_without_section_headers() {
    let workshop = Workshop::c("-O1 -shared -fPIC", SOURCE);
    let full = workshop.prog();
    let mut bytes = std::fs::read(workshop.path("prog")).unwrap();
    // e_shoff, e_shnum and e_shstrndx.
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    std::fs::write(workshop.path("prog"), bytes).unwrap();
    let image = workshop.prog();
    assert!(image.is_stripped());
    assert_eq!(image.build_id(), full.build_id());
    let exported = image
        .function_at(resolve_in(&image, "entry_point").unwrap())
        .unwrap();
    assert_eq!(exported.source, SymbolSource::Dynsym);
    let hidden = image.function_at(full.symbol("small").unwrap()).unwrap();
    assert_eq!(
        (hidden.source, hidden.size),
        (
            SymbolSource::UnwindTable,
            full.function_at(hidden.addr).unwrap().size
        )
    );
    let stub = full
        .segments()
        .iter()
        .filter(|s| s.executable)
        .flat_map(|s| s.addr.0..s.addr.0 + s.mem_size)
        .map(FileAddr);
    let stub = stub
        .clone()
        .find(|addr| full.plt_name(*addr).as_deref() == Some("write"))
        .unwrap();
    assert_eq!(image.plt_name(stub).as_deref(), Some("write"));
    assert_eq!(image.warnings(), Vec::<String>::new());
}

#[test]
fn weak_names_come_last() {
    let source = r#"
        int compare(int x) { return x + 1; }
        int __compare(int) __attribute__((alias("compare")));
        int cmp(int) __attribute__((weak, alias("compare")));
        int __libc_get(int x) { return x + 2; }
        int get(int) __attribute__((weak, alias("__libc_get")));
        int main(int c, char **v) { (void)v; return compare(c) + get(c); }
    "#;
    let image = Workshop::c("-O1", source).prog();
    for (alias, known) in [("cmp", "compare"), ("__libc_get", "get")] {
        assert_eq!(image.name_at(image.symbol(alias).unwrap()), known);
    }
}
