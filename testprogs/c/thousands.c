/*
 * Prints "ready" and loads (dlopen) a library of 1500 functions, one_1000 to one_2499 in libthousands.so, when the first
 * byte arrives on standard input. For every byte it calls each of them once and prints "done". There is no f0, and there
 * are no peaks to speak of.
 */
#include "work.h"

#include <dlfcn.h>

static uint64_t (*call_all)(uint64_t);

static void load(void)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    if (length < 0)
        exit(2);
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, "libthousands.so");
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL)
        exit(3);
    *(void **)&call_all = dlsym(library, "call_all");
}

int main(void)
{
    char byte;
    uint64_t sum = 0;
    say_ready();
    while (read(0, &byte, 1) > 0) {
        if (call_all == NULL)
            load();
        sum = call_all(1);
        printf("done\n");
        fflush(stdout);
    }
    return say_checksum(sum, 0);
}
