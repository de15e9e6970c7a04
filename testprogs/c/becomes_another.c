/*
 * A program that becomes another after 200 ops; the last argument says which:
 *   itself     the same program once more
 *   script     a script, whose interpreter is a shell
 *   memfd      a file without a name (fexecve)
 *
 * f0 = serve; the result counts: the lines of both programs.
 */
#include "work.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

extern char **environ;

FUNCTION uint64_t lookup(uint64_t key)
{
    spin_us(100);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return lookup(key) + 1;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[argc - 1] : "";
    struct run run = {.ops = 200, .waits = 0};
    if (run_ops(run, serve) != 0)
        return 2;
    char *again[] = {argv[0], "end", NULL};
    if (strcmp(mode, "itself") == 0) {
        execv("/proc/self/exe", again);
    } else if (strcmp(mode, "script") == 0) {
        char *script[] = {"sh", "-c", "echo script", NULL};
        char path[] = "/tmp/becomes_another.XXXXXX";
        int file = mkstemp(path);
        if (file < 0 || fchmod(file, 0700) != 0)
            return 77;
        dprintf(file, "#!/bin/sh\nrm %s\necho script\n", path);
        close(file);
        script[0] = path;
        script[1] = NULL;
        execv(path, script);
    } else if (strcmp(mode, "memfd") == 0) {
        int self = open("/proc/self/exe", O_RDONLY), file = memfd_create("another", MFD_CLOEXEC);
        char block[65536];
        ssize_t length;
        while ((length = read(self, block, sizeof block)) > 0)
            if (write(file, block, (size_t)length) != length)
                return 77;
        fexecve(file, again, environ);
    }
    return strcmp(mode, "end") == 0 ? 5 : 3;
}
