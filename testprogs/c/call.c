/*
 * The benchmark `call` of the SLEEPY paper (section 3.2.2), cut into ops: nested loops, the outer
 * one calls a function that sums the index of the inner one, with the outer index as its length.
 * Twelve calls take some 25 us each. Every fifth op makes one call more, with a much larger index, of some 2.5 ms.
 *
 * f0 = outer
 * common peak (4 of 5 ops, ~0.3 ms):  outer -> inner   function
 *     wrong: outer
 * slow peak (1 of 5 ops, ~3.3 ms):    outer -> inner   function
 *     wrong: outer
 */
#include "work.h"

static uint64_t turns_per_us;

FUNCTION uint64_t inner(uint64_t turns)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < turns; i++) {
        sum += i;
        __asm__ volatile("" : "+r"(sum));
    }
    return sum;
}

FUNCTION uint64_t outer(uint64_t unit, uint64_t large)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < 12; i++)
        total += inner(unit + i);
    if (large)
        total += inner(large);
    return total;
}

INLINE uint64_t closed_form(uint64_t turns)
{
    return turns ? turns * (turns - 1) / 2 : 0;
}

static uint64_t op(uint64_t i)
{
    uint64_t unit = turns_per_us * 25, large = i % 5 == 4 ? turns_per_us * 2500 : 0;
    uint64_t expected = closed_form(large);
    for (uint64_t turn = 0; turn < 12; turn++)
        expected += closed_form(unit + turn);
    return outer(unit, large) == expected ? i + 1 : ~i;
}

int main(int argc, char **argv)
{
    enum { TURNS = 1000000 };
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t start = cycles();
        inner(TURNS);
        uint64_t took = cycles() - start;
        best = took < best ? took : best;
    }
    turns_per_us = TURNS * (uint64_t)CYCLES_PER_US / (best ? best : 1);
    return run_ops(parse_run(argc, argv, 800), op);
}
