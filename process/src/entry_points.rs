//! Functions that are entered elsewhere than at their beginning: hand-written code shares its tails.
//!
//! In the GNU C library `mempcpy` jumps three bytes behind the beginning of `memmove`; a probe there would
//! be jumped into its middle. A function's own code does not tell, so all code of its file is looked at. The same
//! goes for a short call, before which other instructions make room for a jump.

use std::collections::BTreeMap;

use darc_disasm::direct_jumps;
use darc_symbols::{FileAddr, Image};
use darc_tracer::plan::Ends;

use crate::hooks;
use crate::modules::{CodeRef, ModuleId, Modules};

/// No patch replaces more bytes.
const LONGEST_PATCH: u64 = 32;
/// A jump of five bytes replaces no more than this: the last instruction begins before its end.
const LONGEST_JUMP: u64 = 5 + 15;
/// Bytes behind a function of unknown size that are looked at, at most.
const MOST_GAP: u64 = 64 << 10;

/// The functions of a file that code of other functions jumps into: how far behind each one's beginning, and from where
/// (one of the places).
pub type Entrances = BTreeMap<FileAddr, BTreeMap<u64, FileAddr>>;

/// In a file with more code nothing is looked for, and no code is changed: 150 MB take half a second.
const MOST_CODE: u64 = 1 << 30;

/// How the ends of a function can be noticed.
///
/// A part of it that the compiler has put elsewhere looks like a stranger where it has no name of its own (`strip`). Whoever
/// it is that jumps into it: what is not replaced can be jumped to, and the entry is enough.
///
/// # Errors
/// Why it must not be probed, if code elsewhere jumps into its beginning, or may.
pub fn ends(modules: &Modules, place: CodeRef) -> Result<Ends, String> {
    ends_behind(modules, place, LONGEST_PATCH)
}

fn ends_behind(modules: &Modules, place: CodeRef, beginning: u64) -> Result<Ends, String> {
    takes_a_probe(modules, place)?;
    is_examined(modules, place.module)?;
    match of(modules, place).and_then(BTreeMap::first_key_value) {
        None => Ok(Ends::ByReturns),
        Some((&offset, _)) if offset >= beginning => Ok(Ends::Hidden),
        Some((offset, from)) => Err(format!(
            "the code at {from} jumps {offset} bytes behind its beginning"
        )),
    }
}

fn of(modules: &Modules, place: CodeRef) -> Option<&BTreeMap<u64, FileAddr>> {
    let module = modules.get(place.module);
    let image = module.image.as_ref()?;
    let found = module.entrances.get_or_init(|| find(image));
    found.get(&place.addr)
}

/// The addresses in the function's file to which code of other functions jumps in it.
///
/// # Errors
/// That they are not known.
pub fn inside(modules: &Modules, place: CodeRef) -> Result<Vec<FileAddr>, String> {
    is_examined(modules, place.module)?;
    let image = modules.get(place.module).image.as_ref();
    // An alternative entry's code is that of the function around it.
    let function = image.and_then(|image| image.function_at(place.addr));
    let addr = function.map_or(place.addr, |function| function.addr);
    let function = CodeRef { addr, ..place };
    let offsets = of(modules, function).into_iter().flat_map(BTreeMap::keys);
    Ok(offsets
        .map(|offset| FileAddr(addr.0.wrapping_add(*offset)))
        .collect())
}

/// Entered by a jump, a return or the kernel: the program's start (System V ABI for AMD64, 3.4.1), signal
/// trampolines (sigreturn(2)), lazy binding, new contexts (makecontext(3)). Assembly does not always say so in its unwind table.
const NOT_CALLED: [&str; 9] = [
    "_start",
    "__start",
    "_dl_start_user",
    "__restore_rt",
    "__restore",
    "__start_context",
    "__clone_child",
    "__unmapself",
    "__kernel_rt_sigreturn",
];
const NOT_CALLED_PREFIXES: [&str; 2] = ["_dl_runtime_resolve", "_dl_runtime_profile"];

/// Whether a probe may stand at a function's entry.
///
/// # Errors
/// Why none may, for people.
pub fn takes_a_probe(modules: &Modules, place: CodeRef) -> Result<(), String> {
    match hooks::of_unwinder(modules, place) {
        Some(_) => Err(
            "it belongs to the unwinder, which reads return addresses from the stack".to_owned(),
        ),
        None => is_called(modules, place),
    }
}

