/*
 * Reads from the page cache against reads that wait: the same op, two system calls as causes. The
 * slow reads are of a pipe that another thread fills late (no disk, no privileges needed).
 *
 * f0 = fetch
 * fast peak (4 of 5 ops, ~0.05 to 1 ms):  fetch -> read_cached -> … -> pread64  syscall
 *     wrong: fetch; fetch -> read_cached; fetch -> read_device -> … -> read
 * slow peak (1 of 5 ops, ~5 to 9 ms):      fetch -> read_device -> … -> read     syscall
 *     wrong: fetch; fetch -> read_device; fetch -> read_cached -> … -> pread64
 */
#include "work.h"

#include <pthread.h>
#include <sys/mman.h>

enum { CACHED_BYTES = 256 << 10 };

static int cached, request[2], device[2];
static char *buffer;

static void *slow_device(void *unused)
{
    (void)unused;
    char byte;
    while (read(request[0], &byte, 1) == 1) {
        struct timespec time = {.tv_sec = 0, .tv_nsec = brisk ? 50000 : 5000000};
        nanosleep(&time, NULL);
        if (write(device[1], &byte, 1) != 1)
            abort();
    }
    return NULL;
}

FUNCTION uint64_t read_cached(uint64_t key)
{
    if (pread(cached, buffer, CACHED_BYTES, 0) != CACHED_BYTES)
        abort();
    return mix(key + (unsigned char)buffer[key]);
}

FUNCTION uint64_t read_device(uint64_t key)
{
    char byte;
    if (read(device[0], &byte, 1) != 1)
        abort();
    return mix(key + (unsigned char)byte);
}

FUNCTION uint64_t fetch(uint64_t key)
{
    if (key % 5 == 4)
        return read_device(key) + 1;
    return read_cached(key) + 1;
}

static uint64_t op(uint64_t key)
{
    char byte = (char)key;
    if (key % 5 == 4 && write(request[1], &byte, 1) != 1)
        abort();
    return fetch(key);
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1800);
    buffer = malloc(CACHED_BYTES);
    cached = memfd_create("cached", 0);
    if (buffer == NULL || cached < 0 || pipe(request) != 0 || pipe(device) != 0)
        return 2;
    for (int i = 0; i < CACHED_BYTES; i++)
        buffer[i] = (char)(i * 7);
    if (write(cached, buffer, CACHED_BYTES) != CACHED_BYTES)
        return 3;
    pthread_t thread;
    if (pthread_create(&thread, NULL, slow_device, NULL) != 0)
        return 4;
    return run_ops(run, op);
}
