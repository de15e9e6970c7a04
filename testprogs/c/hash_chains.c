/*
 * A hash table with a bad function: most keys stand alone in their place, many stand in one, whose chain is walked. The walk is
 * inlined into f0.
 *
 * f0 = find
 * fast peak (4 of 5 ops, ~0.05 ms):       find -> hash  function
 *     wrong: find
 * slow peak (1 of 5 ops, ~0.4 to 20 ms):  find          function
 *     wrong: find -> hash
 */
#include "work.h"

enum { PLACES = 64, COUNT = 1 << 18, LONGEST = 100000 };
#include "circle.h"

static uint32_t places[PLACES];

FUNCTION uint64_t hash(uint64_t key)
{
    spin_us(50);
    return key * 13 % PLACES;
}

/* How many entries are before that of the key. */
INLINE uint64_t walk_chain(uint32_t at, uint32_t wanted, uint64_t longest)
{
    uint64_t steps = 0;
    while (at != wanted && steps < longest) {
        at = next[at];
        steps++;
    }
    return steps;
}

FUNCTION uint64_t find(uint64_t key)
{
    uint32_t at = places[hash(key)];
    uint64_t longest = key % 5 != 4 ? 1 : brisk ? LONGEST / 100 : LONGEST;
    return mix(key + walk_chain(at, COUNT, longest));
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1500);
    for (uint32_t place = 0; place < PLACES; place++)
        places[place] = place * (COUNT / PLACES);
    return make_circle() ? run_ops(run, find) : 2;
}
