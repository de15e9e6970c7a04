/*
 * A pool of one thread, and futures for what it is asked: the slow ops wait for the answer of a task that takes long, and it is
 * waiting that they do.
 *
 * f0 = serve
 * fast peak (4 of 5 ops, ~0.3 ms):       serve -> answer_at_once             function
 *     wrong: serve; serve -> ask_pool
 * slow peak (1 of 5 ops, ~2.5 to 6 ms):  serve -> ask_pool -> … -> syscall -> futex  syscall
 *     wrong: serve; serve -> answer_at_once; serve -> ask_pool; serve -> ask_pool -> digest
 */
#include "work.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>

static std::mutex lock;
static std::condition_variable changed;
static std::deque<std::packaged_task<uint64_t()>> tasks;

static void serve_tasks()
{
    for (;;) {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [] { return !tasks.empty(); });
        auto task = std::move(tasks.front());
        tasks.pop_front();
        guard.unlock();
        task();
    }
}

FUNCTION uint64_t digest(uint64_t key)
{
    spin_us(3000);
    return mix(key);
}

FUNCTION uint64_t answer_at_once(uint64_t key)
{
    spin_us(300);
    return mix(key);
}

FUNCTION uint64_t ask_pool(uint64_t key)
{
    std::packaged_task<uint64_t()> task([key] { return digest(key); });
    auto answer = task.get_future();
    {
        std::lock_guard<std::mutex> guard(lock);
        tasks.push_back(std::move(task));
    }
    changed.notify_one();
    return answer.get() + 1;
}

FUNCTION uint64_t serve(uint64_t key)
{
    return (key % 5 == 4 ? ask_pool(key) : answer_at_once(key)) + 1;
}

int main(int argc, char **argv)
{
    std::thread(serve_tasks).detach();
    int status = run_ops(parse_run(argc, argv, 1200), serve);
    /* The thread waits for tasks still. */
    fflush(stdout);
    _exit(status);
}
