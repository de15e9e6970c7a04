//! Names to functions.

use darc_symbols::{Image, LookupError, NameSpec, NotAFunction, resolve};

use crate::harness::{Workshop, function_named, resolve_in};

const CXX: &str = r#"
volatile int sink;
namespace ns {
struct Class {
    int n;
    __attribute__((noinline)) int method(int x) { return n += x; }
    __attribute__((noinline)) int method(char x) const { return n - x; }
    __attribute__((noinline)) int operator()(int x) { return n * x; }
    __attribute__((noinline)) bool operator<(const Class &o) const { return n < o.n; }
    __attribute__((noinline)) Class(int x) : n(x * 2) {}
    __attribute__((noinline)) ~Class() { sink = n; }
};
template <typename T> __attribute__((noinline)) T twice(T x) { return x + x; }
}
namespace { __attribute__((noinline)) int hidden(int x) { return x ^ 5; } }
__attribute__((noinline)) int only_one(int a, char *b) { return a + *b; }
extern "C" __attribute__((noinline)) int plain_c(int x) { return x | 1; }
int main(int argc, char **argv) {
    ns::Class c(argc), d(2);
    return c.method(argc) + c.method('a') + c(3) + (c < d) + ns::twice(argc) + (int)ns::twice(1.5) + hidden(argc) + only_one(argc, argv[0]) + plain_c(argc);
}
"#;

#[test]
fn cxx_names_with_and_without_arguments() {
    let workshop = Workshop::cxx("-O1", CXX);
    let image = workshop.prog();
    for (typed, found) in [
        ("only_one", "only_one(int, char*)"),
        ("only_one(int,char *)", "only_one(int, char*)"),
        ("_Z8only_oneiPc", "only_one(int, char*)"),
        ("plain_c", "plain_c"),
        (
            "ns::Class::method(char) const",
            "ns::Class::method(char) const",
        ),
        ("ns::Class::method(int)", "ns::Class::method(int)"),
        ("ns::Class::operator()", "ns::Class::operator()(int)"),
        (
            "ns::Class::operator<",
            "ns::Class::operator<(ns::Class const&) const",
        ),
        ("ns::twice<int>", "int ns::twice<int>(int)"),
        (
            "ns::twice<double>(double)",
            "double ns::twice<double>(double)",
        ),
        ("hidden", "(anonymous namespace)::hidden(int)"),
        (
            "(anonymous namespace)::hidden",
            "(anonymous namespace)::hidden(int)",
        ),
        ("ns::Class::Class", "ns::Class::Class(int)"),
        ("ns::Class::~Class", "ns::Class::~Class()"),
        ("Class::operator()", "ns::Class::operator()(int)"),
        ("only_*", "only_one(int, char*)"),
        ("ns::Class::method(ch*", "ns::Class::method(char) const"),
        ("prog:plain_c", "plain_c"),
        ("main", "main"),
    ] {
        let found = found
            .rsplit_once(" ns::twice")
            .map_or(found.to_owned(), |(_, rest)| format!("ns::twice{rest}"));
        assert_eq!(function_named(&image, typed), found, "{typed}");
    }
    for (typed, count) in [
        ("ns::Class::method", 2),
        ("ns::twice", 2),
        ("method", 2),
        ("ns::*", 8),
    ] {
        let error = resolve_in(&image, typed).unwrap_err();
        let LookupError::Ambiguous { candidates, .. } = &error else {
            panic!("{typed}: {error:?}")
        };
        assert_eq!(candidates.len(), count, "{typed}: {candidates:?}");
        let text = error.to_string();
        assert!(
            !text.contains('\n') && text.contains(&format!("prog+{}", candidates[0].addr)),
            "{text}"
        );
        // What the message tells to type works.
        let first = format!("{}+{}", candidates[0].module, candidates[0].addr);
        assert_eq!(resolve_in(&image, &first), Ok(candidates[0].addr));
    }
}

/// Who calls one by its name calls the other as well.
#[test]
fn overloads_and_templates_of_one_name_are_ambiguous() {
    let workshop = Workshop::cxx(
        "-O1",
        r#"
        #include <string>
        struct Cache {
            __attribute__((noinline)) int put(int x) { return x + 1; }
            template <class T> __attribute__((noinline)) int put(const T &x) { return int(x.size()); }
        };
        int main(int c, char **v) { return Cache().put(c) + Cache().put(std::string(v[0])); }
        "#,
    );
    let image = workshop.prog();
    let error = resolve_in(&image, "Cache::put").unwrap_err();
    assert!(
        matches!(&error, LookupError::Ambiguous { candidates, .. } if candidates.len() == 2),
        "{error:?}"
    );
    assert_eq!(function_named(&image, "Cache::put(int)"), "Cache::put(int)");
}

