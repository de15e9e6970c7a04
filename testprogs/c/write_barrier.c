/*
 * A write barrier: memory that may not be written until the handler of the signal that this raises says so, as collectors
 * of garbage have it. Then work that touches no new memory, and a read into new memory.
 *
 * f0 = collect: the fault ends in a signal
 * fast peak (4 of 5 ops, ~0.3 ms):    collect -> compute    function
 * slow peak (1 of 5 ops, ~4 ms):      collect -> compute    function
 *     wrong: collect -> compute -> (page fault); collect -> (page fault)
 */
#include "work.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>

enum { SIZE = 1 << 16 };

static char *kept, *fresh;
static int zeros;

static void may_be_written(int signal)
{
    (void)signal;
    mprotect(kept, SIZE, PROT_READ | PROT_WRITE);
}

FUNCTION uint64_t compute(uint64_t key)
{
    spin_us(key % 5 == 4 ? 4000 : 300);
    return mix(key);
}

FUNCTION uint64_t collect(uint64_t key)
{
    *(volatile char *)kept = (char)key;
    uint64_t result = compute(key);
    /* The kernel ends it early where a thread is stopped. */
    if (read(zeros, fresh, SIZE) <= 0)
        exit(2);
    return result + 1;
}

static uint64_t op(uint64_t key)
{
    mprotect(kept, SIZE, PROT_READ);
    madvise(fresh, SIZE, MADV_DONTNEED);
    return collect(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 2000);
    zeros = open("/dev/zero", O_RDONLY);
    kept = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fresh = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action = {.sa_handler = may_be_written};
    if (zeros < 0 || kept == MAP_FAILED || fresh == MAP_FAILED || sigaction(SIGSEGV, &action, NULL) != 0)
        return 2;
    memset(kept, 1, SIZE);
    return run_ops(run, op);
}
