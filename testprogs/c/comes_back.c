/*
 * A thread that comes back to the program from the code of a probe which is gone: the first instruction of `serve` faults, and its handler
 * goes on when it is told to, on standard input. `serve` runs into `inner`, which begins with its second instruction: what a probe at the
 * entry of `serve` displaces ends with that, so its code goes on in the middle of what a probe at the entry of `inner` displaces.
 *
 * f0 is `serve`, or `inner`. Peaks do not matter here.
 */
#include "work.h"

#include <signal.h>
#include <sys/mman.h>

uint64_t serve(uint64_t *counter, uint64_t key);
uint64_t inner(uint64_t *counter, uint64_t key);

__asm__(".text\n" ASM_FUNCTION(serve,
                               "    mov (%rdi), %rdx\n"
                               ".globl inner\n"
                               "inner:\n"
                               "    xor %ecx, %ecx\n"
                               "    lea 1(%rsi,%rdx), %rax\n"
                               "    lea 0x1000(%rax,%rcx), %rax\n"
                               "    ret\n")
        "    .p2align 4\n");

static uint64_t *counter;

static void on_fault(int number)
{
    char byte;
    signal(number, SIG_DFL);
    say_ready();
    if (read(0, &byte, 1) != 1)
        _exit(1);
    mprotect(counter, 4096, PROT_READ | PROT_WRITE);
}

int main(void)
{
    char byte;
    counter = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGSEGV, on_fault);
    printf("code %p %p\n", (void *)serve, (void *)inner);
    say_ready();
    if (read(0, &byte, 1) != 1)
        return 1;
    printf("result=%016llx\n", (unsigned long long)serve(counter, 7));
    return 0;
}
