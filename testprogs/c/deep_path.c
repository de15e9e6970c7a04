/*
 * A path of twenty levels: with the default longest path the analysis ends at its maximum depth,
 * with a longer one it arrives at the work.
 *
 * f0 = level00
 * options: --max-depth 24
 * fast peak (every other op, ~0.3 ms):  level00 -> quick                        function
 *     wrong: level00; level00 -> … -> level19 -> level20
 * slow peak (every other op, ~2.5 ms):    level00 -> … -> level19 -> level20    function
 *     wrong: level00; level00 -> quick
 */
#include "work.h"

FUNCTION uint64_t quick(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t level20(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

#define LEVEL(this, next)             \
    FUNCTION uint64_t this(uint64_t key) \
    {                                 \
        return mix(next(key + 1));    \
    }

LEVEL(level19, level20)
LEVEL(level18, level19)
LEVEL(level17, level18)
LEVEL(level16, level17)
LEVEL(level15, level16)
LEVEL(level14, level15)
LEVEL(level13, level14)
LEVEL(level12, level13)
LEVEL(level11, level12)
LEVEL(level10, level11)
LEVEL(level09, level10)
LEVEL(level08, level09)
LEVEL(level07, level08)
LEVEL(level06, level07)
LEVEL(level05, level06)
LEVEL(level04, level05)
LEVEL(level03, level04)
LEVEL(level02, level03)
LEVEL(level01, level02)

FUNCTION uint64_t level00(uint64_t key)
{
    if (key % 2 == 1)
        return level01(key) + 1;
    return quick(key) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2400), level00);
}
