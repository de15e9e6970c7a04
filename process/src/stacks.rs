//! Unwinding: which functions are on a thread's stack.
//!
//! The unwind tables of the loaded files lead from frame to frame (LSB 5.0 core, 10.6), functions without
//! one by the frame pointer.

use darc_symbols::FileAddr;
use darc_tracer::addr::TargetAddr;
use darc_tracer::stacks::Stack;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder as _};

use crate::modules::{CodeRef, ModuleId, Modules};

/// A deeper stack is cut: what is of interest is mostly near its top.
const MOST_FRAMES: usize = 256;
/// ... where its beginning is of interest.
const MOST_OF_DEEP: usize = 4096;

/// One frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackFrame {
    /// The function, by its entry.
    pub function: CodeRef,
    /// Where its callee returns to; for the innermost frame where it is.
    pub at: TargetAddr,
    /// The stack pointer in it, which tells this call of the function from others.
    pub sp: u64,
    /// Whether it has called code of no known function, which the program generated: the frame before it in the list is of
    /// something that was called from there.
    pub called_generated: bool,
}

/// What a stack led to.
#[derive(Clone, Default, Debug)]
pub struct Followed {
    /// The frames, the innermost first.
    pub frames: Vec<StackFrame>,
    /// Whether there may be more, of which the copy of the stack was too short or which were too many.
    pub is_cut: bool,
}

/// Unwinds stacks of one process.
pub struct Unwinder {
    unwinder: UnwinderX86_64<Vec<u8>>,
    cache: CacheX86_64,
}

/// An unwinder with the tables of what is loaded, which are read once for each set of libraries.
#[derive(Debug, Default)]
pub struct Unwinding {
    /// Where code was when the tables were read: start, end, module.
    ranges: Vec<(u64, u64, ModuleId)>,
    unwinder: Option<Unwinder>,
}

impl Unwinding {
    /// The unwinder of what is loaded now.
    pub fn of(&mut self, modules: &Modules) -> &mut Unwinder {
        let ranges: Vec<_> = modules.ranges().collect();
        if self.ranges != ranges {
            self.ranges = ranges;
            self.unwinder = None;
        }
        self.unwinder.get_or_insert_with(|| Unwinder::new(modules))
    }
}

impl std::fmt::Debug for Unwinder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unwinder").finish_non_exhaustive()
    }
}

impl Unwinder {
    /// Reads the unwind tables of what is loaded.
    #[must_use]
    pub fn new(modules: &Modules) -> Unwinder {
        let mut unwinder = UnwinderX86_64::new();
        for (start, end, id) in modules.ranges() {
            if let Some(module) = module(modules, start, end, id) {
                unwinder.add_module(module);
            }
        }
        Unwinder {
            unwinder,
            cache: CacheX86_64::new(),
        }
    }

    /// The frames of a stack, innermost first, as far as they lead; `modules` are those of [`Unwinder::new`].
    #[must_use]
    pub fn frames(&mut self, modules: &Modules, stack: &Stack) -> Vec<StackFrame> {
        self.follow_shallow(modules, stack).frames
    }

    /// As [`Unwinder::frames`], saying whether there may be more.
    #[must_use]
    pub fn follow_shallow(&mut self, modules: &Modules, stack: &Stack) -> Followed {
        self.follow(modules, stack, MOST_FRAMES)
    }

    /// The same of a stack that is known to be deep.
    #[must_use]
    pub fn follow_deep(&mut self, modules: &Modules, stack: &Stack) -> Followed {
        self.follow(modules, stack, MOST_OF_DEEP)
    }

    fn follow(&mut self, modules: &Modules, stack: &Stack, most: usize) -> Followed {
        let mut registers = UnwindRegsX86_64::new(stack.rip.0, stack.rsp, stack.rbp);
        let mut address = FrameAddress::from_instruction_pointer(stack.rip.0);
        let (mut frames, mut is_generated) = (Vec::new(), false);
        let mut is_cut = false;
        for _ in 0..most {
            let function = function(modules, address.address_for_lookup());
            if let Some(function) = function {
                frames.push(StackFrame {
                    function,
                    at: TargetAddr(address.address()),
                    sp: registers.sp(),
                    called_generated: is_generated,
                });
            }
            // Frames of generated code have frame pointers, mostly.
            is_generated = function.is_none();
            let before = registers.sp();
            let mut read = |addr| {
                is_cut |= stack.is_behind_copy(addr);
                stack.word(addr).ok_or(())
            };
            let next =
                self.unwinder
                    .unwind_frame(address, &mut registers, &mut self.cache, &mut read);
            match next
                .ok()
                .flatten()
                .and_then(FrameAddress::from_return_address)
            {
                // Damaged tables must not lead in circles.
                Some(next) if registers.sp() > before => address = next,
                _ => return Followed { frames, is_cut },
            }
        }
        Followed {
            frames,
            is_cut: true,
        }
    }
}

fn function(modules: &Modules, addr: u64) -> Option<CodeRef> {
    let place = modules.place(TargetAddr(addr))?;
    let image = modules.get(place.module).image.as_ref()?;
    let function = image.function_at(place.addr)?;
    Some(CodeRef {
        module: place.module,
        addr: FileAddr(function.addr.0),
    })
}

fn module(modules: &Modules, start: u64, end: u64, id: ModuleId) -> Option<Module<Vec<u8>>> {
    let known = modules.get(id);
    let image = known.image.as_ref()?;
    let (eh_frame_at, eh_frame) = image.section(".eh_frame")?;
    let text = image.section(".text");
    let range = |range: darc_symbols::AddrRange| range.start.0..range.end.0;
    let bias = modules
        .locate(CodeRef {
            module: id,
            addr: FileAddr(0),
        })?
        .0;
    let info = ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: text.as_ref().map(|(at, _)| range(*at)),
        text: text.map(|(_, bytes)| bytes),
        eh_frame_svma: Some(range(eh_frame_at)),
        eh_frame: Some(eh_frame),
        ..ExplicitModuleSectionInfo::default()
    };
    Some(Module::new(known.path.clone(), start..end, bias, info))
}