/// Whether a call may arrive at a place: only then the word on top of the stack is a return address there.
///
/// # Errors
/// That none does.
fn is_called(modules: &Modules, place: CodeRef) -> Result<(), String> {
    /// `mov $15, %rax` or `%eax`, then `syscall`: what the handler of a signal returns to (rt_sigreturn(2)).
    const SIGRETURN: [&[u8]; 2] = [
        &[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05],
        &[0xb8, 15, 0, 0, 0, 0x0f, 0x05],
    ];
    let Some(image) = &modules.get(place.module).image else {
        return Ok(());
    };
    let code = image.bytes_at(place.addr, 9).unwrap_or_default();
    let returns_from_signal = SIGRETURN.iter().any(|bytes| code.starts_with(bytes));
    let function = image.function_at(place.addr);
    let function = function.filter(|function| function.addr == place.addr);
    let mut names = function.into_iter().flat_map(|function| function.names());
    let is_start = names.any(|name| {
        let mut prefixes = NOT_CALLED_PREFIXES.iter();
        NOT_CALLED.contains(&name) || prefixes.any(|prefix| name.starts_with(prefix))
    }) || place.addr == image.entry();
    match image.is_called_at(place.addr) && !returns_from_signal && !is_start {
        true => Ok(()),
        false => Err(
            "it is not entered by a call, so there is no return address on top of the stack"
                .to_owned(),
        ),
    }
}

/// How the ends of f0 can be noticed, whose first bytes a jump replaces.
///
/// # Errors
/// As [`ends`].
pub fn ends_of_f0(modules: &Modules, place: CodeRef) -> Result<Ends, String> {
    ends_behind(modules, place, LONGEST_JUMP)
}

/// Whether it is known who jumps where in a file.
fn is_examined(modules: &Modules, module: ModuleId) -> Result<(), String> {
    let image = modules.get(module).image.as_ref();
    let segments = image.iter().flat_map(|image| image.segments());
    let code = segments.filter(|segment| segment.executable);
    let sizes = code.map(|segment| segment.file_size);
    match sizes.fold(0, u64::saturating_add) > MOST_CODE {
        false => Ok(()),
        true => Err(format!(
            "its file has more than {} MiB of code, which is not searched for jumps into the middle of functions",
            MOST_CODE >> 20
        )),
    }
}

/// A stretch of code, and the function that it belongs to.
struct Stretch {
    start: u64,
    end: u64,
    function: FileAddr,
}

fn find(image: &Image) -> Entrances {
    let stretches = stretches(image);
    let at = |addr: u64| {
        let after = stretches.partition_point(|stretch| stretch.start <= addr);
        let stretch = stretches.get(after.checked_sub(1)?)?;
        (addr < stretch.end).then_some(stretch)
    };
    let mut found = Entrances::new();
    for stretch in &stretches {
        let len = stretch.end - stretch.start;
        let Some(bytes) = image.bytes_at(FileAddr(stretch.start), len) else {
            continue;
        };
        for (from, to) in direct_jumps(&bytes, stretch.start) {
            let Some(target) = at(to) else { continue };
            let is_entrance = target.function != stretch.function && to != target.function.0;
            if is_entrance {
                // A cold part may lie before the function; nothing of it is its beginning.
                let offset = to.wrapping_sub(target.function.0);
                let known = found.entry(target.function).or_default();
                known.entry(offset).or_insert(FileAddr(from));
            }
        }
    }
    found
}

