/*
 * Memory that is used for the first time: the slow ops touch fresh pages, one byte in each, and the kernel brings
 * them in.
 *
 * f0 = fill: faults are told where the kernel lets darc see them
 * fast peak (4 of 5 ops, ~0.05 ms):   fill -> touch          function
 * slow peak (1 of 5 ops, ~0.5 ms):    fill -> touch -> (page fault)
 */
#include "work.h"

#include <sys/mman.h>

enum { PAGES = 512, SIZE = 4096 };

static char *pages;

FUNCTION uint64_t touch(uint64_t key)
{
    spin_us(50);
    if (key % 5 == 4)
        for (int page = 0; page < PAGES; page++)
            pages[(size_t)page * SIZE] = (char)key;
    return mix(key);
}

FUNCTION uint64_t fill(uint64_t key)
{
    return touch(key) + 1;
}

static uint64_t op(uint64_t key)
{
    uint64_t result = fill(key);
    /* What was touched is fresh again; and each fault makes records, which are to be read meanwhile. */
    if (key % 5 == 4) {
        madvise(pages, (size_t)PAGES * SIZE, MADV_DONTNEED);
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return result;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 2000);
    pages = mmap(NULL, (size_t)PAGES * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || madvise(pages, (size_t)PAGES * SIZE, MADV_NOHUGEPAGE) != 0)
        return 2;
    return run_ops(run, op);
}
