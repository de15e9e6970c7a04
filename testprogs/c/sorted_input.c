/*
 * A quicksort that takes the first element to divide by: what is sorted already makes it compare each with each other.
 *
 * f0 = rank
 * fast peak (4 of 5 ops, ~0.2 ms):       rank -> find_best               function
 *     wrong: rank; rank -> order; rank -> order -> … -> by_price
 * slow peak (1 of 5 ops, ~2.5 to 7 ms):  rank -> order -> … -> by_price  function
 *     wrong: rank; rank -> order; rank -> find_best
 */
#include "work.h"

enum { COUNT = 40 };

struct quote {
    uint64_t price, name;
};

static struct quote quotes[COUNT];

FUNCTION int by_price(const struct quote *first, const struct quote *second)
{
    spin_cycles(brisk ? 80 : 8000);
    return first->price < second->price;
}

FUNCTION void order(struct quote *from, int count)
{
    while (count > 1) {
        int middle = 0;
        for (int at = 1; at < count; at++)
            if (by_price(&from[at], &from[0])) {
                struct quote taken = from[++middle];
                from[middle] = from[at];
                from[at] = taken;
            }
        struct quote first = from[0];
        from[0] = from[middle];
        from[middle] = first;
        order(from, middle);
        from += middle + 1;
        count -= middle + 1;
    }
    NO_TAIL_CALL();
}

FUNCTION uint64_t find_best(uint64_t key)
{
    spin_us(200);
    return mix(key);
}

FUNCTION uint64_t rank(uint64_t key)
{
    if (key % 5 != 4)
        return find_best(key) + 1;
    order(quotes, COUNT);
    return mix(key + quotes[0].price);
}

static uint64_t op(uint64_t key)
{
    for (uint64_t at = 0; at < COUNT; at++)
        quotes[at] = (struct quote){at, mix(at + key)};
    return rank(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1500), op);
}
