/*
 * One thread, which serves requests until SIGUSR1 comes; then it makes a child by vfork(2) that ends with its
 * standard input, and meanwhile waits in the kernel where nothing can stop it.
 *   vfork_alone wait
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

int main(void)
{
    signal(SIGUSR1, ask);
    say_ready();
    for (uint64_t key = 0; !asked; key++)
        serve(key);
    pid_t child = vfork();
    if (child == 0) {
        char byte;
        while (read(STDIN_FILENO, &byte, 1) > 0)
            ;
        _exit(5);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 2;
    serve(1);
    printf("child=%d\n", WEXITSTATUS(status));
    return 0;
}
