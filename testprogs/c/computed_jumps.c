/*
 * An interpreter that jumps from one operation to the next by addresses that it reads, of which nobody who looks at the
 * code knows where they lead: they stay in the function, and are no calls. What it keeps at the top of its stack must
 * stay what it is. `pick` jumps in the same way without a stack frame, and leaves by such a jump, too: that is a call.
 *
 * f0 = interpret
 * fast peak (4 of 5 ops, ~0.3 ms):  interpret -> execute          function
 *     wrong: interpret; interpret -> collect_garbage
 * slow peak (1 of 5 ops, ~2.5 ms):    interpret -> collect_garbage  function
 *     wrong: interpret; interpret -> execute
 */
#include <stdlib.h>
#include <string.h>

#include "work.h"

enum { ADD, TURN, EXECUTE, COLLECT, END, OPERATIONS };

/* On the heap, so that no table is to be seen. */
static void **volatile labels;

FUNCTION uint64_t execute(uint64_t operand)
{
    spin_us(300);
    return mix(operand);
}

FUNCTION uint64_t collect_garbage(uint64_t operand)
{
    spin_us(2500);
    return mix(operand + 1);
}

FUNCTION uint64_t twice(uint64_t operand)
{
    return 2 * operand;
}

/* Jumps inside without a frame, then out. */
uint64_t pick(uint64_t operand, void **table, uint64_t (*last)(uint64_t));
__asm__(".text\n"
        ".globl pick\n"
        ".type pick, @function\n"
        "pick:\n"
        "    .cfi_startproc\n"
        "    lea 1f(%rip), %rax\n"
        "    mov %rax, (%rsi)\n"
        "    jmp *(%rsi)\n"
        "    ud2\n"
        "1:  add $3, %rdi\n"
        "    lea 2f(%rip), %rax\n"
        "    mov %rax, (%rsi)\n"
        "    mov (%rsi), %rax\n"
        "    jmp *%rax\n"
        "    ud2\n"
        "2:  mov %rdx, %rax\n"
        "    jmp *%rax\n"
        "    .cfi_endproc\n"
        ".size pick, .-pick\n");

FUNCTION uint64_t interpret(const unsigned char *code, uint64_t value)
{
    if (!code) {
        static void *const all[OPERATIONS] = {&&add, &&turn, &&run, &&collect, &&end};
        void **copy = malloc(sizeof all);
        if (!copy)
            abort();
        memcpy(copy, all, sizeof all);
        labels = copy;
        return 0;
    }
    volatile uint64_t kept[8];
    for (uint64_t i = 0; i < 8; i++)
        kept[i] = mix(value + i);
    uint64_t start = value;
    void *scratch;
#define NEXT() goto *labels[*code++]
    NEXT();
add:
    value += 11;
    NEXT();
turn:
    value = pick(value << 7 | value >> 57, &scratch, twice);
    NEXT();
run:
    value = execute(value);
    NEXT();
collect:
    value = collect_garbage(value);
    NEXT();
end:
    for (uint64_t i = 0; i < 8; i++)
        if (kept[i] != mix(start + i))
            abort();
    return value;
}

static uint64_t op(uint64_t key)
{
    static const unsigned char fast[] = {ADD, TURN, ADD, TURN, EXECUTE, ADD, TURN, END};
    static const unsigned char slow[] = {TURN, ADD, COLLECT, TURN, ADD, ADD, END};
    return interpret(key % 5 == 4 ? slow : fast, key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 800);
    interpret(0, 0);
    return run_ops(run, op);
}
