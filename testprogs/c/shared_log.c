/*
 * One process against several (OSprof, OSDI 2006, figure 1, in user space): they append to a log that they share, under
 * one lock, and after every 64th record write it out, under the same lock. With one process there is one peak.
 *
 *   shared_log [N [OPS]]   N processes (1), each makes OPS appends (20000)
 *
 * f0 = append: how long it waits depends on N
 * fast peak (with any N, ~10 us):      append -> copy_record              function
 * slow peak (with N > 1, up to 9 ms):  append -> take_lock -> ... futex   syscall: another process has the lock
 */
#include "work.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

struct log {
    pthread_mutex_t lock;
    uint64_t records, sum;
};

static struct log *shared;

FUNCTION uint64_t copy_record(uint64_t key)
{
    spin_us(10);
    return mix(key);
}

FUNCTION void take_lock(void)
{
    pthread_mutex_lock(&shared->lock);
    NO_TAIL_CALL();
}

FUNCTION void append(uint64_t key)
{
    take_lock();
    shared->sum ^= copy_record(key);
    shared->records++;
    pthread_mutex_unlock(&shared->lock);
    NO_TAIL_CALL();
}

FUNCTION void write_out(void)
{
    struct timespec time = {.tv_sec = 0, .tv_nsec = 3000000};
    pthread_mutex_lock(&shared->lock);
    nanosleep(&time, NULL);
    pthread_mutex_unlock(&shared->lock);
    NO_TAIL_CALL();
}

static void appends(uint64_t ops)
{
    for (uint64_t key = 0; key < ops; key++) {
        append(key);
        spin_us(20);
        if (key % 64 == 63)
            write_out();
    }
}

int main(int argc, char **argv)
{
    unsigned processes = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1;
    uint64_t ops = argc > 2 ? strtoull(argv[2], NULL, 10) : 20000;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared->lock, &attributes);
    for (unsigned made = 1; made < processes; made++) {
        if (fork() == 0) {
            appends(ops);
            _exit(0);
        }
    }
    appends(ops);
    while (wait(NULL) > 0)
        ;
    printf("records=%llu\n", (unsigned long long)shared->records);
    return 0;
}
