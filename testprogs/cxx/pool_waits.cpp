/*
 * Eight workers that wait for jobs on a condition variable of the C++ library, which hands the call on by a jump. Two hundred jobs a
 * second come, so that each worker waits nearly all the time.
 *
 * f0 = (of what a process runs, its busiest threads'): it runs all the time, so its time is divided
 *   … -> work -> take -> std::condition_variable::wait   nearly all of the time: waiting
 *   … -> work -> handle                                  some hundredths; what there is to analyse
 *     handle -> parse                                    most calls
 *     handle -> rebuild                                  the slow ones, one in eight
 */
#include "work.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

enum { WORKERS = 8, STOP = -1 };

static std::mutex lock;
static std::condition_variable filled;
static std::deque<int> jobs;

FUNCTION uint64_t parse(uint64_t key)
{
    spin_us(400);
    return mix(key);
}

FUNCTION uint64_t rebuild(uint64_t key)
{
    spin_us(5000);
    return mix(key + 1);
}

FUNCTION uint64_t handle(uint64_t key)
{
    uint64_t parsed = parse(key);
    return key % 8 == 7 ? parsed ^ rebuild(key) : parsed;
}

FUNCTION int take()
{
    std::unique_lock<std::mutex> guard(lock);
    while (jobs.empty())
        filled.wait(guard);
    int job = jobs.front();
    jobs.pop_front();
    return job;
}

FUNCTION void work()
{
    for (int job = take(); job != STOP; job = take())
        handle(job);
}

static void give(int job)
{
    {
        std::lock_guard<std::mutex> guard(lock);
        jobs.push_back(job);
    }
    filled.notify_one();
}

int main(int argc, char **argv)
{
    struct run run = parse_run(argc, argv, 20);
    uint64_t expected = one_period(handle);
    std::vector<std::thread> workers;
    for (int i = 0; i < WORKERS; i++)
        workers.emplace_back(work);
    if (run.waits)
        say_ready();
    for (uint64_t job = 0; job < run.ops && !(run.waits && stdin_closed()); job++) {
        give(job % PERIOD);
        usleep(5000);
    }
    for (int i = 0; i < WORKERS; i++)
        give(STOP);
    for (auto &worker : workers)
        worker.join();
    return say_checksum(expected, 0);
}
