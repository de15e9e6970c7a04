//! Where a call that names its callee ends up.

use darc_disasm::got_slot;
use darc_symbols::FunctionKind;
use darc_tracer::addr::TargetAddr;
use darc_tracer::engine::Engine;

use crate::modules::{CodeRef, Modules};

/// The function that a call of an address comes to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// This one: no PLT stub is in between, or the stub's slot holds it.
    Known(TargetAddr),
    /// The stub's slot is filled at its first call; only this loaded function has the name by which it will be looked for.
    Expected(TargetAddr),
    /// The stub's slot is filled at its first call, and no loaded function, or more than one, has that name.
    Unbound,
}

/// Follows a PLT stub to the function that its slot holds by now, or will hold.
pub fn behind_plt(
    modules: &Modules,
    engine: &(impl Engine + ?Sized),
    addr: TargetAddr,
    place: CodeRef,
) -> Destination {
    let image = modules.get(place.module).image.as_ref();
    let Some(imported) = image.and_then(|image| image.plt_name(place.addr)) else {
        return Destination::Known(addr);
    };
    let mut stub = [0; 16];
    // What cannot be read is that of a process that ends: another one may tell.
    if !engine.read_code(addr, &mut stub) {
        return Destination::Unbound;
    }
    let Some(slot) = got_slot(&stub, addr.0) else {
        return Destination::Known(addr);
    };
    let Ok(held) = engine.memory().read_word(TargetAddr(slot)) else {
        return Destination::Unbound;
    };
    let target = TargetAddr(held);
    let at = modules.place(target);
    let is_function = at.is_some_and(|at| {
        let image = modules.get(at.module).image.as_ref();
        image.is_none_or(|image| {
            image.function_at(at.addr).is_some() && image.plt_name(at.addr).is_none()
        })
    });
    if is_function {
        return Destination::Known(target);
    }
    // Before its first call a lazily bound slot points back into the PLT, and nowhere before it is relocated.
    if at.is_some_and(|at| at.module != place.module) {
        return Destination::Known(addr);
    }
    let mut candidates = exported(modules, &imported);
    match (candidates.next(), candidates.next()) {
        (Some(only), None) => modules
            .locate(only)
            .map_or(Destination::Unbound, Destination::Expected),
        _ => Destination::Unbound,
    }
}

/// The loaded functions of exactly this name.
pub fn exported<'a>(modules: &'a Modules, name: &'a str) -> impl Iterator<Item = CodeRef> + 'a {
    modules.loaded().into_iter().filter_map(move |id| {
        let image = modules.get(id).image.as_ref()?;
        let addr = image.symbol(name)?;
        let function = image.function_at(addr)?;
        (function.addr == addr && function.kind == FunctionKind::Code)
            .then_some(CodeRef { module: id, addr })
    })
}
