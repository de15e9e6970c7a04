/*
 * Every op waits for a byte of standard input, blocked in read(2); the end of the input ends the program.
 *   asks wait   prints "ready", then one op for each byte
 *
 * f0 = serve:  serve -> ask -> read -> syscall
 */
#include "work.h"

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
    say_ready();
    uint64_t ops = 0;
    int answer;
    while ((answer = serve(ops)) == 1)
        ops++;
    return say_checksum(mix(1), answer != 0);
}
