/*
 * A cache of a fixed size: where it is full, the entry that was used least recently makes room, and some of these are written back.
 *
 * f0 = put
 * fast peak (16 of 20 ops, ~0.1 ms):  put -> store                            function
 *     wrong: put; put -> evict
 * slow peak (4 of 20 ops, ~2.1 ms):   put -> evict -> write_back -> compress  function
 *     wrong: put; put -> store; put -> evict; put -> evict -> write_back
 */
#include "work.h"

enum { PLACES = 8 };

static uint64_t keys[PLACES], used[PLACES], dirty[PLACES], now;

FUNCTION uint64_t compress(uint64_t key)
{
    spin_us(2000);
    return mix(key);
}

FUNCTION uint64_t write_back(uint64_t place)
{
    uint64_t packed = compress(keys[place]);
    spin_us(5);
    return packed;
}

FUNCTION uint64_t evict(uint64_t *written)
{
    uint64_t oldest = 0;
    for (uint64_t place = 1; place < PLACES; place++)
        if (used[place] < used[oldest])
            oldest = place;
    if (dirty[oldest])
        *written ^= write_back(oldest);
    return oldest;
}

FUNCTION void store(uint64_t place, uint64_t key)
{
    spin_us(100);
    keys[place] = key;
    used[place] = ++now;
    dirty[place] = key % 5 == 4;
}

FUNCTION uint64_t put(uint64_t key)
{
    uint64_t written = 0;
    store(evict(&written), key);
    NO_TAIL_CALL();
    return mix(key) + (written != 0);
}

static uint64_t op(uint64_t key)
{
    /* As after another period. */
    if (key == 0)
        for (uint64_t place = 0; place < PLACES; place++) {
            keys[place] = PERIOD - PLACES + place;
            used[place] = ++now;
            dirty[place] = keys[place] % 5 == 4;
        }
    return put(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2500), op);
}
