/*
 * Most of the time passes in code that the program made itself, as run-times do, in memory without a file and with no unwind
 * table: its thread's stack leads nowhere. The other thread takes little.
 */
#include "work.h"

#include <pthread.h>
#include <sys/mman.h>

/* xor ebp, ebp; sub rsp, 4096; again: cmp byte [rdi], 0; je again; add rsp, 4096; ret: until it is told to end. It keeps rbp. */
static const unsigned char code[] = {
    0x55,                                     /* push rbp */
    0x31, 0xed,                               /* xor ebp, ebp */
    0x48, 0x81, 0xec, 0x00, 0x10, 0x00, 0x00, /* sub rsp, 4096 */
    0x80, 0x3f, 0x00,                         /* again: cmp byte [rdi], 0 */
    0x74, 0xfb,                               /* je again */
    0x48, 0x81, 0xc4, 0x00, 0x10, 0x00, 0x00, /* add rsp, 4096 */
    0x5d,                                     /* pop rbp */
    0xc3,                                     /* ret */
};

static volatile char ends;

static void *run_made(void *made)
{
    ((void (*)(volatile char *))made)(&ends);
    return NULL;
}

FUNCTION uint64_t tick(uint64_t key)
{
    spin_us(200);
    usleep(2000);
    return mix(key);
}

static void *tick_on(void *unused)
{
    (void)unused;
    for (uint64_t key = 0; !ends; key++)
        tick(key);
    return NULL;
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 0);
    int file = memfd_create("made", 0);
    if (file < 0 || write(file, code, sizeof code) != (ssize_t)sizeof code)
        return 2;
    void *made = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, file, 0);
    pthread_t threads[2];
    if (made == MAP_FAILED || pthread_create(&threads[0], NULL, run_made, made) != 0 ||
        pthread_create(&threads[1], NULL, tick_on, NULL) != 0)
        return 2;
    if (run.waits)
        say_ready();
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    ends = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    printf("checksum=0\n");
    return 0;
}
