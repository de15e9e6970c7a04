/*
 * A profiler inside the program: at a timer's signal its handler walks the stack with backtrace(). Every walk must reach
 * main, as natively. The result counts: "cut=0" (walks that end before main).
 */
#ifndef WALKS_H
#define WALKS_H

#include "work.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/time.h>

int main(int argc, char **argv);

static volatile uint64_t walks, cut;
static uintptr_t main_begin, main_end;

static void walk(int signal)
{
    (void)signal;
    void *frames[64];
    int count = backtrace(frames, 64), reached = 0;
    for (int i = 0; i < count; i++)
        reached |= (uintptr_t)frames[i] >= main_begin && (uintptr_t)frames[i] < main_end;
    walks++;
    cut += !reached;
}

/* Runs the ops while `signal` comes every so many microseconds of the timer `which`. */
static int run_walked(struct run run, uint64_t (*op)(uint64_t), int which, int signal, int micros)
{
    /* The extent of main, generously: the walk must come to a frame of it. */
    main_begin = (uintptr_t)main;
    main_end = main_begin + 4096;
    void *first[4];
    backtrace(first, 4); /* loads what it needs outside of any handler */
    struct sigaction action = {.sa_handler = walk, .sa_flags = SA_RESTART};
    sigaction(signal, &action, NULL);
    struct itimerval every = {{0, micros}, {0, micros}};
    setitimer(which, &every, NULL);
    int status = run_ops(run, op);
    every = (struct itimerval){{0, 0}, {0, 0}};
    setitimer(which, &every, NULL);
    printf("cut=%llu walked=%d\n", (unsigned long long)cut, walks > 0);
    return status;
}

#endif
