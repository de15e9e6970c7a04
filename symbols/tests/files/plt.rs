//! PLT stubs of every layout.

use darc_symbols::{FileAddr, Image};

use crate::harness::Workshop;

const SOURCE: &str = r#"
    #include <unistd.h>
    #include <stdlib.h>
    int main(int argc, char **argv) {
        (void)argv;
        int (*volatile taken)(void) = getpid;
        srand(taken() + getpid() + argc);
        return rand() + read(0, 0, 0) + write(1, 0, 0);
    }
"#;

/// Names of all stubs, by looking at every address of code.
fn stubs(image: &Image) -> Vec<String> {
    let code = image.segments().iter().filter(|segment| segment.executable);
    let mut names: Vec<String> = code
        .flat_map(|s| (s.addr.0..s.addr.0 + s.mem_size).step_by(8))
        .filter_map(|addr| image.plt_name(FileAddr(addr)))
        .collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn stubs_are_named() {
    for options in [
        "-no-pie -fcf-protection=none",
        "-pie -fPIE -fcf-protection=none",
        "-pie -fPIE -fcf-protection=full -Wl,-z,ibtplt",
        "-pie -fPIE -Wl,-z,now",
        "-pie -fPIE -fcf-protection=full -Wl,-z,ibtplt -Wl,-z,now",
        "-pie -fPIE -fuse-ld=gold",
    ] {
        let workshop = Workshop::c(&format!("-O1 {options}"), SOURCE);
        let image = workshop.prog();
        let names = stubs(&image);
        for name in ["read", "write", "srand", "rand", "getpid"] {
            assert!(
                names.iter().any(|found| found == name),
                "{name} in {names:?} with {options}"
            );
        }
        assert_eq!(
            image.plt_name(image.symbol("main").unwrap()),
            None,
            "{options}"
        );
        workshop.run("strip prog");
        assert_eq!(stubs(&workshop.prog()), names, "stripped, {options}");
    }
}

#[test]
fn calls_without_a_stub_have_a_slot() {
    let workshop = Workshop::c("-O1 -pie -fPIE -fno-plt", SOURCE);
    let image = workshop.prog();
    let main = image
        .function_at(image.symbol("main").unwrap())
        .unwrap()
        .range()
        .unwrap();
    let code = image.bytes_at(main.start, main.len()).unwrap();
    let mut names = Vec::new();
    for (at, window) in code.windows(6).enumerate() {
        if let &[0xff, 0x15, a, b, c, d] = window {
            let next = main.start.0 + at as u64 + 6;
            let slot = next.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into());
            names.extend(image.got_name(FileAddr(slot)));
        }
    }
    assert_eq!(names, ["getpid", "srand", "rand", "read", "write"]);
}

/// ... nor is what the program calls so itself a stub.
#[test]
fn a_function_that_only_goes_on_elsewhere_is_none() {
    let source = "#include <unistd.h>\n__attribute__((noinline)) int sync_all(int fd) { return fsync(fd); }\nint main(int c, char **v) { (void)v; return sync_all(c); }";
    let workshop = Workshop::c("-O2 -pie -fPIE -fno-plt", source);
    let image = workshop.prog();
    let wrapper = image.symbol("sync_all").unwrap();
    assert_eq!(image.plt_name(wrapper), None);
    assert_eq!(image.name_at(wrapper), "sync_all");
    workshop.run("strip prog");
    let stripped = workshop.prog();
    assert_eq!(stripped.plt_name(wrapper).as_deref(), Some("fsync"));
}

#[test]
fn stubs_of_ifuncs_in_static_programs() {
    let source = "#include <string.h>\nint main(int c, char **v) { return memcmp(v[0], v[c - 1], (size_t)c) + (int)strlen(v[0]); }";
    let workshop = Workshop::c("-O1 -static", source);
    let names = stubs(&workshop.prog());
    assert!(
        names
            .iter()
            .any(|name| name.contains("memcpy") || name.contains("strlen")),
        "{names:?}"
    );
}

#[test]
fn symbols_of_stubs_are_no_functions() {
    // As the linker mold writes them, which need not be installed.
    let source = r#"
        __asm__(".section .plt.mold,\"ax\"\n.type read$plt,@function\nread$plt: nop\nret\n_PROCEDURE_LINKAGE_TABLE_: ret\n.text");
        int main(void) { return 0; }
    "#;
    let workshop = Workshop::c("-O1", source);
    let image = workshop.prog();
    let stub = image.symbol("read$plt").unwrap();
    assert_eq!(image.function_at(stub).map(|function| function.addr), None);
    assert_eq!(
        image
            .function_at(FileAddr(stub.0 + 2))
            .map(|function| function.addr),
        None
    );
}
