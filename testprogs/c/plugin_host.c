/*
 * f0 in a plugin that is loaded (dlopen) after the program has started: to name the library is to say that it may come
 * later.
 *
 * f0 = libserve.so:library_serve
 * fast peak (4 of 5 ops, ~0.3 ms):  library_serve -> library_lookup                     function
 *     wrong: library_serve; library_serve -> library_rebuild -> library_rehash
 * slow peak (1 of 5 ops, ~2.5 ms):  library_serve -> library_rebuild -> library_rehash  function
 *     wrong: library_serve; library_serve -> library_rebuild; library_serve -> library_lookup
 *
 *   plugin_host [N]         loads the plugin, runs N ops
 *   plugin_host wait [N]    prints "ready" *before* the plugin is loaded, and loads it when a byte
 *                           arrives on standard input; then as ever
 *   plugin_host reload [N]  unloads and loads the plugin after every period
 *   plugin_host wait moves  loads the plugin and prints "ready"; for every byte on standard input one period, then
 *                           "done"; where the byte is 'm' the plugin is unloaded before, and loaded elsewhere,
 *                           where it is 'r' it is loaded again where it was
 *   plugin_host inside [N] EVERY  N calls of serve_by_plugin, which calls library_rebuild of the plugin; that is unloaded and
 *                           loaded again before every so many of them
 */
#include "work.h"

#include <dlfcn.h>
#include <sys/mman.h>

static uint64_t (*serve)(uint64_t key);
static void *plugin;

static void load(void)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    if (length < 0)
        exit(2);
    path[length] = '\0';
    strcpy(strrchr(path, '/') + 1, "libserve.so");
    plugin = dlopen(path, RTLD_NOW);
    if (plugin == NULL)
        exit(3);
    *(void **)&serve = dlsym(plugin, "library_serve");
}

/* The plugin comes to lie where it was. */
static void load_again(void)
{
    Dl_info before, after;
    if (dladdr(*(void **)&serve, &before) == 0)
        exit(5);
    dlclose(plugin);
    load();
    if (dladdr(*(void **)&serve, &after) == 0 || after.dli_fbase != before.dli_fbase)
        exit(7);
}

/* Something else comes to lie where the plugin was. */
static void move_away(void)
{
    Dl_info where;
    if (dladdr(*(void **)&serve, &where) == 0)
        exit(5);
    dlclose(plugin);
    void *there = mmap(where.dli_fbase, 1 << 12, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (there != where.dli_fbase)
        exit(6);
    load();
}

static uint64_t op(uint64_t key)
{
    return serve(key);
}

static uint64_t (*rebuild)(uint64_t key);
static uint64_t calls, every;

/* f0 in the program, and all that takes its time in the plugin. */
FUNCTION uint64_t serve_by_plugin(uint64_t key)
{
    if (calls++ % every == 0) {
        if (plugin != NULL)
            dlclose(plugin);
        load();
        *(void **)&rebuild = dlsym(plugin, "library_rebuild");
    }
    uint64_t found = rebuild(key);
    NO_TAIL_CALL();
    return found;
}

int main(int argc, char **argv)
{
    if (argc > 3 && strcmp(argv[1], "inside") == 0) {
        every = strtoull(argv[3], NULL, 10);
        return run_ops(parse_run(2, argv + 1, 0), serve_by_plugin);
    }
    if (argc > 1 && strcmp(argv[1], "reload") == 0) {
        struct run run = parse_run(argc - 1, argv + 1, 400);
        uint64_t expected = 0;
        int differs = 0;
        for (uint64_t done = 0; done < run.ops; done += PERIOD) {
            load();
            uint64_t sum = one_period(op);
            expected = done == 0 ? sum : expected;
            differs |= sum != expected;
            dlclose(plugin);
        }
        return say_checksum(expected, differs);
    }
    if (argc > 2 && strcmp(argv[2], "moves") == 0) {
        char byte;
        uint64_t expected = 0;
        int differs = 0;
        brisk = 1;
        load();
        say_ready();
        while (read(0, &byte, 1) > 0) {
            if (byte == 'm')
                move_away();
            if (byte == 'r')
                load_again();
            uint64_t sum = one_period(op);
            expected = expected == 0 ? sum : expected;
            differs |= sum != expected;
            printf("done\n");
            fflush(stdout);
        }
        return say_checksum(expected, differs);
    }
    struct run run = parse_run(argc, argv, 1600);
    if (run.waits) {
        char byte;
        say_ready();
        if (read(0, &byte, 1) < 1)
            return 4;
    }
    load();
    return run_ops(run, op);
}
