/*
 * Functions with odd entries, each of which can be f0:
 *   nothing          a single `ret`; `nothing_alias` is a second symbol at its address
 *   two_bytes        two bytes long, directly before `neighbour`
 *   sizeless         a symbol of size 0
 *   countdown        a loop back to its own first instruction
 *   countdown_inside a loop back to just behind its first instruction
 *   early_call       a call as its first instruction
 *   early_relative   begins with a rip-relative load
 *   early_jrcxz      begins with a short jump that has no long form
 *   early_syscall    begins with the number and the `syscall` instruction
 *   variadic         passes the number of vector registers in al
 *   marked           begins with endbr64
 *   entered_inside   another function (`begins_elsewhere`) jumps behind its first instruction
 *   short_call       another function (`calls_elsewhere`) jumps to its call of two bytes
 * Each op calls each of them. Peaks do not matter here.
 */
#include "work.h"

#include <stdarg.h>

void nothing(void);
void nothing_alias(void);
void two_bytes(void);
uint64_t neighbour(uint64_t);
uint64_t sizeless(uint64_t);
uint64_t countdown(uint64_t);
uint64_t countdown_inside(uint64_t);
uint64_t early_call(uint64_t);
uint64_t early_relative(void);
uint64_t early_jrcxz(uint64_t, uint64_t, uint64_t, uint64_t);
uint64_t early_syscall(void);
uint64_t marked(uint64_t);
uint64_t entered_inside(uint64_t);
uint64_t begins_elsewhere(uint64_t);
uint64_t short_call(uint64_t);
uint64_t calls_elsewhere(uint64_t);

uint64_t relative_value = 0x1234567;

__asm__(".text\n"
        ".globl nothing_alias\n"
        ".set nothing_alias, nothing\n"
        ASM_FUNCTION(nothing, "ret\n")
        ASM_FUNCTION(two_bytes, "rep; ret\n")
        ASM_FUNCTION(neighbour, "lea 3(%rdi), %rax\n ret\n")
        ".globl sizeless\n"
        ".type sizeless, @function\n"
        "sizeless: .cfi_startproc\n"
        "    lea 5(%rdi), %rax\n"
        "    ret\n"
        "    .cfi_endproc\n"
        /* Not in the unwind table: its frame may be of any kind. */
        ".globl undescribed\n"
        ".type undescribed, @function\n"
        "undescribed: lea 5(%rdi), %rax\n"
        "    ret\n"
        ".size undescribed, .-undescribed\n"
        "    .balign 16\n"
        ASM_FUNCTION(countdown, "sub $1, %rdi\n jnz countdown\n lea 9(%rdi), %rax\n ret\n")
        ASM_FUNCTION(countdown_inside, "xor %eax, %eax\n 1: inc %rax\n sub $1, %rdi\n jnz 1b\n ret\n")
        ASM_FUNCTION(early_call, "call neighbour\n lea 1(%rax), %rax\n ret\n")
        ASM_FUNCTION(early_relative, "mov relative_value(%rip), %rax\n ret\n")
        ASM_FUNCTION(early_jrcxz, "jrcxz 1f\n lea 1(%rcx), %rax\n ret\n 1: mov $77, %eax\n ret\n")
        ASM_FUNCTION(early_syscall, "mov $39, %eax\n syscall\n ret\n")
        ASM_FUNCTION(marked, "endbr64\n lea 6(%rdi), %rax\n ret\n")
        ASM_FUNCTION(entered_inside, "mov %rdi, %rax\n 9: lea 4(%rax,%rax), %rax\n nopl 0(%rax)\n ret\n")
        ASM_FUNCTION(begins_elsewhere, "lea 7(%rdi), %rax\n jmp 9b\n")
        ASM_FUNCTION(short_call, "push %rbx\n .cfi_adjust_cfa_offset 8\n lea neighbour(%rip), %rax\n mov %rdi, %rbx\n"
                                 " mov %rbx, %rdi\n 8: call *%rax\n pop %rbx\n .cfi_adjust_cfa_offset -8\n ret\n")
        ASM_FUNCTION(calls_elsewhere, "push %rbx\n .cfi_adjust_cfa_offset 8\n lea neighbour(%rip), %rax\n inc %rdi\n"
                                      " jmp 8b\n"));

FUNCTION uint64_t variadic(int count, ...)
{
    va_list list;
    double sum = 0;
    va_start(list, count);
    for (int i = 0; i < count; i++)
        sum += va_arg(list, double);
    va_end(list);
    return (uint64_t)sum;
}

static uint64_t op(uint64_t key)
{
    uint64_t (*volatile pointer)(uint64_t) = marked;
    nothing();
    nothing_alias();
    two_bytes();
    spin_us(20);
    uint64_t sum = neighbour(key);
    sum = mix(sum ^ sizeless(key));
    sum = mix(sum ^ countdown(key + 1));
    sum = mix(sum ^ countdown_inside(key + 1));
    sum = mix(sum ^ early_call(key));
    sum = mix(sum ^ early_relative());
    sum = mix(sum ^ early_jrcxz(0, 0, 0, key % 3));
    sum = mix(sum ^ (early_syscall() == (uint64_t)getpid()));
    sum = mix(sum ^ entered_inside(key));
    sum = mix(sum ^ begins_elsewhere(key));
    sum = mix(sum ^ short_call(key));
    sum = mix(sum ^ calls_elsewhere(key));
    sum = mix(sum ^ variadic(3, 1.5, 2.5, (double)key));
    return sum ^ pointer(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 10000), op);
}
