/*
 * Everything that a call of f0 must leave as it is: all general registers, the flags with the
 * direction flag, xmm0 to xmm15, mxcsr, the x87 control word, errno, and the red zone around a
 * system call inside f0. The caller is assembly: it fills all registers with a pattern, calls f0, and
 * stores what it finds.
 *
 * f0 = pass_through: calls `leaf` directly, through a register and through memory, makes a system
 * call with its red zone in use, and leaves by a conditional tail jump to `last`.
 * The result counts: "registers=" lists what differed ("ok" when nothing did).
 */
#include "work.h"

#include <errno.h>

struct state {
    uint64_t general[16]; /* rax rcx rdx rbx rsp rbp rsi rdi r8 … r15, as the processor numbers them */
    uint64_t flags;
    uint64_t mxcsr_fcw;
    unsigned char xmm[16][16];
} __attribute__((aligned(16)));

struct state before, after;
uint64_t kept_stack, red_zone_damage;
void leaf(void);
void *leaf_pointer = (void *)leaf;

void call_with_pattern(void);

#define OFFSET_FLAGS "128"
#define OFFSET_MXCSR "136"
#define OFFSET_XMM "144"

__asm__(
    ".text\n"
    ".globl leaf\n.type leaf, @function\n"
    "leaf: .cfi_startproc\n ret\n .cfi_endproc\n .size leaf, .-leaf\n"
    ".globl last\n.type last, @function\n"
    "last: .cfi_startproc\n ret\n .cfi_endproc\n .size last, .-last\n"

    /* Native effect: none at all; what it needs it saves itself. */
    ".globl pass_through\n.type pass_through, @function\n"
    "pass_through: .cfi_startproc\n"
    "    call leaf\n"
    "    push %rax\n .cfi_adjust_cfa_offset 8\n"
    "    mov leaf_pointer(%rip), %rax\n"
    "    call *%rax\n"
    "    call *leaf_pointer(%rip)\n"
    "    pop %rax\n .cfi_adjust_cfa_offset -8\n"
    /* A leaf part: the red zone holds saved registers and a pattern while a system call is made. */
    "    mov %rax, -8(%rsp)\n"
    "    mov %rcx, -16(%rsp)\n"
    "    mov %r11, -24(%rsp)\n"
    "    mov %rbx, -128(%rsp)\n"
    "    mov %r15, -64(%rsp)\n"
    "    mov $39, %eax\n"
    "    syscall\n"
    "    mov -24(%rsp), %r11\n"
    "    mov -16(%rsp), %rcx\n"
    "    mov -8(%rsp), %rax\n"
    "    pushf\n .cfi_adjust_cfa_offset 8\n" /* overwrites -8(%rsp), which has been read */
    "    cmp %rbx, -120(%rsp)\n"
    "    jne 1f\n"
    "    cmp %r15, -56(%rsp)\n"
    "    je 2f\n"
    "1:  incq red_zone_damage(%rip)\n"
    "2:  popf\n .cfi_adjust_cfa_offset -8\n"
    "    jc last\n"
    "    jmp last\n"
    "    .cfi_endproc\n .size pass_through, .-pass_through\n"

    ".globl call_with_pattern\n.type call_with_pattern, @function\n"
    "call_with_pattern: .cfi_startproc\n"
    "    push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
    "    .cfi_adjust_cfa_offset 48\n"
    "    sub $24, %rsp\n .cfi_adjust_cfa_offset 24\n"
    "    stmxcsr 8(%rsp)\n fnstcw 12(%rsp)\n"
    "    mov %rsp, kept_stack(%rip)\n"
    "    mov %rsp, before+32(%rip)\n"
    "    ldmxcsr before+" OFFSET_MXCSR "(%rip)\n"
    "    fldcw before+" OFFSET_MXCSR "+4(%rip)\n"
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "    movaps before+" OFFSET_XMM "+16*\\n(%rip), %xmm\\n\n"
    ".endr\n"
    "    pushq before+" OFFSET_FLAGS "(%rip)\n .cfi_adjust_cfa_offset 8\n"
    "    mov before+0(%rip), %rax\n"
    "    mov before+8(%rip), %rcx\n"
    "    mov before+16(%rip), %rdx\n"
    "    mov before+24(%rip), %rbx\n"
    "    mov before+40(%rip), %rbp\n"
    "    mov before+48(%rip), %rsi\n"
    "    mov before+56(%rip), %rdi\n"
    "    mov before+64(%rip), %r8\n"
    "    mov before+72(%rip), %r9\n"
    "    mov before+80(%rip), %r10\n"
    "    mov before+88(%rip), %r11\n"
    "    mov before+96(%rip), %r12\n"
    "    mov before+104(%rip), %r13\n"
    "    mov before+112(%rip), %r14\n"
    "    mov before+120(%rip), %r15\n"
    "    popf\n .cfi_adjust_cfa_offset -8\n"
    "    call pass_through\n"
    "    mov %rax, after+0(%rip)\n"
    "    mov %rsp, after+32(%rip)\n"
    "    mov kept_stack(%rip), %rsp\n"
    "    pushf\n .cfi_adjust_cfa_offset 8\n"
    "    popq after+" OFFSET_FLAGS "(%rip)\n .cfi_adjust_cfa_offset -8\n"
    "    cld\n"
    "    mov %rcx, after+8(%rip)\n"
    "    mov %rdx, after+16(%rip)\n"
    "    mov %rbx, after+24(%rip)\n"
    "    mov %rbp, after+40(%rip)\n"
    "    mov %rsi, after+48(%rip)\n"
    "    mov %rdi, after+56(%rip)\n"
    "    mov %r8, after+64(%rip)\n"
    "    mov %r9, after+72(%rip)\n"
    "    mov %r10, after+80(%rip)\n"
    "    mov %r11, after+88(%rip)\n"
    "    mov %r12, after+96(%rip)\n"
    "    mov %r13, after+104(%rip)\n"
    "    mov %r14, after+112(%rip)\n"
    "    mov %r15, after+120(%rip)\n"
    ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
    "    movaps %xmm\\n, after+" OFFSET_XMM "+16*\\n(%rip)\n"
    ".endr\n"
    "    stmxcsr after+" OFFSET_MXCSR "(%rip)\n"
    "    fnstcw after+" OFFSET_MXCSR "+4(%rip)\n"
    "    ldmxcsr 8(%rsp)\n fldcw 12(%rsp)\n"
    "    add $24, %rsp\n .cfi_adjust_cfa_offset -24\n"
    "    pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n"
    "    .cfi_adjust_cfa_offset -48\n"
    "    ret\n .cfi_endproc\n .size call_with_pattern, .-call_with_pattern\n");

