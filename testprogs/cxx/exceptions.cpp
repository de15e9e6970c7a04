/*
 * Exceptions through f0: every third op throws, from below f0 or from f0 itself; it is caught one
 * frame above f0 or five, passes cleanup pads, is thrown again on the way, and aborts the
 * initialisation of a static local. An op that throws has not returned and must not be timed.
 *
 * f0 = parse
 * fast peak (~0.3 ms):          parse -> scan    function
 *     wrong: parse; parse -> expand
 * slow peak (1 of 5, ~2.5 ms):    parse -> expand  function
 *     wrong: parse; parse -> scan
 */
#include "work.h"

#include <stdexcept>

static uint64_t destroyed;

/* Has a destructor, so that every frame that holds one has a cleanup pad. */
struct Guard {
    uint64_t weight;
    explicit Guard(uint64_t weight) : weight(weight) {}
    ~Guard() { destroyed += weight; }
};

struct Unlucky {
    explicit Unlucky(uint64_t key)
    {
        if (key % 3 == 2)
            throw std::runtime_error("static");
    }
};

FUNCTION uint64_t scan(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t expand(uint64_t key)
{
    spin_us(2500);
    return mix(key + 1);
}

FUNCTION void fail(uint64_t key)
{
    Guard guard(1);
    if (key % 2 == 0)
        throw std::runtime_error("below");
    throw (int)key;
}

FUNCTION uint64_t parse(uint64_t key)
{
    Guard guard(2);
    if (key % 3 == 2) {
        spin_us(50);
        if (key == 5)
            static Unlucky unlucky(key);
        if (key == 11)
            throw std::logic_error("f0 itself");
        fail(key);
    }
    if (key % 5 == 4)
        return expand(key) + 1;
    return scan(key) + 1;
}

/* Four frames between f0 and its catcher; the third throws again. */
FUNCTION uint64_t frame1(uint64_t key)
{
    Guard guard(4);
    return parse(key) ^ 1;
}

FUNCTION uint64_t frame2(uint64_t key)
{
    Guard guard(8);
    return frame1(key) ^ 2;
}

FUNCTION uint64_t frame3(uint64_t key)
{
    try {
        return frame2(key) ^ 3;
    } catch (const std::exception &) {
        destroyed += 100;
        throw;
    }
}

FUNCTION uint64_t frame4(uint64_t key)
{
    Guard guard(16);
    return frame3(key) ^ 4;
}

static uint64_t op(uint64_t key)
{
    destroyed = 0;
    uint64_t sum = 0;
    try {
        sum = key % 2 == 0 ? parse(key) : frame4(key);
    } catch (const std::exception &exception) {
        sum = (uint64_t)exception.what()[0];
    } catch (int number) {
        sum = (uint64_t)number + 1000;
    }
    return sum ^ (destroyed << 32);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1800), op);
}
