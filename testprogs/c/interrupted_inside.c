/*
 * A thread of which a signal handler returns into the middle of what a probe at f0's entry displaces: an instruction of
 * f0 faults, and the handler goes on when somebody has changed f0's code, or standard input is at its end.
 *
 * f0 is `serve`. Peaks do not matter here.
 */
#include "work.h"

#include <signal.h>
#include <sys/mman.h>

uint64_t serve(uint64_t *counter, uint64_t key);

/* The first instruction is one byte long, the second one faults, and a jump takes five bytes. */
__asm__(".text\n"
        ".globl serve\n"
        ".type serve, @function\n"
        "serve:\n"
        "    .cfi_startproc\n"
        "    push %rbx\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    mov (%rdi), %rax\n"
        "    lea 1(%rsi), %rbx\n"
        "    add %rbx, %rax\n"
        "    mov %rax, (%rdi)\n"
        "    pop %rbx\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size serve, .-serve\n");

static uint64_t *counter;
static char code[16];
static struct run run;

static void on_fault(int number)
{
    (void)number;
    if (run.waits) {
        say_ready();
        while (memcmp((void *)serve, code, sizeof code) == 0 && !stdin_closed())
            usleep(1000);
    }
    mprotect(counter, 4096, PROT_READ | PROT_WRITE);
}

static uint64_t op(uint64_t key)
{
    *counter = key;
    spin_us(10);
    return mix(serve(counter, key));
}

int main(int argc, char **argv)
{
    run = parse_run(argc, argv, 800);
    memcpy(code, (void *)serve, sizeof code);
    counter = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    signal(SIGSEGV, on_fault);
    uint64_t first = serve(counter, 7);
    printf("first=%llu\n", (unsigned long long)first);
    return run_ops((struct run){.ops = run.ops == UINT64_MAX ? 800 : run.ops}, op);
}
