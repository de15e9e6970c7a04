/*
 * A loop over many short calls, of which a few miss a cache: these have nearly all of the time, though the calls are short on
 * average.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.15 ms):  serve -> hash            function
 *     wrong: serve -> get_page; serve -> get_page -> load
 * slow peak (1 of 5 ops, ~0.9 ms):  serve -> get_page -> load  function
 *     wrong: serve; serve -> get_page; serve -> hash
 */
#include "work.h"

enum { PAGES = 1500, MISSED = 150 };

FUNCTION uint64_t load(uint64_t page)
{
    spin_us(90);
    return mix(page);
}

FUNCTION uint64_t get_page(uint64_t page, int is_missed)
{
    return is_missed ? load(page) + 1 : mix(page);
}

FUNCTION uint64_t hash(uint64_t key)
{
    spin_us(150);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = 0;
    if (key % 5 != 4)
        return hash(key);
    for (uint64_t page = 0; page < PAGES; page++)
        sum += get_page(page, page % MISSED == key);
    return sum;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), serve);
}
