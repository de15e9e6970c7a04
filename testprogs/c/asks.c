/*
 * Every op waits for a byte of standard input, blocked in read(2); the end of the input ends the program.
 *   asks wait   prints "ready", then one op for each byte
 * SIGUSR1 makes it fork in the handler: the child waits for a byte as well and ends, and then the program prints how.
 *
 * f0 = serve:  serve -> ask -> read -> syscall
 */
#include "work.h"

#include <signal.h>
#include <sys/wait.h>

static volatile sig_atomic_t in_child;

static void make_child(int signal)
{
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        in_child = 1;
        return;
    }
    waitpid(child, &status, 0);
    dprintf(STDOUT_FILENO, "signal %d: child=%d\n", signal, status);
}

FUNCTION int ask(void)
{
    char byte;
    ssize_t got = read(STDIN_FILENO, &byte, 1);
    return got == 1 ? 1 : got == 0 ? 0 : -1;
}

FUNCTION int serve(uint64_t key)
{
    int answer = ask();
    NO_TAIL_CALL();
    return answer < 0 ? answer - (int)(key & 1) : answer;
}

int main(void)
{
    struct sigaction action = {.sa_handler = make_child, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    say_ready();
    uint64_t ops = 0;
    int answer;
    while ((answer = serve(ops)) == 1 && !in_child)
        ops++;
    if (in_child)
        _exit(0);
    return say_checksum(mix(1), answer != 0);
}