/// All code by its function, sorted. What lies behind a function belongs to it up to the next one.
fn stretches(image: &Image) -> Vec<Stretch> {
    let mut parts: Vec<(u64, Option<u64>, FileAddr)> = Vec::new();
    for function in image.functions() {
        let end = function.range().map(|range| range.end.0);
        parts.push((function.addr.0, end, function.addr));
        let cold = function.cold_parts.iter();
        parts.extend(cold.map(|part| (part.start.0, Some(part.end.0), function.addr)));
    }
    parts.sort_unstable();
    parts.dedup_by_key(|&mut (start, ..)| start);
    let next: Vec<u64> = parts.iter().skip(1).map(|&(start, ..)| start).collect();
    parts
        .into_iter()
        .zip(next.into_iter().map(Some).chain([None]))
        .map(|((start, end, function), next)| {
            let known = end.unwrap_or(start);
            let gap = known.saturating_add(MOST_GAP);
            let end = next.map_or(known, |next| next.min(gap));
            Stretch {
                start,
                end,
                function,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use darc_symbols::DebugSearch;

    use super::*;
    use crate::assembled;

    /// An ELF file of nothing but headers: executable segments of these sizes.
    fn headers(sizes: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; 64 + 56 * sizes.len()];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, b"\x7fELF\x02\x01\x01");
        // e_type, e_machine, e_version; e_phoff; e_phentsize, e_phnum.
        put(16, &[2, 0, 62, 0, 1]);
        put(32, &[64]);
        put(54, &[56, 0, sizes.len() as u8]);
        for (at, size) in (64..).step_by(56).zip(sizes) {
            // p_type and p_flags; p_filesz and p_memsz.
            put(at, &[1, 0, 0, 0, 5]);
            put(at + 32, &size.to_le_bytes());
            put(at + 40, &size.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn too_much_code_is_not_examined() {
        for (sizes, huge) in [
            (&[1_u64 << 63, 1 << 63][..], true),
            (&[MOST_CODE, 1], true),
            (&[MOST_CODE], false),
        ] {
            let search = DebugSearch::nowhere();
            let image = Image::from_bytes(headers(sizes), Path::new("/huge"), &search).unwrap();
            let mut modules = Modules::default();
            let module = modules.intern("/huge", None, Some(image));
            assert_eq!(is_examined(&modules, module).is_err(), huge, "{sizes:x?}");
            let addr = FileAddr(0);
            assert_eq!(inside(&modules, CodeRef { module, addr }).is_err(), huge);
        }
    }

    #[test]
    fn what_no_call_leads_to_is_known() {
        let text = ".text\n.globl _start, plain, bare, resolver, cold, handler_end, restorer\n\
            _start: .cfi_startproc\n.cfi_undefined rip\ncall plain\n.cfi_endproc\n\
            plain: .cfi_startproc\npush %rbx\n.cfi_def_cfa_offset 16\npop %rbx\nret\n.cfi_endproc\n\
            bare: ret\n\
            resolver: .cfi_startproc\n.cfi_def_cfa_offset 24\npop %rax\npop %rax\nret\n.cfi_endproc\n\
            cold: .cfi_startproc\n.cfi_def_cfa_offset 64\njmp bare\n.cfi_endproc\n\
            .cfi_startproc\n.cfi_signal_frame\nnop\n\
            handler_end: mov $15, %eax\nsyscall\n.cfi_endproc\n\
            restorer: mov $15, %rax\nsyscall\n";
        let image = assembled::image(text, &["-static"]);
        let mut modules = Modules::default();
        let module = modules.intern("/a", None, Some(image));
        let called = |name: &str| {
            let image = modules.get(module).image.as_ref().unwrap();
            let addr = image.symbol(name).unwrap();
            is_called(&modules, CodeRef { module, addr }).is_ok()
        };
        let all = [
            "plain",
            "bare",
            "_start",
            "resolver",
            "cold",
            "handler_end",
            "restorer",
        ];
        let called: Vec<&str> = all.into_iter().filter(|name| called(name)).collect();
        assert_eq!(called, ["plain", "bare"]);
    }

    #[test]
    fn many_entrances_of_one_function_take_no_time() {
        let many = 60_000;
        let text = format!(
            ".text\n.globl a, b\n.type a,@function\n.type b,@function\n\
             b: .fill {many},1,0x90\nret\n.size b,.-b\n\
             a: .set at,{many}\n.rept {many}\njmp b+at\n.set at,at-1\n.endr\nret\n.size a,.-a\n"
        );
        let image = assembled::image(&text, &["-static", "-Wl,-e,a"]);
        let found = find(&image);
        let b = image.symbol("b").unwrap();
        let offsets: Vec<u64> = found[&b].keys().copied().collect();
        assert_eq!(offsets, (1..=many).collect::<Vec<u64>>());
        assert_eq!(found.len(), 1);
    }
}
