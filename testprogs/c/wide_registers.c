/*
 * Keeps patterns in all 256-bit registers while it spins, until its input ends: whatever stops it and makes calls in its name
 * must leave them as they are. Says "registers=ok" or "registers=lost"; exits with 77 where the processor has none.
 */
#include "work.h"

#define ALL "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15"

static unsigned char before[16][32], after[16][32];

__attribute__((target("avx"), noinline)) static void keep(void)
{
    __asm__ volatile(".irp n, " ALL "\n"
                     "    vmovups 32*\\n(%0), %%ymm\\n\n"
                     ".endr\n"
                     "    mov $200000, %%ecx\n"
                     "1:  dec %%ecx\n"
                     "    jnz 1b\n"
                     ".irp n, " ALL "\n"
                     "    vmovups %%ymm\\n, 32*\\n(%1)\n"
                     ".endr\n"
                     "    vzeroupper\n"
                     :
                     : "r"(before), "r"(after)
                     : "rcx", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
                       "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}

static int input_ended(void)
{
    struct pollfd input = {.fd = 0, .events = POLLIN};
    return poll(&input, 1, 0) == 1;
}

int main(void)
{
    if (!__builtin_cpu_supports("avx"))
        return 77;
    say_ready();
    int lost = 0;
    for (unsigned key = 0; !input_ended(); key++) {
        memset(before, (int)(key | 1), sizeof before);
        keep();
        lost |= memcmp(before, after, sizeof before) != 0;
    }
    printf("registers=%s\n", lost ? "lost" : "ok");
    return lost;
}
