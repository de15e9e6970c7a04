/*
 * Ten functions take equal parts of f0's time: none of them is the cause.
 *
 * f0 = serve
 * only peak (every op, ~1 ms):  spread
 *     wrong: serve; serve -> part0
 */
#include "work.h"

FUNCTION uint64_t part0(uint64_t key)
{
    spin_us(100);
    return mix(key + 0);
}

FUNCTION uint64_t part1(uint64_t key)
{
    spin_us(100);
    return mix(key + 1);
}

FUNCTION uint64_t part2(uint64_t key)
{
    spin_us(100);
    return mix(key + 2);
}

FUNCTION uint64_t part3(uint64_t key)
{
    spin_us(100);
    return mix(key + 3);
}

FUNCTION uint64_t part4(uint64_t key)
{
    spin_us(100);
    return mix(key + 4);
}

FUNCTION uint64_t part5(uint64_t key)
{
    spin_us(100);
    return mix(key + 5);
}

FUNCTION uint64_t part6(uint64_t key)
{
    spin_us(100);
    return mix(key + 6);
}

FUNCTION uint64_t part7(uint64_t key)
{
    spin_us(100);
    return mix(key + 7);
}

FUNCTION uint64_t part8(uint64_t key)
{
    spin_us(100);
    return mix(key + 8);
}

FUNCTION uint64_t part9(uint64_t key)
{
    spin_us(100);
    return mix(key + 9);
}

FUNCTION uint64_t serve(uint64_t key)
{
    key = part0(key);
    key = part1(key);
    key = part2(key);
    key = part3(key);
    key = part4(key);
    key = part5(key);
    key = part6(key);
    key = part7(key);
    key = part8(key);
    key = part9(key);
    return mix(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 600), serve);
}
