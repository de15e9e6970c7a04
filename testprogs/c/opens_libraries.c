/*
 * A library is opened and closed again, several times in a fifth of the ops, by a function that knows nobody but dlopen through a pointer.
 *
 * f0 = serve: the calls of dlopen have no place in a path
 * fast peak (4 of 5 ops, ~20 us):    serve -> step  function
 * slow peak (1 of 5 ops, ~0.6 ms):   not decided: in serve -> load or below it
 * wrong: serve -> load takes the time itself
 */
#include "work.h"

#include <dlfcn.h>

static void *(*volatile opens)(const char *, int) = dlopen;
static char path[4096];

FUNCTION uint64_t step(uint64_t key)
{
    spin_us(20);
    return mix(key);
}

FUNCTION uint64_t load(uint64_t key)
{
    for (int times = 0; times < 20; times++) {
        void *library = opens(path, RTLD_NOW);
        if (library == NULL)
            exit(3);
        dlclose(library);
    }
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return key % 5 == 4 ? load(key) : step(key);
}

int main(int argc, char **argv)
{
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    if (length < 0)
        exit(2);
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, "libserve.so");
    return run_ops(parse_run(argc, argv, 20000), serve);
}
