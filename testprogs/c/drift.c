/*
 * Latencies that grow for a second, as what is searched does, and begin anew: one cause at all times.
 *
 * f0 = serve
 * only peak (every op, ~0.2 to 0.9 ms):  serve -> search -> scan  function
 *     wrong: serve; serve -> search; serve -> check
 */
#include "work.h"

static uint64_t entries;

FUNCTION uint64_t scan(uint64_t key)
{
    entries = (entries + 1) % 2000;
    spin_us(200 + entries * 7 / 20);
    return mix(key);
}

FUNCTION uint64_t search(uint64_t key)
{
    return scan(key) + 1;
}

FUNCTION uint64_t check(uint64_t key)
{
    spin_us(5);
    return mix(key + 1);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t found = search(key);
    return (found ^ check(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 2500), serve);
}