static uint64_t differing_general, differing_flags, differing_control, differing_xmm, differing_errno;

enum { CARRY = 1, PARITY = 4, ADJUST = 16, ZERO = 64, SIGN = 128, DIRECTION = 1024, OVERFLOW = 2048 };

/* The system call in f0 gives r11 the flags and rcx the address; f0 restores both itself. */
static uint64_t op(uint64_t key)
{
    static const uint64_t flags[] = {0, CARRY, PARITY, ADJUST, ZERO, SIGN, DIRECTION, OVERFLOW};
    for (uint64_t i = 0; i < 16; i++) {
        before.general[i] = mix(key * 16 + i + 1);
        memset(before.xmm[i], (int)(key + i * 3 + 1), 16);
    }
    uint64_t all = flags[key % 8] | flags[(key / 8 + 3) % 8] | flags[(key + 5) % 8];
    before.flags = 0x202 | all;
    /* Rounding modes and precision that no compiler chooses; all exceptions stay masked. */
    before.mxcsr_fcw = (0x1f80u | (key % 4) << 13) | (0x037full | (key % 4) << 10) << 32;
    errno = 4711;
    call_with_pattern();
    differing_errno += errno != 4711;
    for (int i = 0; i < 16; i++) {
        if (before.general[i] != after.general[i])
            differing_general |= 1ull << i;
        if (memcmp(before.xmm[i], after.xmm[i], 16) != 0)
            differing_xmm |= 1ull << i;
    }
    differing_flags |= (before.flags ^ after.flags) & 0xcd5;
    differing_control |= (before.mxcsr_fcw ^ after.mxcsr_fcw) & 0xffffffffffffull;
    spin_us(20);
    return differing_general ^ differing_flags ^ differing_control ^ differing_xmm;
}

int main(int argc, char **argv)
{
    int status = run_ops(parse_run(argc, argv, 4000), op);
    if (differing_general | differing_flags | differing_control | differing_xmm | differing_errno | red_zone_damage) {
        printf("registers=general:%llx flags:%llx control:%llx xmm:%llx errno:%llx red zone:%llx\n",
               (unsigned long long)differing_general, (unsigned long long)differing_flags,
               (unsigned long long)differing_control, (unsigned long long)differing_xmm,
               (unsigned long long)differing_errno, (unsigned long long)red_zone_damage);
        return 1;
    }
    printf("registers=ok\n");
    return status;
}
