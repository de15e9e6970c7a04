//! Every name that is printed can be typed: in lists, in reports, in messages.

use darc_symbols::{FileAddr, Image, LookupError, NameSpec, resolve};

use crate::harness::{Workshop, resolve_in};

const C: &str = "
    __attribute__((noinline)) static int hidden(int x) { volatile int y = x; return y * 3; }
    __attribute__((noinline)) int shown(int x) { return hidden(x) + 1; }
    int main(int argc, char **argv) { (void)argv; return shown(argc) + hidden(argc); }";

const CXX: &str = "
    #include <vector>
    #include <string>
    #include <functional>
    namespace { struct Local { __attribute__((noinline)) int operator()(int x) const { return x + 1; } }; }
    namespace ns {
        template <class T> struct Box {
            T held;
            template <class U> __attribute__((noinline)) T with(U u) { return held + static_cast<T>(u); }
            __attribute__((noinline)) operator T() const { return held; }
            __attribute__((noinline)) bool operator<(const Box &o) const { return held < o.held; }
            __attribute__((noinline)) T operator->*(int x) { return held * x; }
        };
    }
    __attribute__((noinline)) int call(const std::function<int(int)> &f, int x) { return f(x); }
    int main(int argc, char **) {
        ns::Box<int> a{argc}; ns::Box<long> b{argc};
        std::vector<std::string> names(argc, \"x\");
        names.push_back(std::to_string(argc));
        auto lambda = [&](int x) { return x + argc; };
        return a.with(2.5) + b.with('c') + int(a) + (a < a) + (a->*3) + Local()(argc) + call(lambda, 3)
            + static_cast<int>(names.size());
    }";

const RUST: &str = "
    mod inner {
        pub struct S(pub u32);
        pub trait T { fn go(&self, x: u32) -> u32; }
        impl T for S { #[inline(never)] fn go(&self, x: u32) -> u32 { self.0 ^ x } }
        impl T for Vec<S> { #[inline(never)] fn go(&self, x: u32) -> u32 { self.len() as u32 ^ x } }
        impl S { #[inline(never)] pub fn method(&self) -> u32 { self.0 + 1 } }
        #[inline(never)] pub fn generic<X: Into<u64>>(x: X) -> u64 { x.into() + 1 }
        #[inline(never)] pub fn run(f: &dyn Fn(u32) -> u32) -> u32 { f(3) }
    }
    fn main() {
        use inner::T;
        let n = std::env::args().count() as u32;
        let s = inner::S(n);
        let many = vec![inner::S(n)];
        println!(\"{}\", u64::from(s.go(n) + many.go(n) + s.method() + inner::run(&|x| x + n)) + inner::generic(n)
            + inner::generic(n as u8));
    }";

/// Every `step`-th function is found by the name that is printed of it, or is among those that have the same.
fn all_names_are_accepted(image: &Image, step: usize) {
    for function in image.functions().iter().step_by(step) {
        let name = image.name_of(function);
        let spec = NameSpec::parse(&name).unwrap();
        match resolve(&spec, &[image]) {
            Ok((_, addr)) => assert_eq!(addr, function.addr, "{name}"),
            Err(LookupError::Ambiguous { candidates, .. }) => {
                let mut same = candidates.iter().filter(|it| it.addr == function.addr);
                let same = same.next().unwrap_or_else(|| panic!("{name}"));
                let chosen = format!("{}+{}", same.module, same.addr);
                assert_eq!(resolve_in(image, &chosen), Ok(function.addr));
            }
            Err(error @ LookupError::NotAFunction { .. }) => {
                assert!(error.to_string().contains("ifunc"), "{error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn every_printed_name_is_accepted() {
    let c = Workshop::c("-O1", C);
    all_names_are_accepted(&c.prog(), 1);
    c.run("strip prog");
    all_names_are_accepted(&c.prog(), 1);
    let cxx = Workshop::cxx("-O1", CXX);
    all_names_are_accepted(&cxx.prog(), 1);
    let rust = Workshop::new();
    rust.write("prog.rs", RUST);
    for mangling in ["-C symbol-mangling-version=v0", ""] {
        let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
        rust.run(&format!("{rustc} -O {mangling} -o prog prog.rs"));
        all_names_are_accepted(&rust.prog(), 7);
    }
}

#[test]
fn a_function_without_symbol_has_one_name_by_which_it_is_found() {
    let workshop = Workshop::c("-O1", C);
    let hidden = workshop.prog().symbol("hidden").unwrap();
    workshop.run("strip prog");
    let image = workshop.prog();
    let name = format!("prog+{hidden}");
    assert_eq!(image.name_at(hidden), name);
    assert_eq!(image.name_of(image.function_at(hidden).unwrap()), name);
    for typed in [
        name,
        format!("prog:{hidden}"),
        format!("sub_{hidden:x}"),
        format!("prog:sub_{hidden:x}"),
    ] {
        assert_eq!(resolve_in(&image, &typed), Ok(hidden), "{typed}");
    }
    let inside = resolve_in(&image, &format!("prog+{}", FileAddr(hidden.0 + 1)));
    assert!(
        matches!(inside, Err(LookupError::NotAnEntry { .. })),
        "{inside:?}"
    );
}

#[test]
fn a_place_in_a_function_is_answered_with_the_function() {
    let workshop = Workshop::c("-O1", C);
    let image = workshop.prog();
    let shown = image.symbol("shown").unwrap();
    let inside = FileAddr(shown.0 + 1);
    assert_eq!(image.name_at(inside), "shown+0x1");
    let error = resolve_in(&image, "shown+0x1").unwrap_err().to_string();
    assert_eq!(
        error,
        format!("prog+{inside}: inside of shown, which begins at {shown}; give that address")
    );
}

#[test]
fn a_file_is_known_by_the_name_it_is_called_by_too() {
    let workshop = Workshop::c("-O1", C);
    let image = workshop.prog().called("/usr/bin/storefront".into());
    let main = image.symbol("main").unwrap();
    assert_eq!(image.module(), "storefront");
    for typed in [
        "storefront:main",
        "prog:main",
        &format!("storefront+{main}"),
    ] {
        assert_eq!(resolve_in(&image, typed), Ok(main), "{typed}");
    }
    let other = resolve_in(&image, "store:main");
    assert!(
        matches!(other, Err(LookupError::NoSuchModule { .. })),
        "{other:?}"
    );
}

#[test]
fn imported_functions_have_the_names_of_people() {
    let source = "#include <condition_variable>
        std::mutex m; std::condition_variable c;
        int main() { std::unique_lock<std::mutex> l(m); c.wait(l); }";
    let workshop = Workshop::cxx("-O1", source);
    let image = workshop.prog();
    let (plt, _) = image.section(".plt.sec").or(image.section(".plt")).unwrap();
    let stubs = (plt.start.0..plt.end.0).step_by(8).map(FileAddr);
    let names: Vec<String> = stubs.map(|addr| image.name_at(addr)).collect();
    assert!(
        names
            .iter()
            .any(|name| name.starts_with("std::condition_variable::wait(")),
        "{names:?}"
    );
}

#[test]
fn a_static_function_of_a_stripped_file_is_answered_with_the_reason() {
    let workshop = Workshop::c("-O1 -rdynamic -Wl,--build-id", C);
    workshop.run("strip prog");
    workshop.write("var/lib/dpkg/info/storefront.list", "/.\n/prog\n");
    let image = workshop.prog();
    let error = resolve_in(&image, "hidden").unwrap_err().to_string();
    assert!(
        error.ends_with(
            "functions; prog has no symbol table, only exported functions have names: \
             apt install storefront-dbgsym, or set DEBUGINFOD_URLS, or give an address (0x…, see darc list)"
        ),
        "{error}"
    );
    // Its debug file names it.
    let workshop = Workshop::c("-O1 -g -Wl,--build-id", C);
    let error = resolve_in(&workshop.prog(), "hiden").unwrap_err();
    assert!(
        error.to_string().ends_with("did you mean hidden?"),
        "{error}"
    );
}

#[test]
fn suggestions_are_few_short_and_sensible() {
    let workshop = Workshop::cxx("-O1", CXX);
    let image = workshop.prog();
    for (typed, most) in [("handle", 0), ("main_lop", 0), ("h", 0), ("wit", 0)] {
        let found = image.suggest(typed, 3);
        assert!(found.len() <= most, "{typed}: {found:?}");
    }
    let found = image.suggest("calls", 3);
    assert!(found.contains(&"call".to_owned()), "{found:?}");
    for typed in ["operator", "Box", "std", "vector", "with"] {
        let error = format!("{:?}", image.suggest(typed, 3));
        assert!(error.len() < 260, "{error}");
    }
    // What is suggested can be typed.
    for typed in ["wiht", "cal", "mian", "ns::Bxo::with"] {
        for name in image.suggest(typed, 3) {
            let found = resolve_in(&image, &name);
            let accepted = matches!(found, Ok(_) | Err(LookupError::Ambiguous { .. }));
            assert!(accepted, "{typed}: {name}: {found:?}");
        }
    }
}
