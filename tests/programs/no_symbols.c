/* Compiled without the C library's shared objects and without symbols: most requests look something up, every sixteenth
 * builds an index anew. */

#include <unistd.h>

static unsigned entries[20000];
static volatile unsigned sink;

__attribute__((noinline)) static void look_up(unsigned key) {
    unsigned sum = key;
    for (unsigned at = key % 16; at < 20000; at += 16)
        sum = sum * 31 + entries[at];
    sink = sum;
}

__attribute__((noinline)) static void build_index(unsigned key) {
    unsigned sum = key;
    for (int round = 0; round < 16; ++round)
        for (unsigned at = 0; at < 20000; ++at)
            sum = sum * 31 + entries[at];
    sink = sum;
}

__attribute__((noinline)) static void serve(unsigned request) {
    if (request % 16 == 15)
        build_index(request);
    else
        look_up(request);
    if (request % 256 == 0)
        usleep(10);
}

int main(void) {
    for (unsigned request = 0;; ++request)
        serve(request);
}
