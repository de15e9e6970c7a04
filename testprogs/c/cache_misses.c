/*
 * The same function on memory that is in the cache, and on memory that is not: it is the cause of both, by what it reads.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.05 ms):       serve -> look           function
 *     wrong: serve; serve -> search
 * slow peak (1 of 5 ops, ~0.2 to 9 ms):   serve -> search -> walk  function
 *     wrong: serve; serve -> look; serve -> search
 */
#include "work.h"

enum { COUNT = 1 << 21, STEPS = 8000 };
#include "circle.h"

FUNCTION uint64_t look(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION uint64_t walk(uint64_t key)
{
    static uint32_t at;
    uint64_t is_back = 0;
    for (int i = 0; i < (brisk ? 80 : STEPS); i++) {
        at = next[at];
        is_back |= at >= COUNT;
    }
    return mix(key + is_back);
}

FUNCTION uint64_t search(uint64_t key)
{
    return walk(key) + 1;
}

FUNCTION uint64_t serve(uint64_t key)
{
    return (key % 5 == 4 ? search(key) : look(key)) + 1;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 2000);
    return make_circle() ? run_ops(run, serve) : 2;
}
