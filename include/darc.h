/*
 * Tells darc which part of a program's run is of interest:
 *
 *     darc run --f0 serve --begin-at darc_begin --end-at darc_end -- ./program
 *
 * The two functions do nothing. Without darc they cost a call each; nothing has to be linked. SPDX-License-Identifier:
 * MIT OR Apache-2.0
 */
#ifndef DARC_H
#define DARC_H

#ifdef __cplusplus
extern "C" {
#endif

/* One copy for the program and one for each shared library, however many files include this; darc notices calls of all that
 * are loaded. Exported, so that a stripped library's is known too. Five bytes of nothing, so that there is room for a probe
 * whatever follows. */
#define DARC_MARKER(name)                                                                                              \
    __attribute__((weak, noinline, used, visibility("default"))) void name(void)                                       \
    {                                                                                                                  \
        __asm__ volatile(".byte 0x0f, 0x1f, 0x44, 0x00, 0x00" ::: "memory");                                           \
    }

/* The analysis begins with the first call. */
DARC_MARKER(darc_begin)

/* The analysis ends: nothing is measured from here on. */
DARC_MARKER(darc_end)

#undef DARC_MARKER

#ifdef __cplusplus
}
#endif

#endif
