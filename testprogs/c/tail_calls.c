/*
 * Tail calls: a jump out of a function is a callee that returns to the caller's caller. `choose` is
 * assembly, so that both a conditional and an unconditional jump exist at every optimisation level;
 * `thorough` jumps to `grind` at -O2.
 *
 * f0 = request
 * fast peak (4 of 5 ops, ~0.3 ms):  request -> choose -> quick                function
 *     wrong: request; request -> choose; request -> choose -> thorough -> grind
 * slow peak (1 of 5 ops, ~2.5 ms):    request -> choose -> thorough -> grind    function
 *     wrong: request; request -> choose; request -> choose -> thorough; request -> choose -> quick
 */
#include "work.h"

uint64_t choose(uint64_t key, uint64_t is_slow);

FUNCTION uint64_t quick(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t grind(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

FUNCTION uint64_t thorough(uint64_t key)
{
    return grind(key + 7);
}

__asm__(".text\n"
        ".globl choose\n"
        ".type choose, @function\n"
        "choose:\n"
        "    .cfi_startproc\n"
        "    test %rsi, %rsi\n"
        "    je quick\n"
        "    jmp thorough\n"
        "    .cfi_endproc\n"
        ".size choose, .-choose\n");

FUNCTION uint64_t request(uint64_t key)
{
    return choose(key, key % 5 == 4) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1800), request);
}
