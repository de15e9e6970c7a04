/*
 * Every fifth op throws, past functions that clean up, and catches below f0. The op returns, and the calls that the
 * exception left are where its time is.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):   serve -> guarded -> parse -> scan    function
 * slow peak (1 of 5 ops, ~2.5 ms):   serve -> guarded -> parse -> fail    function
 *     wrong: serve; serve -> guarded; serve -> recover
 */
#include "work.h"

#include <stdexcept>

static uint64_t destroyed;

/* Has a destructor, so that a frame that holds one has a cleanup pad. */
struct Guard {
    uint64_t weight;
    explicit Guard(uint64_t weight) : weight(weight) {}
    ~Guard() { destroyed += weight; }
};

FUNCTION uint64_t scan(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t recover(uint64_t key)
{
    spin_us(50);
    return mix(key + 1);
}

FUNCTION void fail(uint64_t key)
{
    Guard guard(1);
    spin_us(2500);
    throw std::runtime_error(key % 2 == 0 ? "even" : "odd");
}

FUNCTION uint64_t parse(uint64_t key)
{
    Guard guard(2);
    if (key % 5 == 4)
        fail(key);
    return scan(key) + 1;
}

FUNCTION uint64_t guarded(uint64_t key)
{
    try {
        return parse(key) ^ 1;
    } catch (const std::exception &exception) {
        return recover(key) ^ (uint64_t)exception.what()[0];
    }
}

FUNCTION uint64_t serve(uint64_t key)
{
    destroyed = 0;
    uint64_t sum = guarded(key);
    return sum ^ (destroyed << 32);
}

static uint64_t op(uint64_t key)
{
    return serve(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1800), op);
}
