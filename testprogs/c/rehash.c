/*
 * A hash table that grows while it is filled: most inserts find a place at once, some move all entries to a larger table first.
 *
 * f0 = insert
 * fast peak (17 of 20 ops, ~0.05 ms):       insert -> place          function
 *     wrong: insert; insert -> grow
 * slow peak (3 of 20 ops, ~1.5 to 28 ms):   insert -> grow -> move_entries  function
 *     wrong: insert; insert -> place; insert -> grow
 */
#include "work.h"

enum { LARGEST = 1 << 18 };

static uint64_t old[LARGEST], table[LARGEST];
static size_t size;

FUNCTION uint64_t place(uint64_t key)
{
    spin_us(50);
    size_t at = mix(key + 1) % size;
    table[at] = key + 1;
    return mix(key);
}

FUNCTION void move_entries(size_t from)
{
    for (int turn = 0; turn < (brisk ? 1 : 16); turn++)
        for (size_t at = 0; at < from; at++)
            table[mix(old[at]) % size] = old[at] + at;
}

FUNCTION void grow(void)
{
    size_t from = size;
    size *= 2;
    memcpy(old, table, sizeof *table * 16);
    move_entries(from);
    NO_TAIL_CALL();
}

FUNCTION uint64_t insert(uint64_t key)
{
    if (key % 6 == 5)
        grow();
    return place(key) + 1;
}

static uint64_t op(uint64_t key)
{
    /* A new table for each period. */
    if (key == 0)
        size = LARGEST >> 4;
    return insert(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 3000), op);
}