#[test]
fn statics_of_one_name_are_ambiguous_and_shown_with_their_place() {
    let workshop = Workshop::new();
    for (name, factor) in [("a", 3), ("b", 4)] {
        workshop.write(&format!("{name}.c"), &format!("__attribute__((noinline)) static int same(int x) {{ return x * {factor}; }}\nint {name}(int x) {{ return same(x) + 1; }}"));
    }
    workshop.write(
        "m.c",
        "int a(int), b(int); int main(int c, char **v) { (void)v; return a(c) + b(c); }",
    );
    workshop.run("cc -g -O1 -fno-ipa-icf -o prog m.c a.c b.c");
    let image = workshop.prog();
    let error = resolve_in(&image, "same").unwrap_err();
    let LookupError::Ambiguous { candidates, .. } = &error else {
        panic!("{error:?}")
    };
    let places: Vec<_> = candidates
        .iter()
        .map(|c| {
            (
                c.file
                    .clone()
                    .unwrap()
                    .rsplit('/')
                    .next()
                    .unwrap()
                    .to_owned(),
                c.line,
            )
        })
        .collect();
    assert_eq!(
        places,
        [("a.c".to_owned(), Some(1)), ("b.c".to_owned(), Some(1))]
    );
    assert_eq!(resolve_in(&image, "a.c:1"), Ok(candidates[0].addr));
    assert_eq!(resolve_in(&image, "b.c:1"), Ok(candidates[1].addr));
}

#[test]
fn clones_stand_in_for_a_function_that_is_gone() {
    let source = r#"
        __asm__(".text\n.type gone.constprop.0,@function\ngone.constprop.0: nop\nret\n.size gone.constprop.0,.-gone.constprop.0\n"
                ".type both.isra.0,@function\nboth.isra.0: nop\nret\n.size both.isra.0,.-both.isra.0\n"
                ".type local,@function\nlocal: nop\nret\n.size local,.-local\n"
                ".type local.lto_priv.0,@function\nlocal.lto_priv.0: nop\nret\n.size local.lto_priv.0,.-local.lto_priv.0\n"
                ".globl both\n.type both,@function\nboth: nop\nret\n.size both,.-both\n"
                ".type many.part.0,@function\nmany.part.0: nop\nret\n.size many.part.0,.-many.part.0\n"
                ".type many.constprop.1,@function\nmany.constprop.1: nop\nret\n.size many.constprop.1,.-many.constprop.1\n");
        int main(void) { return 0; }
    "#;
    let workshop = Workshop::c("-O1", source);
    let image = workshop.prog();
    // Renamed, for a function of another file has this name: neither is a clone of the other.
    let is_ambiguous = |name| matches!(resolve_in(&image, name), Err(LookupError::Ambiguous { candidates, .. }) if candidates.len() == 2);
    assert!(is_ambiguous("local"));
    let local = image.symbol("local").unwrap();
    assert!(image.clones(local).is_empty());
    assert_eq!(function_named(&image, "gone"), "gone.constprop.0");
    assert_eq!(function_named(&image, "both"), "both");
    assert_eq!(function_named(&image, "both.isra.0"), "both.isra.0");
    assert!(
        matches!(resolve_in(&image, "many"), Err(LookupError::Ambiguous { candidates, .. }) if candidates.len() == 2)
    );
    let clones: Vec<String> = image
        .clones(image.symbol("both").unwrap())
        .iter()
        .map(|clone| image.name_of(clone))
        .collect();
    assert_eq!(clones, ["both.isra.0"]);
}

