/*
 * One thread that is nearly always in a restartable sequence (rseq(2)): when it was interrupted there it has to start again at
 * the sequence's end for that. To be started with GLIBC_TUNABLES=glibc.pthread.rseq=0, for a thread has one such area.
 * Says on a line where the sequence begins and ends, and where the area is, in hexadecimal, and goes on for ever.
 */
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/* struct rseq in the kernel's include/uapi/linux/rseq.h, as it began. */
struct area {
    uint32_t cpu_at_start, cpu;
    uint64_t sequence;
    uint32_t flags, unused[3];
} __attribute__((aligned(32)));

struct area area;
extern const char sequence_begins[], sequence_ends[];

#define SIGNATURE 0x53053053
#define TEXT(value) #value
#define NUMBER(value) TEXT(value)

/* The descriptor, struct rseq_cs: version and flags, the begin, the length, where it starts again. */
__asm__(".pushsection .data.rel.ro, \"aw\"\n"
        ".balign 32\n"
        "descriptor: .long 0, 0\n"
        ".quad sequence_begins, sequence_ends - sequence_begins, sequence_again\n"
        ".popsection\n");

int main(void)
{
    if (syscall(334 /* rseq */, &area, sizeof area, 0, SIGNATURE) != 0)
        return 2;
    printf("%lx %lx %lx\n", (unsigned long)sequence_begins, (unsigned long)sequence_ends, (unsigned long)&area);
    fflush(stdout);
    for (;;)
        __asm__ volatile("leaq descriptor(%%rip), %%rax\n"
                         "movq %%rax, %0\n"
                         ".globl sequence_begins, sequence_ends\n"
                         "sequence_begins: movl $100000, %%eax\n"
                         "1: decl %%eax\n"
                         "jnz 1b\n"
                         "sequence_ends: jmp sequence_again\n"
                         ".long " NUMBER(SIGNATURE) "\n"
                         "sequence_again:\n"
                         : "=m"(area.sequence)
                         :
                         : "rax", "cc", "memory");
}
