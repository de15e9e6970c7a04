/*
 * What every target program shares: work of a known length, and the loop that runs the ops.
 *
 * Everything here is inlined, so that it appears in no call path: work makes no calls.
 */
#ifndef WORK_H
#define WORK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <time.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))

/* A function that exists as such at every optimisation level, under its own name. */
#if defined(__clang__)
#define FUNCTION __attribute__((noinline))
#else
#define FUNCTION __attribute__((noinline, noclone))
#endif

/* A function in assembly, with an entry in the unwind table. */
#define ASM_FUNCTION(name, body)        \
    ".globl " #name "\n"                \
    ".type " #name ", @function\n"      \
    #name ":\n"                         \
    "    .cfi_startproc\n"              \
    body                                \
    "    .cfi_endproc\n"                \
    ".size " #name ", .-" #name "\n"

/* Keeps the call before it from becoming a tail call. */
#define NO_TAIL_CALL() __asm__ volatile("" ::: "memory")

/* Whether all work is to be a hundredth as long: many ops that test transparency, not peaks. */
static int brisk;

/*
 * Work is measured in cycles of the time stamp counter, in which latencies are counted too: so an op
 * lies in the middle of its bucket on every machine, busy or not. The figures in the programs are
 * microseconds of a counter of 2.3 GHz.
 */
enum { CYCLES_PER_US = 2300 };

INLINE uint64_t cycles(void)
{
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
}

INLINE void spin_cycles(uint64_t count)
{
    uint64_t start = cycles();
    while (cycles() - start < count)
        ;
}

/* Works for about `us` microseconds. */
INLINE void spin_us(uint64_t us)
{
    spin_cycles(us * CYCLES_PER_US / (brisk ? 100 : 1));
}

/* A small mixing step: what ops return, so that a checksum notices any wrong register. */
INLINE uint64_t mix(uint64_t value)
{
    value ^= value >> 33;
    value *= 0xff51afd7ed558ccdull;
    value ^= value >> 29;
    return value;
}

/* Whether standard input is at its end (the other side has closed the pipe). */
INLINE int stdin_closed(void)
{
    struct pollfd fd = {.fd = 0, .events = POLLIN, .revents = 0};
    char byte;
    return poll(&fd, 1, 0) > 0 && read(0, &byte, 1) <= 0;
}

/*
 * How the program was told to run:
 *   program [N]        N ops (rounded up to whole periods), then the result
 *   program wait [N]   prints "ready", works until standard input is at its end (or N ops are done)
 *   program timed [N]  the same, and prints for each period when it began and ended and how much CPU time the
 *                      thread used, in nanoseconds: "unit <CLOCK_MONOTONIC> <CLOCK_MONOTONIC> <CPU time>"
 *   program … brisk    as above, with work a hundredth as long
 * In either mode the last line is "checksum=…": it covers one period of PERIOD ops, is the same for
 * every period, and so depends on neither the number of ops nor the speed of the machine.
 */
enum { PERIOD = 20 };

struct run {
    uint64_t ops;
    int waits, timed;
};

static inline struct run parse_run(int argc, char **argv, uint64_t default_ops)
{
    struct run run = {.ops = default_ops, .waits = 0, .timed = 0};
    if (argc > 1 && strcmp(argv[argc - 1], "brisk") == 0) {
        brisk = 1;
        argc--;
    }
    run.timed = argc > 1 && strcmp(argv[1], "timed") == 0;
    if (argc > 1 && (run.timed || strcmp(argv[1], "wait") == 0)) {
        run.waits = 1;
        run.ops = argc > 2 ? strtoull(argv[2], NULL, 10) : UINT64_MAX;
    } else if (argc > 1) {
        run.ops = strtoull(argv[1], NULL, 10);
    }
    return run;
}

INLINE void say_ready(void)
{
    printf("ready\n");
    fflush(stdout);
}

/* A stretch of work that is always the same, and what it took. */
struct unit {
    uint64_t began, cpu;
};

INLINE uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

INLINE struct unit begin_unit(void)
{
    uint64_t began = clock_ns(CLOCK_MONOTONIC);
    return (struct unit){began, clock_ns(CLOCK_THREAD_CPUTIME_ID)};
}

INLINE void end_unit(struct unit unit)
{
    uint64_t cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID) - unit.cpu;
    uint64_t ended = clock_ns(CLOCK_MONOTONIC);
    printf("unit %llu %llu %llu\n", (unsigned long long)unit.began, (unsigned long long)ended,
           (unsigned long long)cpu);
    fflush(stdout);
}

/* The ops of one period, and what they returned. */
INLINE uint64_t one_period(uint64_t (*op)(uint64_t))
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < PERIOD; i++)
        sum = mix(sum ^ op(i) ^ i);
    return sum;
}

/* Prints the result; returns the exit status. */
static inline int say_checksum(uint64_t checksum, int differs)
{
    printf("checksum=%016llx%s\n", (unsigned long long)checksum, differs ? " differs" : "");
    fflush(stdout);
    return differs;
}

/* Runs `op` as `run` says and prints the checksum; returns the exit status. */
static inline int run_ops(struct run run, uint64_t (*op)(uint64_t))
{
    if (run.waits)
        say_ready();
    uint64_t expected = 0;
    int differs = 0;
    for (uint64_t done = 0; done < run.ops; done += PERIOD) {
        struct unit unit = {0, 0};
        if (run.timed)
            unit = begin_unit();
        uint64_t sum = one_period(op);
        if (run.timed)
            end_unit(unit);
        if (done == 0)
            expected = sum;
        differs |= sum != expected;
        if (run.waits && stdin_closed())
            break;
    }
    return say_checksum(expected, differs);
}

#endif
