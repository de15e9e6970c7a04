/*
 * f0 itself leaves by tail calls, and is reached by one: `enter` jumps to f0, f0 jumps to `light`
 * or `heavy`. An op lasts until the function that was jumped to returns.
 *
 * f0 = relay
 * fast peak (4 of 5 ops, ~0.3 ms):  relay -> light  function
 *     wrong: relay; relay -> heavy
 * slow peak (1 of 5 ops, ~2.5 ms):    relay -> heavy  function
 *     wrong: relay; relay -> light
 */
#include "work.h"

uint64_t enter(uint64_t key, uint64_t is_slow);

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
        ".globl enter\n"
        ".type enter, @function\n"
        "enter:\n"
        "    .cfi_startproc\n"
        "    add $1, %rdi\n"
        "    jmp relay\n"
        "    .cfi_endproc\n"
        ".size enter, .-enter\n"
        ".globl relay\n"
        ".type relay, @function\n"
        "relay:\n"
        "    .cfi_startproc\n"
        "    test %rsi, %rsi\n"
        "    jne heavy\n"
        "    jmp light\n"
        "    .cfi_endproc\n"
        ".size relay, .-relay\n");

static uint64_t op(uint64_t key)
{
    return enter(key, key % 5 == 4);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), op);
}
