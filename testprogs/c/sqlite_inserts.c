/*
 * SQLite, as it is: autocommitted inserts into a file database, and look-ups between them.
 *   sqlite_inserts [wait] DATABASE [ROWS]    default 400; the file is made anew
 *
 * f0 = sqlite3_step: how long a sync takes depends on the disk
 * fast peak (4 of 5 ops):                 look-ups; no one function is the cause for certain
 * slow peak (1 of 5 ops, the inserts):    sqlite3_step -> … -> unixSync -> … -> fsync or fdatasync
 *                                         syscall, where the file system writes to a disk
 */
#include "work.h"

#include "sqlite3.h"

static void check(sqlite3 *database, int code)
{
    if (code != SQLITE_OK && code != SQLITE_DONE && code != SQLITE_ROW) {
        fprintf(stderr, "sqlite_inserts: %s\n", sqlite3_errmsg(database));
        exit(2);
    }
}

int main(int argc, char **argv)
{
    int waits = argc > 1 && strcmp(argv[1], "wait") == 0;
    argc -= waits;
    argv += waits;
    if (argc < 2)
        return 2;
    uint64_t rows = argc > 2 ? strtoull(argv[2], NULL, 10) : waits ? UINT64_MAX : 400, sum = 0, row = 0;
    sqlite3 *database;
    sqlite3_stmt *insert, *lookup;
    unlink(argv[1]);
    check(NULL, sqlite3_open(argv[1], &database));
    check(database, sqlite3_exec(database, "CREATE TABLE entry (id INTEGER PRIMARY KEY, name TEXT, value INTEGER)", NULL,
                                 NULL, NULL));
    check(database, sqlite3_prepare_v2(database, "INSERT INTO entry (name, value) VALUES (?, ?)", -1, &insert, NULL));
    check(database, sqlite3_prepare_v2(database, "SELECT value FROM entry WHERE id = ?", -1, &lookup, NULL));
    if (waits)
        say_ready();
    for (; row < rows; row++) {
        char name[32];
        snprintf(name, sizeof name, "name %llu", (unsigned long long)row);
        sqlite3_bind_text(insert, 1, name, -1, SQLITE_TRANSIENT);
        sqlite3_bind_int64(insert, 2, (sqlite3_int64)(mix(row) >> 1));
        check(database, sqlite3_step(insert));
        check(database, sqlite3_reset(insert));
        for (uint64_t i = 0; i < 2; i++) {
            sqlite3_bind_int64(lookup, 1, (sqlite3_int64)(mix(row * 2 + i) % (row + 1) + 1));
            check(database, sqlite3_step(lookup)); /* the row */
            sum = mix(sum ^ (uint64_t)sqlite3_column_int64(lookup, 0));
            check(database, sqlite3_step(lookup)); /* the end */
            check(database, sqlite3_reset(lookup));
        }
        if (waits && stdin_closed())
            break;
    }
    sqlite3_finalize(insert);
    sqlite3_finalize(lookup);
    check(database, sqlite3_close(database));
    if (waits)
        sum = 0;
    return say_checksum(sum, 0);
}
