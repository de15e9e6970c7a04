/*
 * Memory whose pages another thread brings in when they are touched (userfaultfd(2)), as for a program that was moved from
 * another machine: a page fault waits until that thread has filled the page.
 *
 * f0 = look_up: faults are told where the kernel lets darc see them
 * fast peak (4 of 5 ops, ~0.3 ms):   look_up                    function
 * slow peak (1 of 5 ops, ~3 ms):     look_up -> (page fault)    blocked, woken by the thread "pager" in bring_in -> … -> ioctl
 */
#include "work.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { SIZE = 4096 };

static char *page;
static int faults;

FUNCTION void bring_in(uint64_t address)
{
    static char content[SIZE] __attribute__((aligned(SIZE)));
    struct uffdio_copy copy = {.dst = address & -(uint64_t)SIZE, .src = (uint64_t)content, .len = SIZE};
    spin_us(3000);
    ioctl(faults, UFFDIO_COPY, &copy);
    NO_TAIL_CALL();
}

static void *pager(void *unused)
{
    struct uffd_msg fault;
    prctl(PR_SET_NAME, "pager");
    while (read(faults, &fault, sizeof fault) == sizeof fault)
        bring_in(fault.arg.pagefault.address);
    return unused;
}

FUNCTION uint64_t look_up(uint64_t key)
{
    spin_us(300);
    return mix(key + (uint64_t)*(volatile char *)page);
}

static uint64_t op(uint64_t key)
{
    if (key % 5 == 4)
        madvise(page, SIZE, MADV_DONTNEED);
    return look_up(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 2000);
    struct uffdio_api api = {.api = UFFD_API};
    page = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register all = {.range = {(uint64_t)page, SIZE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    pthread_t thread;
    faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (page == MAP_FAILED || ioctl(faults, UFFDIO_API, &api) != 0 || ioctl(faults, UFFDIO_REGISTER, &all) != 0)
        return 2;
    if (pthread_create(&thread, NULL, pager, NULL) != 0)
        return 2;
    return run_ops(run, op);
}
