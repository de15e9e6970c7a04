/*
 * The kernel has threads of this process work for io_uring: one that is blocked in a read, and where that is permitted one that
 * looks for new requests all the time. They never run the program's code.
 *
 * f0 = serve; exits with 77 where there is no io_uring.
 */
#include "work.h"

#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

FUNCTION uint64_t step(uint64_t key)
{
    spin_us(200);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return step(key) + 1;
}

/* Asks for a byte of a file, from a worker. */
static int ask(unsigned flags, int file)
{
    static char byte;
    struct io_uring_params ring = {.flags = flags, .sq_thread_idle = 1000000};
    int fd = (int)syscall(SYS_io_uring_setup, 8, &ring);
    if (fd < 0)
        return -1;
    size_t length = ring.sq_off.array + ring.sq_entries * sizeof(unsigned);
    char *queue = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQ_RING);
    length = ring.sq_entries * sizeof(struct io_uring_sqe);
    struct io_uring_sqe *entry = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, IORING_OFF_SQES);
    if (queue == MAP_FAILED || (void *)entry == MAP_FAILED)
        return -1;
    *entry = (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = file, .len = 1, .flags = IOSQE_ASYNC};
    entry->addr = (uintptr_t)&byte;
    *(unsigned *)(queue + ring.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(queue + ring.sq_off.tail), 1, __ATOMIC_RELEASE);
    return (int)syscall(SYS_io_uring_enter, fd, 1, 0, 0, NULL, 0);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 2000);
    int ends[2];
    if (pipe(ends) != 0 || ask(0, ends[0]) != 1)
        return 77;
    ask(IORING_SETUP_SQPOLL, ends[0]);
    return run_ops(run, serve);
}
