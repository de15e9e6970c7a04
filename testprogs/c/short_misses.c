/*
 * A few calls that take two microseconds among short ones, in a loop: neither by their mean nor by the longest do they stand out.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~2 us):    serve -> hash               function
 *     wrong: serve -> get_page; serve -> get_page -> load
 * slow peak (1 of 5 ops, ~16 us):   serve -> get_page -> load   function
 *     wrong: serve; serve -> get_page; serve -> hash
 */
#include "work.h"

enum { PAGES = 24, EACH = 3 };

FUNCTION uint64_t load(uint64_t page)
{
    spin_cycles(brisk ? 46 : 4600);
    return mix(page);
}

FUNCTION uint64_t get_page(uint64_t page, int is_missed)
{
    return is_missed ? load(page) + 1 : mix(page);
}

FUNCTION uint64_t hash(uint64_t key)
{
    spin_cycles(brisk ? 46 : 4600);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = 0;
    if (key % 5 != 4)
        return hash(key);
    spin_cycles(brisk ? 10 : 1000);
    for (uint64_t page = 0; page < PAGES; page++)
        sum += get_page(page, page % EACH == 0);
    return sum;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 40000), serve);
}
