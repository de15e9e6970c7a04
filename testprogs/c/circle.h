/*
 * COUNT places, each of which names the next: to go round them is to wait for memory at each step.
 */
#ifndef CIRCLE_H
#define CIRCLE_H

/* Each place names the next: all of them in one circle, in an order that no prefetcher foresees. */
static uint32_t *next;

static int make_circle(void)
{
    next = malloc(sizeof *next * COUNT);
    if (next == NULL)
        return 0;
    uint32_t at = 0;
    /* A generator whose period is the number of places (Knuth, volume 2, 3.2.1.2). */
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t after = (at * 1664525u + 1013904223u) % COUNT;
        next[at] = after;
        at = after;
    }
    return 1;
}

#endif
