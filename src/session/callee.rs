//! Where a call that names its callee ends up.

use darc_disasm::got_slot;
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::Engine;

use super::modules::{CodeRef, Modules};

/// Follows a PLT stub to the function that its slot holds by now.
pub fn behind_plt(
    modules: &Modules,
    engine: &dyn Engine,
    addr: TargetAddr,
    place: CodeRef,
) -> TargetAddr {
    let image = modules.get(place.module).image.as_ref();
    if image.and_then(|image| image.plt_name(place.addr)).is_none() {
        return addr;
    }
    let mut stub = [0; 16];
    if !engine.read_code(addr, &mut stub) {
        return addr;
    }
    let slot = got_slot(&stub, addr.0);
    let target = slot
        .and_then(|slot| engine.memory().read_word(TargetAddr(slot)).ok())
        .map(TargetAddr);
    // Before its first call a lazily bound slot points back into the PLT.
    target
        .filter(|&target| {
            modules.place(target).is_some_and(|at| {
                let image = modules.get(at.module).image.as_ref();
                image.is_none_or(|image| {
                    image.function_at(at.addr).is_some() && image.plt_name(at.addr).is_none()
                })
            })
        })
        .unwrap_or(addr)
}
