/*
 * Calls of several kinds that an experiment can make longer, and one whose time reaches some of the ops only.
 *
 * One of five ops of `serve` takes 0.03 ms, in a handler that is called through a pointer (small); one writes for 0.2 ms into a file
 * in memory (store); one takes 1.3 ms, in compile, which is called by match, which is called by route; one takes 4 ms, of which
 * encode has 2 ms: in every other such op what follows waits until 4 ms after the op's beginning, in the others for 2 ms more,
 * so half of the ops become longer with encode; one sleeps for 9 ms (nap).
 */
#include "work.h"
#include <sys/mman.h>

static int file;
static char block[1 << 14];

FUNCTION void small(void)
{
    spin_us(30);
}

FUNCTION void other(void)
{
    spin_us(5);
}

FUNCTION void store(void)
{
    uint64_t since = cycles();
    do {
        if (pwrite(file, block, sizeof(block), 0) != (ssize_t)sizeof(block))
            abort();
    } while (cycles() - since < 200ull * CYCLES_PER_US / (brisk ? 100 : 1));
}

FUNCTION void compile(void)
{
    spin_us(1200);
}

FUNCTION void match(void)
{
    compile();
    NO_TAIL_CALL();
}

FUNCTION void route(void)
{
    match();
    spin_us(60);
    NO_TAIL_CALL();
}

FUNCTION void encode(void)
{
    spin_us(2000);
}

FUNCTION void nap(void)
{
    struct timespec time = {.tv_nsec = brisk ? 90000 : 9000000};
    while (nanosleep(&time, &time) != 0)
        ;
}

static void (*volatile handlers[])(void) = {small, other};

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t since = cycles();
    switch (key % 5) {
    case 0:
        handlers[0]();
        break;
    case 1:
        store();
        break;
    case 2:
        route();
        break;
    case 3:
        encode();
        if (key % 2 == 0)
            while (cycles() - since < 4000ull * CYCLES_PER_US / (brisk ? 100 : 1))
                ;
        else
            spin_us(2000);
        break;
    default:
        nap();
    }
    return mix(key);
}

int main(int argc, char **argv)
{
    file = memfd_create("store", 0);
    memset(block, 1, sizeof(block));
    return run_ops(parse_run(argc, argv, 1000), serve);
}
