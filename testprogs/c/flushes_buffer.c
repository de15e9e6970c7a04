/*
 * A log that collects lines in a buffer, and writes it out when it is full: most lines are only formatted.
 *
 * f0 = log_line
 * fast peak (4 of 5 ops, ~0.05 ms):       log_line -> format                  function
 *     wrong: log_line; log_line -> flush
 * slow peak (1 of 5 ops, ~0.5 to 20 ms):  log_line -> flush -> … -> pwrite64  syscall
 *     wrong: log_line; log_line -> format; log_line -> flush
 */
#include "work.h"

#include <sys/mman.h>

enum { SIZE = 8 << 20, LINES = 5 };

static char *buffer;
static size_t size, filled;
static int file;

FUNCTION uint64_t format(uint64_t key)
{
    spin_us(50);
    buffer[filled] = (char)key;
    filled += size / LINES;
    return mix(key);
}

FUNCTION void flush(void)
{
    for (size_t done = 0; done < size;) {
        ssize_t wrote = pwrite(file, buffer + done, size - done, (off_t)done);
        if (wrote <= 0)
            abort();
        done += (size_t)wrote;
    }
    filled = 0;
}

FUNCTION uint64_t log_line(uint64_t key)
{
    uint64_t line = format(key);
    if (filled + size / LINES > size)
        flush();
    return line + 1;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 1500);
    size = brisk ? SIZE / 100 : SIZE;
    buffer = malloc(size);
    /* A file in memory: no disk is waited for. */
    file = memfd_create("log", 0);
    if (buffer == NULL || file < 0)
        return 2;
    memset(buffer, '.', size);
    return run_ops(run, log_line);
}
