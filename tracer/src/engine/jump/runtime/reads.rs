//! Reads the target's memory where it may be that nothing is mapped.
//!
//! A load from a bad address would be the program's death, and to look first whether something is mapped does not help:
//! another thread may unmap it in between. The kernel reads without a fault: process_vm_readv(2), which needs no
//! permission for a process's own memory and fails with EFAULT.

use iced_x86::code_asm::*;

use crate::engine::jump::asm::{Emitted, Surroundings};

/// rax address → rax the word there, and the zero flag when it could be read; all other registers are kept.
pub fn read(a: &mut CodeAssembler, start: &mut CodeLabel, around: &Surroundings) -> Emitted<()> {
    const WORD: i32 = 8;
    /// What is on the stack: where to and how much (struct iovec), from where and how much, the word itself.
    const FRAME: i32 = 40;
    let kept = [rcx, rdx, rsi, rdi, r8, r9, r10, r11];
    a.set_label(start)?;
    for register in kept {
        a.push(register)?;
    }
    a.push(0)?;
    a.push(WORD)?;
    a.push(rax)?;
    a.push(WORD)?;
    a.lea(rax, qword_ptr(rsp + 24))?;
    a.push(rax)?;
    a.mov(edi, around.pid)?;
    a.mov(rsi, rsp)?;
    a.mov(edx, 1)?;
    a.lea(r10, qword_ptr(rsp + 16))?;
    a.mov(r8d, 1)?;
    a.xor(r9d, r9d)?;
    a.mov(eax, libc::SYS_process_vm_readv as i32)?;
    a.syscall()?;
    a.mov(rcx, qword_ptr(rsp + 32))?;
    a.add(rsp, FRAME)?;
    a.cmp(rax, WORD)?;
    a.mov(rax, rcx)?;
    for register in kept.into_iter().rev() {
        a.pop(register)?;
    }
    a.ret()
}
