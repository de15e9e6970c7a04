/*
 * A function with twelve calls, some outside of all loops and some in each of three loops: to measure all of them at once is not
 * wanted.
 *
 * f0 = handle: more calls than are measured at once
 * fast peak (4 of 5 ops, ~0.3 ms): handle -> parse          function, outside of all loops
 * slow peak (1 of 5 ops, ~5 ms):   handle -> compress       function, in the last loop
 */
#include "work.h"

#define STEP(name)                            \
    FUNCTION uint64_t name(uint64_t value)    \
    {                                         \
        return mix(value + __LINE__);         \
    }

STEP(open_reply)
STEP(look_at_header)
STEP(count_words)
STEP(fold_case)
STEP(sum_up)
STEP(pick)
STEP(drop)
STEP(hash)
STEP(append)
STEP(close_reply)

FUNCTION uint64_t parse(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t compress(uint64_t key, uint64_t part)
{
    if (key % 5 == 4 && part == 1)
        spin_us(5000);
    return mix(key ^ part);
}

FUNCTION uint64_t handle(uint64_t key)
{
    uint64_t sum = open_reply(key);
    sum ^= look_at_header(key);
    sum ^= parse(key);
    for (uint64_t i = 0; i < 3; i++) {
        sum ^= count_words(sum);
        sum ^= fold_case(sum);
        sum += sum_up(i);
    }
    for (uint64_t i = 0; i < 3; i++) {
        sum ^= pick(sum);
        sum ^= drop(i);
    }
    for (uint64_t i = 0; i < 3; i++) {
        sum ^= hash(sum);
        sum ^= compress(key, i);
        sum += append(i);
    }
    return sum ^ close_reply(sum);
}

static uint64_t op(uint64_t key)
{
    return mix(handle(key));
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1500), op);
}
