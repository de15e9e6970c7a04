/*
 * Every fifth op throws in a destructor. The exception is caught at each level in turn, up to f0 itself; on its way it is
 * caught and thrown again, at last as another one.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> outer -> middle -> inner -> scan                        function
 *     wrong: serve; serve -> outer
 * slow peak (1 of 5 ops, ~2.5 ms):  serve -> outer -> middle -> inner -> Thrower::~Thrower -> fail   function
 *     wrong: serve; serve -> outer; serve -> outer -> middle; serve -> recover
 */
#include "work.h"

#include <stdexcept>

/* Where the exception is to be caught: 0 is the innermost function. */
static volatile uint64_t level;

FUNCTION uint64_t scan(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t recover(uint64_t key)
{
    spin_us(20);
    return mix(key + 1);
}

FUNCTION void fail(uint64_t key)
{
    spin_us(2500);
    throw std::runtime_error(key % 2 == 0 ? "even" : "odd");
}

struct Thrower {
    uint64_t key;
    explicit Thrower(uint64_t key) : key(key) {}
    FUNCTION ~Thrower() noexcept(false);
};

FUNCTION Thrower::~Thrower() noexcept(false)
{
    if (key % 5 == 4)
        fail(key);
    NO_TAIL_CALL();
}

FUNCTION uint64_t inner(uint64_t key)
{
    try {
        Thrower thrower(key);
        if (key % 5 != 4)
            return scan(key) + 1;
    } catch (const std::runtime_error &) {
        if (level != 0)
            throw;
        return recover(key) ^ 1;
    }
    return 0;
}

FUNCTION uint64_t middle(uint64_t key)
{
    try {
        return inner(key) + 2;
    } catch (const std::runtime_error &exception) {
        if (level > 1)
            throw;
        return recover(key) ^ (uint64_t)exception.what()[0];
    }
}

FUNCTION uint64_t outer(uint64_t key)
{
    try {
        return middle(key) + 3;
    } catch (const std::exception &exception) {
        if (level > 2)
            throw std::logic_error(exception.what());
        return recover(key) ^ (uint64_t)exception.what()[1];
    }
}

FUNCTION uint64_t serve(uint64_t key)
{
    level = key / 5 % 4;
    try {
        return outer(key) + 4;
    } catch (const std::logic_error &exception) {
        return recover(key) ^ (uint64_t)exception.what()[2];
    }
}

static uint64_t op(uint64_t key)
{
    return serve(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1800), op);
}