#[test]
fn what_is_no_function_is_named() {
    let source = r#"
        #include <unistd.h>
        int variable = 3;
        static int one(void) { return 1; }
        static int (*choose(void))(void) { return one; }
        int chosen(void) __attribute__((ifunc("choose")));
        int (*pick(void))(void) { return one; }
        int picked_by_cpu(void) __attribute__((ifunc("pick")));
        int main(void) { return chosen() + picked_by_cpu() + (int)write(1, "", 0) + variable; }
    "#;
    let workshop = Workshop::c("-O1", source);
    let image = workshop.prog();
    for (name, kind) in [
        ("variable", NotAFunction::Data),
        ("chosen", NotAFunction::IfuncResolver),
        ("write", NotAFunction::Undefined),
        // The resolvers have names that people know better than the ifunc's.
        ("pick", NotAFunction::IfuncResolver),
        ("picked_by_cpu", NotAFunction::IfuncResolver),
    ] {
        let error = resolve_in(&image, name).unwrap_err();
        assert!(
            matches!(&error, LookupError::NotAFunction { kind: found, .. } if *found == kind),
            "{error:?}"
        );
        assert!(
            error.to_string().starts_with(&format!("{name}: "))
                && !error.to_string().contains('\n')
        );
    }
    let middle = darc_symbols::FileAddr(image.symbol("main").unwrap().0 + 1);
    let error = resolve_in(&image, &format!("prog:{middle}")).unwrap_err();
    assert!(
        matches!(&error, LookupError::NotAnEntry { inside: Some((name, _)), .. } if name == "main"),
        "{error:?}"
    );
    assert!(matches!(
        resolve_in(&image, "prog:0x1"),
        Err(LookupError::NotAnEntry { inside: None, .. })
    ));
    assert!(matches!(
        resolve_in(&image, "libz:f"),
        Err(LookupError::NoSuchModule { .. })
    ));
    assert!(matches!(
        resolve_in(&image, "0x1000"),
        Err(LookupError::RunTimeAddress(0x1000))
    ));
}

#[test]
fn the_defining_library_is_found() {
    let workshop = Workshop::new();
    workshop.write("lib.c", "__attribute__((noinline)) int shared_work(int x) { return x * 9; }\nint variable_only = 1;");
    workshop.write(
        "prog.c",
        "int shared_work(int); int main(int c, char **v) { (void)v; return shared_work(c); }",
    );
    workshop.run("cc -shared -fPIC -O1 -o libwork.so.1 lib.c");
    workshop.run("cc -no-pie -O1 -o prog prog.c ./libwork.so.1");
    let (prog, lib) = (workshop.prog(), workshop.open("libwork.so.1"));
    let find = |name: &str, images: &[&Image]| resolve(&NameSpec::parse(name).unwrap(), images);
    let addr = lib.symbol("shared_work").unwrap();
    for name in [
        "shared_work",
        "libwork:shared_work",
        "libwork.so:shared_work",
        "libwork.so.1:shared_work",
    ] {
        assert_eq!(find(name, &[&prog, &lib]), Ok((1, addr)), "{name}");
    }
    assert!(matches!(
        find("shared_work", &[&prog]),
        Err(LookupError::NotAFunction {
            kind: NotAFunction::Undefined,
            ..
        })
    ));
    let error = find("prog:shared_work", &[&prog, &lib]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "prog:shared_work: imported by prog, defined in libwork.so.1; name libwork.so.1:shared_work"
    );
    assert!(matches!(
        find("shared_work", &[&lib, &lib]),
        Err(LookupError::Ambiguous { .. })
    ));
    assert!(matches!(
        find("libwor:shared_work", &[&prog, &lib]),
        Err(LookupError::NoSuchModule { .. })
    ));
}

#[test]
fn methods_with_several_qualifiers_are_named_without_them() {
    let source = r#"
        volatile int sink;
        struct A {
            __attribute__((noinline)) void plain() const & { sink = 1; }
            __attribute__((noinline)) void moved() const && { sink = 2; }
            __attribute__((noinline)) void shared() const volatile { sink = 3; }
        };
        int main() { A a; a.plain(); static_cast<const A &&>(a).moved(); a.shared(); return 0; }
    "#;
    let workshop = Workshop::cxx("-O1", source);
    let image = workshop.prog();
    for name in ["A::plain", "A::moved", "A::shared", "shared"] {
        assert!(function_named(&image, name).contains("() const"), "{name}");
    }
}

