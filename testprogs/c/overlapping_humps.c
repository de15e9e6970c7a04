/*
 * Two kinds of ops whose humps overlap, so that no latency tells them apart.
 *
 * f0 = serve
 * only peak (every op, ~0.3 to 1.1 ms):  serve -> read_entry           function
 *                                        serve -> write_entry -> pack  function
 *     wrong: serve; serve -> write_entry
 */
#include "work.h"

static uint64_t turn;

/* Sums of four of the first 32 numbers: a hump around 62. */
INLINE uint64_t hump(void)
{
    uint64_t random = mix(++turn * 0x9e3779b97f4a7c15);
    return (random & 31) + (random >> 8 & 31) + (random >> 16 & 31) + (random >> 24 & 31);
}

FUNCTION uint64_t read_entry(uint64_t key)
{
    spin_us(250 + 4 * hump());
    return mix(key);
}

FUNCTION uint64_t pack(uint64_t key)
{
    spin_us(400 + 6 * hump());
    return mix(key);
}

FUNCTION uint64_t write_entry(uint64_t key)
{
    return pack(key) + 1;
}

FUNCTION uint64_t serve(uint64_t key)
{
    return (key % 2 == 0 ? read_entry(key) : write_entry(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2000), serve);
}
