/*
 * The benchmark `loop` of the SLEEPY paper (section 3.2.1), cut into ops: f0 sums the index of a
 * simple loop, two lengths of it.
 *
 * f0 = sum_to
 * short peak (4 of 5 ops, ~0.3 ms):  sum_to  function
 * long peak (1 of 5 ops, ~2.5 ms):     sum_to  function
 *     wrong: sum_to -> …
 */
#include "work.h"

static uint64_t turns_per_us;

FUNCTION uint64_t sum_to(uint64_t turns)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < turns; i++) {
        sum += i;
        __asm__ volatile("" : "+r"(sum));
    }
    return sum;
}

/* The sum depends on the number of turns, which the machine sets: it is checked here by its closed form. */
static uint64_t op(uint64_t i)
{
    uint64_t turns = turns_per_us * (i % 5 == 4 ? 2500 : 300);
    uint64_t sum = sum_to(turns);
    return sum == turns * (turns - 1) / 2 ? i + 1 : ~i;
}

int main(int argc, char **argv)
{
    enum { TURNS = 1000000 };
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 5; i++) {
        uint64_t start = cycles(), sum = 0;
        for (uint64_t turn = 0; turn < TURNS; turn++) {
            sum += turn;
            __asm__ volatile("" : "+r"(sum));
        }
        uint64_t took = cycles() - start;
        best = took < best ? took : best;
    }
    turns_per_us = TURNS * (uint64_t)CYCLES_PER_US / (best ? best : 1);
    return run_ops(parse_run(argc, argv, 800), op);
}