#[test]
fn of_several_versions_the_one_for_new_programs_is_the_symbol() {
    // Linkers order the versions of a name by nothing that one could rely on: among many both orders occur.
    let names: Vec<String> = (0..24).map(|number| format!("work{number}")).collect();
    let functions = names.iter().map(|name| {
        format!(
            "int old_{name}(int x) {{ return x + 1; }}\nint new_{name}(int x) {{ return x + 2; }}\n\
             __asm__(\".symver old_{name}, {name}@V1\");\n__asm__(\".symver new_{name}, {name}@@V2\");\n"
        )
    });
    let workshop = Workshop::new();
    workshop.write("lib.c", &functions.collect::<String>());
    workshop.write(
        "versions",
        "V1 { global: work*; local: *; }; V2 { global: work*; } V1;",
    );
    workshop.run("cc -shared -fPIC -O1 -fno-ipa-icf -Wl,--version-script=versions -o lib lib.c");
    workshop.run("strip lib");
    let lib = workshop.open("lib");
    for name in names {
        let code = lib.bytes_at(lib.symbol(&name).unwrap(), 3).unwrap();
        assert_eq!(code, [0x8d, 0x47, 0x02], "lea 0x2(%rdi),%eax, {name}");
    }
}

#[test]
fn mistyped_names_get_suggestions() {
    let workshop = Workshop::cxx("-O1", CXX);
    let image = workshop.prog();
    for (typed, meant) in [
        ("only_oen", "only_one"),
        ("Only_One", "only_one"),
        ("plainc", "plain_c"),
        ("plian_c", "plain_c"),
        ("ns_twice", "ns::twice"),
        ("wrong::hidden", "(anonymous namespace)::hidden"),
        ("only_one(long)", "only_one"),
    ] {
        let LookupError::NotFound {
            nearest,
            searched,
            stripped,
            ..
        } = resolve_in(&image, typed).unwrap_err()
        else {
            panic!("{typed}")
        };
        assert!(
            nearest.iter().any(|name| name == meant),
            "{typed}: {nearest:?}"
        );
        assert!(searched > 10 && stripped.is_none());
        assert_eq!(image.suggest(typed, 1).len(), 1);
    }
    assert_eq!(
        image.suggest("nothing_like_it_at_all", 5),
        Vec::<String>::new()
    );
}

#[test]
fn rust_names_with_and_without_hash() {
    let workshop = Workshop::new();
    workshop.write(
        "prog.rs",
        r#"
        mod inner {
            pub struct S(pub u32);
            pub trait T { fn go(&self, x: u32) -> u32; }
            impl T for S { #[inline(never)] fn go(&self, x: u32) -> u32 { self.0 ^ x } }
            impl S { #[inline(never)] pub fn method(&self) -> u32 { self.0 + 1 } }
            #[inline(never)] pub fn generic<X: Into<u64>>(x: X) -> u64 { x.into() + 1 }
        }
        #[inline(never)] fn free(x: u32) -> u32 { x * 3 }
        fn main() {
            use inner::T;
            let n = std::env::args().count() as u32;
            let s = inner::S(n);
            println!("{}", u64::from(free(n) + s.go(n) + s.method()) + inner::generic(n));
        }
    "#,
    );
    for (mangling, option) in [("v0", "-C symbol-mangling-version=v0"), ("default", "")] {
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        workshop.run(&format!("{rustc} -O -g {option} -o prog prog.rs"));
        let image = workshop.prog();
        for name in [
            "prog::free",
            "prog::inner::S::method",
            "method",
            "prog::inner::generic",
            "inner::generic",
            "free",
        ] {
            // The impl's own path differs between the manglings.
            let name = if mangling == "v0" && name == "prog::inner::S::method" {
                "<prog::inner::S>::method"
            } else {
                name
            };
            if name == "free" {
                // libc's, imported, is none of this file's functions.
                assert_eq!(function_named(&image, name), "prog::free");
            }
            let found = function_named(&image, name);
            assert!(!found.contains("17h"), "{found}");
            let raw = image
                .function_at(resolve_in(&image, name).unwrap())
                .unwrap()
                .raw_name()
                .unwrap()
                .to_owned();
            assert_eq!(
                resolve_in(&image, &raw),
                resolve_in(&image, name),
                "{mangling} {name}"
            );
        }
        assert_eq!(
            function_named(&image, "<prog::inner::S as prog::inner::T>::go"),
            "<prog::inner::S as prog::inner::T>::go",
            "{mangling}"
        );
        let frames = image.frames(resolve_in(&image, "prog::free").unwrap());
        assert_eq!(frames.last().unwrap().function, "prog::free", "{mangling}");
    }
}
