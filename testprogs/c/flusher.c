/*
 * Behaviour that changes with time (OSprof, OSDI 2006, figure 9, in user space): a thread reads blocks, and every half
 * a second another one writes back what has gathered, under the lock that readers need.
 *
 *   flusher [SECONDS]   (5)
 *
 * f0 = read_block: how often it waits depends on the machine
 * fast peak (most ops, ~50 us):            read_block -> copy_block             function
 * slow peak (twice a second, up to 40 ms): read_block -> ... futex              syscall: write_back has the lock
 */
#include "work.h"

#include <pthread.h>

static pthread_mutex_t cache = PTHREAD_MUTEX_INITIALIZER;
static volatile int ended;

static void sleep_ms(long ms)
{
    struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

FUNCTION uint64_t copy_block(uint64_t key)
{
    spin_us(50);
    return mix(key);
}

FUNCTION uint64_t read_block(uint64_t key)
{
    pthread_mutex_lock(&cache);
    uint64_t block = copy_block(key);
    pthread_mutex_unlock(&cache);
    return block + 1;
}

FUNCTION void write_back(void)
{
    pthread_mutex_lock(&cache);
    sleep_ms(40);
    pthread_mutex_unlock(&cache);
    NO_TAIL_CALL();
}

static void *flushes(void *unused)
{
    while (!ended) {
        sleep_ms(460);
        write_back();
    }
    return unused;
}

int main(int argc, char **argv)
{
    uint64_t seconds = argc > 1 ? strtoull(argv[1], NULL, 10) : 5;
    pthread_t thread;
    if (pthread_create(&thread, NULL, flushes, NULL) != 0)
        return 2;
    uint64_t sum = 0, start = cycles();
    for (uint64_t key = 0; cycles() - start < seconds * 1000000 * CYCLES_PER_US; key++) {
        sum ^= read_block(key);
        spin_us(100);
    }
    ended = 1;
    pthread_join(thread, NULL);
    printf("ended=%d\n", sum != 0);
    return 0;
}
