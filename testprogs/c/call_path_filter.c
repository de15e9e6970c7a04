/*
 * One callee, reached from two parents, slow from one of them only; it is also slow outside f0,
 * which must not be measured at all.
 *
 * f0 = exchange
 * fast peak (4 of 5 ops, ~0.35 ms):  exchange -> receive -> transfer  function
 *     wrong: exchange; exchange -> receive; exchange -> send -> transfer
 * slow peak (1 of 5 ops, ~3.3 ms):   exchange -> send -> transfer     function
 *     wrong: exchange; exchange -> send; exchange -> receive -> transfer
 */
#include "work.h"

FUNCTION uint64_t transfer(uint64_t key, uint64_t us)
{
    spin_us(us);
    return mix(key);
}

FUNCTION uint64_t receive(uint64_t key)
{
    return transfer(key, 300) + 1;
}

FUNCTION uint64_t send(uint64_t key, int is_large)
{
    return transfer(key, is_large ? 2500 : 30) + 2;
}

FUNCTION uint64_t exchange(uint64_t key)
{
    uint64_t got = receive(key);
    return got ^ send(key, key % 5 == 4);
}

static uint64_t op(uint64_t key)
{
    uint64_t outside = key % 10 == 0 ? send(key, 1) : 0;
    return exchange(key) ^ outside;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), op);
}
