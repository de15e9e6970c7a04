/*
 * Latencies around the border of two buckets, 2^20 cycles, and others around 2^23: each is one hump with one cause, whichever side
 * an op falls on.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.42 to 0.49 ms):  serve -> look_up              function
 *     wrong: serve; serve -> rebuild; serve -> rebuild -> rehash
 * slow peak (1 of 5 ops, ~3.4 to 3.9 ms):    serve -> rebuild -> rehash  function
 *     wrong: serve; serve -> look_up; serve -> rebuild
 */
#include "work.h"

static uint64_t turn;

/* Up to a sixteenth less or more than that. */
INLINE void spin_around(uint64_t count)
{
    uint64_t part = mix(++turn * 0x9e3779b97f4a7c15) >> 40 & 255;
    spin_cycles((count - count / 16 + count / 8 * part / 256) / (brisk ? 100 : 1));
}

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_around(1 << 20);
    return mix(key);
}

FUNCTION uint64_t rehash(uint64_t key)
{
    spin_around(1 << 23);
    return mix(key);
}

FUNCTION uint64_t rebuild(uint64_t key)
{
    return rehash(key) + 1;
}

FUNCTION uint64_t serve(uint64_t key)
{
    return (key % 5 == 4 ? rebuild(key) : look_up(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), serve);
}
