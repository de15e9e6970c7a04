/*
 * The workloads of the DARC paper (SIGMETRICS 2008, sections 8.1 and 9), called from user space. Not part of
 * any test: docs/experiments.md says how they are run. Prints what one op took, seen from the program itself.
 *
 *   paper_reads zero N FILE     N reads of zero bytes            f0 = read_nothing
 *   paper_reads stat N FILE     N calls of stat                  f0 = stat_file
 *   paper_reads random N FILE   N direct reads of a megabyte each, anywhere in FILE, which is made if it is not
 *                               there (64 MiB)                   f0 = read_block
 */
#include "work.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { BLOCK = 1 << 20, BLOCKS = 64 };

static int file;
static const char *path;
static char *buffer;

FUNCTION int64_t read_nothing(uint64_t i)
{
    (void)i;
    int64_t got = read(file, buffer, 0);
    NO_TAIL_CALL();
    return got;
}

FUNCTION int64_t stat_file(uint64_t i)
{
    (void)i;
    struct stat about;
    int64_t failed = stat(path, &about);
    NO_TAIL_CALL();
    return failed;
}

FUNCTION int64_t read_block(uint64_t i)
{
    off_t at = (off_t)(mix(i + 1) % BLOCKS) * BLOCK;
    int64_t got = pread(file, buffer, BLOCK, at) - BLOCK;
    NO_TAIL_CALL();
    return got;
}

static void open_file(int flags)
{
    file = open(path, flags | O_RDONLY);
    if (file < 0) {
        perror(path);
        exit(2);
    }
}

static void make_file(void)
{
    if (access(path, F_OK) == 0)
        return;
    int new = open(path, O_CREAT | O_WRONLY, 0600);
    for (int i = 0; new >= 0 && i < BLOCKS; i++) {
        memset(buffer, i + 1, BLOCK);
        if (write(new, buffer, BLOCK) != BLOCK)
            break;
    }
    if (new < 0 || fsync(new) != 0) {
        perror(path);
        exit(2);
    }
    close(new);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc != 4 || posix_memalign((void **)&buffer, 4096, BLOCK) != 0) {
        fprintf(stderr, "usage: paper_reads zero|stat|random N FILE\n");
        return 2;
    }
    uint64_t ops = strtoull(argv[2], NULL, 10);
    int64_t (*op)(uint64_t) = stat_file;
    path = argv[3];
    if (strcmp(argv[1], "zero") == 0) {
        open_file(0);
        op = read_nothing;
    } else if (strcmp(argv[1], "random") == 0) {
        make_file();
        open_file(O_DIRECT);
        op = read_block;
    }
    int64_t wrong = 0;
    uint64_t start = now();
    for (uint64_t i = 0; i < ops; i++)
        wrong |= op(i);
    uint64_t took = now() - start;
    printf("%.1f ns an op%s\n", (double)took / (double)(ops ? ops : 1), wrong ? ", and something failed" : "");
    return wrong != 0;
}
