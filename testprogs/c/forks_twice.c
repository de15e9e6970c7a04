/*
 * One thread, which serves requests. When SIGUSR1 comes it makes a child that makes another one and ends, as daemons do. The
 * grandchild is nobody's child, and ends with its standard input, which is the program's.
 *   forks_twice wait
 *
 * f0 = serve
 * one peak: serve -> step   function
 */
#include "work.h"

#include <signal.h>
#include <sys/wait.h>

FUNCTION uint64_t step(uint64_t key)
{
    spin_us(200);
    return mix(key);
}

FUNCTION uint64_t serve(uint64_t key)
{
    return step(key) + 1;
}

static volatile sig_atomic_t asked;

static void ask(int signal)
{
    asked = signal;
}

static void fork_twice(void)
{
    pid_t child = fork();
    if (child > 0) {
        waitpid(child, NULL, 0);
        return;
    }
    if (fork() > 0)
        _exit(0);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    _exit(0);
}

int main(void)
{
    signal(SIGUSR1, ask);
    say_ready();
    for (uint64_t key = 0; !stdin_closed(); key++) {
        serve(key % PERIOD);
        if (asked) {
            asked = 0;
            fork_twice();
        }
    }
    puts("served until the input ended");
    return 0;
}
