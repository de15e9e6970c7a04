/*
 * An f0 with a call of two bytes and a `ret` of one, both of which are jumped to, and right behind it another function: no
 * room for a jump anywhere.
 *
 * f0 = relay
 * fast peak (4 of 5 ops, ~0.3 ms):  relay -> light  function
 *     wrong: relay; relay -> heavy
 * slow peak (1 of 5 ops, ~2.5 ms):    relay -> heavy  function
 *     wrong: relay; relay -> light
 */
#include "work.h"

typedef uint64_t work(uint64_t key);

/* Calls one of two functions, unless there is none. */
uint64_t relay(uint64_t key, work *common, work *rare);
uint64_t behind(uint64_t key);

FUNCTION uint64_t light(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t heavy(uint64_t key)
{
    spin_us(2500);
    return mix(key) + 1;
}

__asm__(".text\n"
        ".globl relay\n"
        ".type relay, @function\n"
        ".p2align 4\n"
        "relay:\n"
        "    .cfi_startproc\n"
        "    mov %rdi, %rax\n"
        "    test %rsi, %rsi\n"
        "    je 3f\n"
        "    sub $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    mov %rsi, %rax\n"
        "    test %rdx, %rdx\n"
        "    je 2f\n"
        "    mov %rdx, %rax\n"
        "2:  call *%rax\n"
        "    add $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "3:  ret\n"
        "    .cfi_endproc\n"
        ".size relay, .-relay\n"
        ".globl behind\n"
        ".type behind, @function\n"
        "behind:\n"
        "    .cfi_startproc\n"
        "    push %rbp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    mov %rsp, %rbp\n"
        "    lea 1(%rdi), %rax\n"
        "    pop %rbp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size behind, .-behind\n");

static uint64_t op(uint64_t key)
{
    return behind(relay(key, light, key % 5 == 4 ? heavy : NULL));
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), op);
}
