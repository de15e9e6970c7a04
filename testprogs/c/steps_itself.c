/*
 * Steps through its own ops by the trap flag, as some debuggers in the process and some protections do: a SIGTRAP handler hears of
 * each instruction, and where the next one is. The results are of all that it heard.
 *
 * f0 = serve: calls directly, by a pointer, by a jump, and the kernel. Peaks do not matter here.
 */
#include "work.h"

#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>

static volatile uint64_t heard, foreign;

uint64_t by_jump(uint64_t key);
uint64_t serve(uint64_t key);

static void on_step(int signal, siginfo_t *info, void *context)
{
    uint64_t at = (uint64_t)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    (void)signal;
    foreign |= info->si_code != TRAP_TRACE || (uint64_t)info->si_addr != at;
    heard = mix(heard + at - (uint64_t)(uintptr_t)serve) + 1;
}

/* Below the part of the stack that a function may use without saying so. */
#define CHANGE_FLAGS(how)                       \
    __asm__ volatile("lea -128(%%rsp), %%rsp\n" \
                     "pushfq\n" how ", (%%rsp)\n" \
                     "popfq\n"                  \
                     "lea 128(%%rsp), %%rsp\n" ::: "memory", "cc")

FUNCTION uint64_t part(uint64_t key)
{
    return mix(key);
}

static uint64_t (*volatile by_pointer)(uint64_t) = part;

/* A jump that is taken, and one that is not. */
__asm__(".text\n" ASM_FUNCTION(by_jump,
                               "    test %rdi, %rdi\n"
                               "    js part\n"
                               "    jmp part\n"));

INLINE uint64_t ask(void)
{
    long answer = SYS_getuid;
    __asm__ volatile("syscall" : "+a"(answer) : : "rcx", "r11", "memory");
    return (uint64_t)answer;
}

FUNCTION uint64_t serve(uint64_t key)
{
    uint64_t sum = part(key) + by_pointer(key + 1);
    sum += by_jump(key + 2);
    sum += ask();
    return sum + by_jump(key | 1ull << 63);
}

static uint64_t op(uint64_t key)
{
    heard = 0;
    CHANGE_FLAGS("orq $0x100");
    uint64_t sum = serve(key);
    CHANGE_FLAGS("andq $~0x100");
    return mix(sum + heard) + foreign;
}

int main(int argc, char **argv)
{
    struct sigaction action = {.sa_sigaction = on_step, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &action, NULL);
    return run_ops(parse_run(argc, argv, 160), op);
}
