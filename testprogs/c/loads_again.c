/*
 * A thread that loads and unloads a library all the time, five times a second: whenever darc looks, as often, there is another state.
 * Beside it is a loop of calls that take so long that few of them fit between two changes.
 *
 * f0 = (of what a process runs, its busiest threads'): main, which runs all the time, so its time is divided
 *   main -> serve   what there is to analyse
 */
#include "work.h"

#include <dlfcn.h>
#include <pthread.h>

static volatile int stopped;

static void *load(void *unused)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    if (length < 0)
        exit(2);
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, "libserve.so");
    while (!stopped) {
        void *library = dlopen(path, RTLD_NOW);
        if (library == NULL)
            exit(3);
        usleep(200000);
        dlclose(library);
        usleep(200000);
    }
    return unused;
}

FUNCTION uint64_t serve(uint64_t key)
{
    spin_us(key % 10 == 9 ? 110000 : 3000);
    return mix(key);
}

int main(int argc, char **argv)
{
    pthread_t loader;
    if (pthread_create(&loader, NULL, load, NULL) != 0)
        return 2;
    int status = run_ops(parse_run(argc, argv, 20), serve);
    stopped = 1;
    pthread_join(loader, NULL);
    return status;
}
