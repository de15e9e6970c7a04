/*
 * A program that does not want to be measured: a process beside it that shares its table of descriptors (and
 * nothing else) waits for the descriptor that a tracer opens in its name, and puts another file in its place.
 *
 *   swaps_descriptors wait FILE
 *
 * FILE is put there by turns opened with O_PATH, for reading, and for reading and writing.
 *
 * f0 = serve. The result counts.
 */
#include "work.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>

static char stack[64 << 10] __attribute__((aligned(16)));

FUNCTION uint64_t serve(uint64_t key)
{
    spin_us(2);
    return mix(key);
}

static int swap(void *file)
{
    enum { WAYS = 3 };
    int others[WAYS] = {open(file, O_PATH), open(file, O_RDONLY), open(file, O_RDWR)};
    int next = dup(0);
    close(next);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    puts("ready");
    fflush(stdout);
    for (unsigned turn = 0;; turn++) {
        while (fcntl(next, F_GETFD) < 0)
            ;
        dup2(others[turn % WAYS], next);
        while (fcntl(next, F_GETFD) >= 0)
            ;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    if (clone(swap, stack + sizeof stack - 64, CLONE_FILES | SIGCHLD, argv[2]) < 0)
        return 77;
    struct pollfd input = {.fd = 0, .events = POLLIN};
    uint64_t sum = 0;
    for (uint64_t key = 0; poll(&input, 1, 0) == 0; key++)
        sum = mix(sum ^ serve(key));
    printf("%d\n", sum != 0);
    return 0;
}
