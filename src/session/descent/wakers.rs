//! What a thread was doing when it woke another one: the functions on the top of its stack.

use darc_process::Process;
use darc_process::modules::CodeRef;
use darc_process::stacks::Unwinding;
use darc_tracer::addr::TargetAddr;
use darc_tracer::perf::record::UserStack;
use darc_tracer::stacks::Stack;

/// Functions that are told, the innermost first.
const MOST: usize = 8;

/// Reads the stacks of who wakes others.
#[derive(Debug, Default)]
pub struct Wakers {
    unwinding: Unwinding,
}

impl Wakers {
    /// The functions on a stack, the innermost first.
    pub fn functions(&mut self, process: &Process<'_>, stack: &UserStack) -> Vec<CodeRef> {
        let modules = process.modules();
        let stack = Stack {
            tid: 0,
            rip: process.engine().own_code(TargetAddr(stack.ip)),
            call: None,
            rsp: stack.sp,
            rbp: stack.bp,
            bytes: stack.bytes.clone(),
        };
        // Behind generated code frames are found by a pointer that may be none.
        let frames = self.unwinding.of(modules).frames(modules, &stack);
        let frames = frames.into_iter();
        let frames = frames.take_while(|frame| !frame.called_generated);
        let functions = frames.map(|frame| frame.function);
        let told = functions.skip_while(|&at| is_bare_wrapper(&modules.name(at)));
        told.take(MOST).collect()
    }
}

/// Whether a function makes the system call that it is told to, as the C library's of this name: who calls it tells what it is for.
fn is_bare_wrapper(name: &str) -> bool {
    name.split('@').next() == Some("syscall")
}

#[cfg(test)]
mod tests {
    use super::is_bare_wrapper;

    #[test]
    fn what_makes_any_system_call_tells_nothing_of_a_waker() {
        let names = [
            "syscall",
            "syscall@@GLIBC_2.2.5",
            "syscall.Syscall",
            "futex_wake",
            "",
        ];
        let found = names.map(is_bare_wrapper);
        assert_eq!(found, [true, true, false, false, false]);
    }
}
