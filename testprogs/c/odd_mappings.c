/*
 * Programs whose memory is not as usual; the last argument says how:
 *   locked     all memory is locked, future mappings too
 *   future     future mappings are locked, those there are not
 *   limited    no more address space may be mapped (RLIMIT_AS)
 *   shared     the page of f0 is a shared, writable mapping of a file: writing to it writes the file
 *   crowded    all addresses within 2 GiB around the code are taken
 *   nearly     448 MiB more address space may be mapped, and each op maps 192 of them
 *   grows      each op has its heap, which begins right behind the program, grow by 64 MiB (brk)
 *
 *   odd_mappings N MODE, odd_mappings wait MODE
 *
 * f0 = serve: measured or refused; the result counts. With "shared" the file is compared at the end. With "nearly" and "grows" it
 * says how often it got no memory.
 */
#include "work.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>

enum { PAGE = 4096, LEFT = 448 << 20, TAKEN = 192 << 20, GROWTH = 64 << 20 };

static enum { NOTHING, MAPS, GROWS } does;
static int refused;

__attribute__((noinline)) static void take_memory(void)
{
    if (does == MAPS) {
        void *taken = mmap(NULL, TAKEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        refused += taken == MAP_FAILED || munmap(taken, TAKEN) != 0;
    } else if (does == GROWS) {
        refused += sbrk(GROWTH) == (void *)-1 || sbrk(-GROWTH) == (void *)-1;
    }
}

/* In a page of its own, for it may be mapped anew. */
__attribute__((aligned(4096), section(".text.page"), noinline)) uint64_t serve(uint64_t key)
{
    take_memory();
    spin_us(50);
    return mix(key) + 1;
}

__attribute__((aligned(4096), section(".text.page"), noinline)) uint64_t behind(uint64_t key)
{
    return mix(key) + 2;
}

static int share_page(void)
{
    char *page = (char *)(uintptr_t)serve;
    static char copy[PAGE];
    memcpy(copy, page, PAGE);
    char name[] = "/tmp/shared-text-XXXXXX";
    int file = mkstemp(name);
    if (file < 0 || unlink(name) != 0 || write(file, copy, PAGE) != PAGE)
        return -1;
    if (mmap(page, PAGE, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_SHARED | MAP_FIXED, file, 0) != page)
        return -1;
    return file;
}

/* Maps whatever is free within 2 GiB before and behind the code, without using memory. */
static void crowd(void)
{
    for (uintptr_t size = (uintptr_t)1 << 30; size >= PAGE; size >>= 1) {
        uintptr_t here = (uintptr_t)serve & ~(uintptr_t)(PAGE - 1);
        uintptr_t reach = (uintptr_t)5 << 29;
        uintptr_t from = here > reach ? here - reach : PAGE * 16;
        for (uintptr_t at = from & ~(size - 1); at < here + reach; at += size)
            mmap((void *)at, size, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    }
}

static int limit_to_little_more(void)
{
    unsigned long pages = 0;
    FILE *sizes = fopen("/proc/self/statm", "r");
    if (!sizes || fscanf(sizes, "%lu", &pages) != 1)
        return -1;
    fclose(sizes);
    struct rlimit limit = {pages * PAGE + LEFT, pages * PAGE + LEFT};
    return setrlimit(RLIMIT_AS, &limit);
}

/* Executes the program anew if that is needed for its heap to begin right behind it. */
static int place_heap(char **argv)
{
    int persona = personality(0xffffffff);
    if (persona & ADDR_NO_RANDOMIZE)
        return 0;
    if (personality(persona | ADDR_NO_RANDOMIZE) == -1)
        return -1;
    return execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    const char *mode = argv[argc - 1];
    if (strcmp(mode, "grows") == 0 && place_heap(argv) != 0)
        return 77;
    argc--;
    struct run run = parse_run(argc, argv, 2000);
    int file = -1;
    if (strcmp(mode, "locked") == 0) {
        if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0)
            return 77;
    } else if (strcmp(mode, "future") == 0) {
        if (mlockall(MCL_FUTURE) != 0)
            return 77;
    } else if (strcmp(mode, "limited") == 0) {
        struct rlimit limit = {1 << 20, 1 << 20};
        setrlimit(RLIMIT_AS, &limit);
    } else if (strcmp(mode, "shared") == 0) {
        if ((file = share_page()) < 0)
            return 77;
    } else if (strcmp(mode, "crowded") == 0) {
        crowd();
    } else if (strcmp(mode, "nearly") == 0) {
        does = MAPS;
        if (limit_to_little_more() != 0)
            return 77;
    } else if (strcmp(mode, "grows") == 0) {
        does = GROWS;
    } else {
        return 2;
    }
    int status = run_ops(run, serve) + (behind(1) == 0);
    static char stored[PAGE];
    if (file >= 0 && (pread(file, stored, PAGE, 0) != PAGE || stored[0] == (char)0xcc ||
                      stored[0] == (char)0xe9))
        printf("the file was written\n");
    if (refused)
        printf("no memory was left %d times\n", refused);
    return status;
}
