/*
 * Four of five ops throw and catch below f0, which is the short way; the fifth does not, and takes long. Calls that exceptions
 * leave are as much of an op as those that return.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):  serve -> guarded -> parse -> reject   function
 *     wrong: serve; serve -> guarded; serve -> guarded -> parse; serve -> report
 * slow peak (1 of 5 ops, ~2.5 ms):  serve -> guarded -> parse -> expand   function
 *     wrong: serve; serve -> guarded; serve -> guarded -> parse; serve -> guarded -> parse -> reject
 */
#include "work.h"

#include <stdexcept>

FUNCTION uint64_t expand(uint64_t key)
{
    spin_us(2500);
    return mix(key);
}

FUNCTION void reject(uint64_t key)
{
    spin_us(300);
    throw std::runtime_error(key % 2 == 0 ? "even" : "odd");
}

FUNCTION uint64_t report(uint64_t key)
{
    spin_us(5);
    return mix(key + 1);
}

FUNCTION uint64_t parse(uint64_t key)
{
    if (key % 5 != 4)
        reject(key);
    return expand(key) + 1;
}

FUNCTION uint64_t guarded(uint64_t key)
{
    try {
        return parse(key) + 1;
    } catch (const std::exception &exception) {
        return mix(key ^ (uint64_t)exception.what()[0]);
    }
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t parsed = guarded(key);
    return (parsed ^ report(key)) + 1;
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 1200), serve);
}
