/*
 * Blocks that are replaced one by one: small ones are kept for later, large ones are given back to the kernel, page by page.
 *
 * f0 = replace
 * fast peak (4 of 5 ops, ~0.05 ms):       replace -> keep                    function
 *     wrong: replace; replace -> release
 * slow peak (1 of 5 ops, ~0.3 to 15 ms):  replace -> release -> … -> munmap  syscall
 *     wrong: replace; replace -> keep; replace -> release
 */
#include "work.h"

#include <sys/mman.h>

enum { LARGE = 32 << 20 };

static size_t length;
static void *block;

FUNCTION uint64_t keep(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION uint64_t release(uint64_t key)
{
    int failed = munmap(block, length);
    return mix(key) + (uint64_t)failed;
}

FUNCTION uint64_t replace(uint64_t key)
{
    return (key % 5 == 4 ? release(key) : keep(key)) + 1;
}

static uint64_t op(uint64_t key)
{
    if (key % 5 == 4) {
        length = brisk ? LARGE >> 8 : LARGE;
        /* Shared, so that its pages are small ones; each of them is there from the start. */
        block = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (block == MAP_FAILED)
            abort();
    }
    return replace(key);
}

int main(int argc, char **argv)
{
    return run_ops(parse_run(argc, argv, 800), op);
}
