/*
 * Functions with jumps that lead elsewhere than they seem to, each of which can be f0:
 *   threaded         jumps without a stack frame from one operation to the next, by a table in memory that was copied
 *   kept_label       goes on, with a stack frame, where a variable says: at one of its labels
 *   left_at_label    a call in its slow path has a stack frame, its labels have none; at one it leaves by a jump
 *   takes_argument   takes its argument off the stack as it returns
 *   passes_argument  the same, but for one in three that it leaves by a jump to `takes_argument`
 *   hands_on         leaves by a jump to `takes_argument`, and takes nothing off itself
 *   past_prediction  leaves by a `ret` to what a subroutine inside has written over its own return address
 * Each op calls each of them. Peaks do not matter here.
 */
#include "work.h"

uint64_t neighbour(uint64_t);
uint64_t threaded(uint64_t, void **table, uint64_t first);
uint64_t kept_label(uint64_t);
uint64_t left_at_label(uint64_t, void **table, uint64_t (*last)(uint64_t), uint64_t is_slow);
uint64_t call_with_argument(uint64_t, void *callee);
void takes_argument(void);
void passes_argument(void);
void hands_on(void);
uint64_t past_prediction(uint64_t, uint64_t (*last)(uint64_t));

extern void *threaded_labels[4], *left_labels[2], *kept_labels[2];
void *volatile kept;

__asm__(".text\n"
        ASM_FUNCTION(neighbour, "lea 3(%rdi), %rax\n ret\n")
        /* The labels are in short code, of which a jump would replace two instructions. */
        ASM_FUNCTION(threaded, "mov 8(%rsi), %rax\n jmp *(%rsi,%rdx,8)\n"
                               "10: add $3, %rdi\n"
                               "11: lea 1(%rdi), %rax\n ret\n"
                               "12: inc %rdi\n"
                               "13: jmp *%rax\n")
        ASM_FUNCTION(kept_label, "push %rbx\n .cfi_adjust_cfa_offset 8\n mov %rdi, %rax\n jmp *kept(%rip)\n"
                                 "20: add $3, %rax\n"
                                 "21: pop %rbx\n .cfi_adjust_cfa_offset -8\n ret\n")
        ASM_FUNCTION(left_at_label, "test %rcx, %rcx\n je 1f\n sub $8, %rsp\n .cfi_adjust_cfa_offset 8\n"
                                    " call neighbour\n add $8, %rsp\n .cfi_adjust_cfa_offset -8\n ret\n"
                                    "1:  jmp *(%rsi)\n"
                                    "30: add $5, %rdi\n jmp *8(%rsi)\n"
                                    "31: inc %rdi\n jmp *%rdx\n")
        ASM_FUNCTION(call_with_argument, "push %rdi\n .cfi_adjust_cfa_offset 8\n call *%rsi\n .cfi_adjust_cfa_offset -8\n ret\n")
        ASM_FUNCTION(takes_argument, "mov 8(%rsp), %rax\n add $11, %rax\n ret $8\n")
        ASM_FUNCTION(passes_argument, "mov 8(%rsp), %rax\n xor %edx, %edx\n mov $3, %ecx\n div %rcx\n test %rdx, %rdx\n"
                                      " je takes_argument\n mov %rdx, %rax\n ret $8\n")
        ASM_FUNCTION(hands_on, "test %rdi, %rdi\n jmp takes_argument\n")
        ASM_FUNCTION(past_prediction, "mov %rsi, %rax\n call 2f\n"
                                      "1:  pause\n lfence\n jmp 1b\n"
                                      "2:  mov %rax, (%rsp)\n ret\n")
        ".data\n"
        ".globl threaded_labels, kept_labels, left_labels\n"
        ".balign 8\n"
        "threaded_labels: .quad 10b, 11b, 12b, 13b\n"
        "kept_labels: .quad 20b, 21b\n"
        "left_labels: .quad 30b, 31b\n"
        ".text\n");

static uint64_t op(uint64_t key)
{
    spin_us(20);
    kept = kept_labels[key % 2];
    uint64_t sum = neighbour(key);
    sum = mix(sum ^ threaded(key, threaded_labels, key % 4));
    sum = mix(sum ^ kept_label(key));
    sum = mix(sum ^ left_at_label(key, left_labels, neighbour, key % 2));
    sum = mix(sum ^ call_with_argument(key, (void *)takes_argument));
    sum = mix(sum ^ call_with_argument(key, (void *)passes_argument));
    sum = mix(sum ^ call_with_argument(key, (void *)hands_on));
    return mix(sum ^ past_prediction(key, neighbour));
}

int main(int argc, char **argv)
{
    kept = kept_labels[0];
    return run_ops(parse_run(argc, argv, 10000), op);
}
